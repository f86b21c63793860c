"""A base and a profile make a revision, the same each time, and say what must run."""

from __future__ import annotations

import pytest

from lanectl.core.flags import Asked
from lanectl.core.lane import ADOPTED, Profile
from lanectl.core.render import asked_of, render
from lanectl.errors import EditRefused

BASE = b"""#!/bin/bash
exec vllm serve /models/q --port 8000 --max-num-seqs 4 \\
  --speculative-config '{"method":"mtp","num_speculative_tokens":3}'
"""
KNOBS = b"""#!/bin/bash
SEQS=${SEQS:-4}
exec vllm serve /models/q --port 8000 --max-num-seqs "$SEQS"
"""
TWO = b"""#!/bin/bash
vllm serve /models/a --port 8001 --max-num-seqs 4 &
exec vllm serve /models/b --port 8000 --max-num-seqs 4
"""


def test_the_same_base_and_profile_give_the_same_bytes() -> None:
    profile = Profile("p", speculative=False, max_num_seqs=8, flags={"--b": "1", "--a": True})
    texts = {render(BASE, profile, port=8000) for _ in range(5)}
    assert len(texts) == 1
    assert b"--max-num-seqs 8" in texts.pop()


def test_a_profile_that_asks_for_nothing_is_the_base() -> None:
    assert render(BASE, Profile("p"), port=8000) == BASE
    assert render(BASE, Profile(ADOPTED), port=8000) == BASE
    assert render(BASE, Profile("s", script="x"), port=8000, script=b"whole") == b"whole"


def test_the_port_picks_the_server() -> None:
    text = render(TWO, Profile("p", max_num_seqs=8), port=8000)
    assert text == TWO.replace(b"--port 8000 --max-num-seqs 4", b"--port 8000 --max-num-seqs 8")


def test_what_cannot_be_proven_is_refused() -> None:
    with pytest.raises(EditRefused):
        render(b"#!/bin/bash\necho nothing\n", Profile("p", max_num_seqs=8), port=8000)


def test_the_running_words_are_those_of_the_text_and_of_the_profile() -> None:
    asked = asked_of(BASE, Profile("p", max_num_seqs=4, flags={"--x": "1"}), port=8000)
    assert asked == Asked(
        speculative={"method": "mtp", "num_speculative_tokens": 3},
        max_num_seqs=4,
        model="/models/q",
        flags={"--x": "1"},
    )


def test_a_text_with_knobs_asks_only_for_what_the_profile_says() -> None:
    """supervisord's `environment=` may set the knob: the text alone proves nothing of it."""
    assert asked_of(KNOBS, Profile("p", max_num_seqs=8), port=8000) == Asked(max_num_seqs=8)
    assert asked_of(KNOBS, None, port=8000) == Asked()


def test_a_known_environment_decides_what_the_knobs_give() -> None:
    plain = asked_of(KNOBS, None, port=8000, environment={"HOME": "/root"})
    assert (plain.max_num_seqs, plain.model) == (4, "/models/q")
    told = asked_of(KNOBS, None, port=8000, environment={"SEQS": "64"})
    assert told.max_num_seqs == 64
