"""The detector of repetition: what trips it, what does not, and what it costs."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lanectl.core import repetition
from lanectl.core.repetition import (
    KEPT,
    MAX_UNIT,
    STEP,
    Flood,
    RepetitionDetector,
    find_flood,
    repeats_needed,
)

FLOODS = [
    "!",
    "a",
    " ",
    "\n",
    "ab",
    "!?",
    "think",
    "好",
    "👩‍💻",
    "\ud800",
    "é",
    "I will call the tool. ",
]
HONEST = {
    "ruler": "-" * 200 + "\n" + "=" * 200 + "\n",
    "table head": "| --- " * 60 + "|\n",
    "equal rows": "| 0 | 0 | 0 |\n" * 80,
    "zeros": "[" + "0, " * 200 + "0]",
    "spaces": "x" + " " * 200 + "y",
    "count": " ".join(map(str, range(3000))),
    "indented": "".join(f"{' ' * 40}return {n}\n" for n in range(200)),
    "almost": ("!" * 255 + "?") * 6,
}


def periodic(text: str, unit: int) -> bool:
    return text[unit:] == text[:-unit]


def first_flood(text: str) -> int | None:
    """The rule itself, read off the text with no wit: where the first flood is proven."""
    for end in range(1, len(text) + 1):
        for unit in range(1, MAX_UNIT + 1):
            length = unit * repeats_needed(unit)
            if length <= end and periodic(text[end - length : end], unit):
                return end
    return None


def proven_at(text: str, chunk: int = 1) -> int | None:
    detector = RepetitionDetector()
    for start in range(0, len(text), chunk):
        if detector.feed(text[start : start + chunk]):
            return start + chunk
    return None


@pytest.mark.parametrize("unit", FLOODS)
@pytest.mark.parametrize("before", ["", "x", "Let me think#" * 3, "abc" * 33])
def test_a_flood_is_proven_at_its_last_needed_repeat(unit: str, before: str) -> None:
    repeats = repeats_needed(len(unit))
    assert find_flood(before + unit * repeats) == Flood(unit, repeats)
    assert find_flood(before + (unit * repeats)[:-1]) is None


@pytest.mark.parametrize("length", range(1, MAX_UNIT + 1))
def test_every_unit_length(length: int) -> None:
    unit = "".join(chr(0x4E00 + n) for n in range(length))
    repeats = repeats_needed(length)
    assert proven_at("..." + unit * (repeats + 1)) == 3 + length * repeats


@pytest.mark.parametrize("name", HONEST)
def test_honest_repetition_is_none(name: str) -> None:
    assert find_flood("Here it is:\n" + HONEST[name] + "Done.\n") is None


def test_the_thresholds() -> None:
    assert [repeats_needed(n) for n in (1, 2, 6)] == [256, 256, 256]
    assert all(repeats_needed(n) < 256 for n in range(7, MAX_UNIT + 1))
    needed = [repeats_needed(n) for n in range(1, MAX_UNIT + 1)]
    assert needed == sorted(needed, reverse=True)
    # What a cap of 512 tokens of about four characters lets through is enough for any phrase.
    assert max(n * repeats_needed(n) for n in range(1, MAX_UNIT + 1)) < 512 * 4
    # The docstring's proof: a run is searched for before it can have reached its limit.
    assert all(
        MAX_UNIT + unit + STEP < unit * repeats_needed(unit) for unit in range(1, MAX_UNIT + 1)
    )


def test_a_unit_longer_than_the_longest_is_not_seen() -> None:
    unit = "".join(chr(0x4E00 + n) for n in range(MAX_UNIT + 1))
    assert find_flood(unit * 40) is None


def test_the_first_proof_stays() -> None:
    detector = RepetitionDetector()
    proof = detector.feed("!" * 300)
    assert proof == Flood("!", 256)
    assert detector.feed("and then honest words") == proof
    assert str(proof) == "'!' x 256"


UNITS = st.text(st.sampled_from("ab!é \n"), min_size=1, max_size=40)
PIECES = st.lists(st.tuples(UNITS, st.integers(1, 300)), min_size=1, max_size=4)


def stretch(pieces: list[tuple[str, int]]) -> str:
    """Runs of units, each bounded so that the rule without wit stays affordable."""
    return "".join((unit * times)[:2200] for unit, times in pieces)


@settings(deadline=None)
@given(PIECES, st.integers(1, 97))
@example([("!", 255), ("!!", 1)], 7)
@example([("aab", 300), ("aaab", 300)], 32)
def test_chunks_do_not_matter(pieces: list[tuple[str, int]], chunk: int) -> None:
    text = stretch(pieces)
    at_once = find_flood(text)
    end = proven_at(text, chunk)
    assert (end is None) == (at_once is None)
    if at_once is not None:
        one_by_one = proven_at(text)
        assert end is not None and one_by_one is not None
        assert 0 <= end - one_by_one < chunk
        flooded = at_once.unit * at_once.repeats
        assert text[one_by_one - len(flooded) : one_by_one] == flooded


@pytest.mark.parametrize("seed", range(6))
def test_it_agrees_with_the_rule_read_without_wit(seed: int) -> None:
    dice = random.Random(seed)
    unit = "".join(dice.choices("ab", k=dice.choice([1, 2, 3, 5, 8])))
    needed = len(unit) * repeats_needed(len(unit))
    for extra in (-1, 0, 1):
        text = "ba" * dice.randrange(20) + (unit * 300)[: needed + extra] + "c"
        assert proven_at(text) == first_flood(text)


class Counted(str):
    """A text that counts how many of its characters are looked at one by one."""

    looks = 0

    def __getitem__(self, key: object) -> str:
        if isinstance(key, int):
            Counted.looks += 1
        return super().__getitem__(key)  # type: ignore[index]


def cost(text: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Searches, characters looked at one by one, and the most characters held."""
    searches = held = 0
    Counted.looks = 0
    search, follow = RepetitionDetector._search, RepetitionDetector._follow

    def counted_search(self: RepetitionDetector) -> None:
        nonlocal searches, held
        searches += 1
        held = max(held, len(self._kept))
        self._kept = Counted(self._kept)
        search(self)

    def counted_follow(self: RepetitionDetector, text: str, seen: int) -> None:
        follow(self, Counted(text), seen)

    with monkeypatch.context() as patch:
        patch.setattr(repetition.RepetitionDetector, "_search", counted_search)
        patch.setattr(repetition.RepetitionDetector, "_follow", counted_follow)
        assert proven_at(text, chunk) is None
    return searches, Counted.looks, held


@pytest.mark.parametrize("chunk", [1, 5000])
@pytest.mark.parametrize(
    "piece",
    [
        "Some honest words, then more of them. {n}\n",
        "!" * 255 + "{n}",
        "ab" * 240 + "{n}",
        "the same line over and over " * 40 + "{n}\n",
    ],
)
def test_the_cost_of_a_character_does_not_grow(
    piece: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(length: int) -> str:
        whole = "".join(piece.format(n=n) for n in range(length // len(piece) + 1))
        return whole[:length]

    short, long = 10_000, 60_000
    few, few_looks, _ = cost(text(short), chunk, monkeypatch)
    many, many_looks, held = cost(text(long), chunk, monkeypatch)
    assert few <= short / STEP
    assert many <= long / STEP
    assert many_looks / long <= few_looks / short * 1.1 + 0.1
    # Following: two looks a character; finding: a bounded walk back for each search.
    assert many_looks <= long * 2 + many * 2 * (2 * MAX_UNIT + 2 * STEP)
    assert held <= KEPT
