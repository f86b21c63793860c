"""Following a worker: what Ctrl-C does and says, and that the end is heard though nobody read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lanectl.app.change import Asking
from lanectl.cli import changes, worker
from lanectl.cli.follow import follow
from lanectl.config import Config
from lanectl.core.lane import ADOPTED, Kind, Plan, Revision, digest
from lanectl.errors import Interrupted
from tests.fakes import Lab

CTRL_C = KeyboardInterrupt()
Step = dict[str, Any] | KeyboardInterrupt


class Script:
    """A channel that tells a story, one message or Ctrl-C a look."""

    def __init__(self, *steps: Step) -> None:
        self._steps, self.closed = iter(steps), False

    def messages(self, _timeout_s: float) -> Iterator[dict[str, Any]]:
        step = next(self._steps)
        if isinstance(step, KeyboardInterrupt):
            raise step
        yield step


OPENED, DONE = {"opened": "s-1"}, {"done": {}}


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line]


def test_the_first_ctrl_c_asks_and_then_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def undo(switch_id: str) -> str:
        assert not told(capsys), "nothing is said before it is so"
        asked.append(switch_id)
        return "asked to undo"

    assert follow(Script(OPENED, CTRL_C, {}, DONE), undo) == ("s-1", DONE)
    assert asked == ["s-1"]
    assert told(capsys) == ["lanectl: asked to undo (Ctrl-C again stops only the following)"]


def test_ctrl_c_before_anything_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    steps = ({"say": "closing s-0, which died in verifying"}, CTRL_C, {}, OPENED, {}, DONE)
    follow(Script(*steps), lambda switch_id: asked.append(switch_id) or "asked to undo")
    assert asked == ["s-1"]
    _, first, second = told(capsys)
    assert first.startswith("lanectl: this change has not begun") and "asked" in second


def test_the_second_ctrl_c_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Interrupted, match="s-1: it goes on"):
        follow(Script(OPENED, CTRL_C, CTRL_C), lambda _id: "asked to undo")

    def interrupted(_id: str) -> str:
        raise CTRL_C  # While it waits for the store.

    with pytest.raises(Interrupted):
        follow(Script(OPENED, CTRL_C, {}, {}), interrupted)


# ----------------------------------------------------------------------------------- asking to undo


def opened_in(lab: Lab) -> str:
    sha = "ab" * 32
    plan = Plan(Kind.SWITCH, lab.lane, sha, ADOPTED, sha, "a", "quick", "kit")
    return lab.ports.store.open_switch(plan, lab.ports.clock.now()).id


def config_with(lab: Lab, url: str) -> Config:
    return Config(lab.config.file, url, lab.config.lanes, lab.config.lines)


def test_undo_asks_the_store_that_the_worker_uses(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    switch_id = opened_in(lab)
    url = lab.config.store_url
    elsewhere = config_with(lab, f"sqlite:///{tmp_path}/broken/lanectl.db")
    assert "asked to undo" in changes.ask_undo(elsewhere, url, switch_id, Asking("kit"))
    assert lab.ports.store.abort_asked(switch_id) == "kit pressed Ctrl-C"


def test_undo_that_cannot_be_asked_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanectl.adapters.database.BUSY_S", 0.2)
    lab = Lab.make(tmp_path)
    switch_id = opened_in(lab)
    with sqlite3.connect(tmp_path / "lanectl.db", isolation_level=None) as locked:
        locked.execute("BEGIN EXCLUSIVE")
        said = changes.ask_undo(lab.config, None, switch_id, Asking("kit"))
    assert said.startswith("could not ask") and said.endswith("it goes on")
    said = changes.ask_undo(lab.config, None, "s-000099-abcd", Asking("kit"))
    assert said.startswith("could not ask") and "s-000099-abcd" in said


def test_a_killed_worker_and_a_broken_store_are_both_told(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    (tmp_path / "no-store").write_bytes(b"no database" * 100)
    broken = config_with(lab, f"sqlite:///{tmp_path}/no-store")
    error = changes._from_journal(broken, lab.lane, "s-000001-abcd", None)["error"]
    assert (error["code"], error["exit"]) == ("worker-killed", 1)
    assert "s-000001-abcd" in error["message"] and "cannot be used" in error["message"]


# ------------------------------------------------------------------------------------- the channel


def hear(work: Callable[[worker.Send], None], *, pause_s: float) -> tuple[list[Any], float]:
    """What the worker told a reader that looks away at first, and when the end was heard."""
    channel = worker.start(work)
    time.sleep(pause_s)
    began, heard = time.monotonic(), []
    while not channel.closed and not any("done" in m for m in heard):
        heard += channel.messages(0.1)
        assert time.monotonic() - began < 20
    return heard, time.monotonic() - began


def test_the_end_is_heard_before_the_probation(tmp_path: Path) -> None:
    over = tmp_path / "over"

    def work(send: worker.Send) -> None:
        send({"done": {"log": "x" * 300_000}})
        until = time.monotonic() + 15
        while not over.exists() and time.monotonic() < until:  # The probation.
            time.sleep(0.05)

    heard, took = hear(work, pause_s=0.3)
    over.touch()
    assert len(heard[0]["done"]["log"]) == 300_000
    assert took < 5


def test_a_reader_that_was_stopped_for_long_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the channel closed, and the journal tells the end."""
    monkeypatch.setattr(worker, "LAST_WORDS_S", 0.3)
    over = tmp_path / "over"

    def work(send: worker.Send) -> None:
        send({"done": {"log": "x" * 300_000}})
        send({"error": {}})  # Nobody is there any more.
        until = time.monotonic() + 15
        while not over.exists() and time.monotonic() < until:
            time.sleep(0.05)

    heard, took = hear(work, pause_s=1.0)
    over.touch()
    assert heard == [] and took < 5


def test_the_document_of_a_no_op_is_of_its_own_kind(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    sent: list[dict[str, Any]] = []
    lab.ports.store.adopt(_adopted(lab), lab.ports.clock.now())
    changes._work(
        lab.ports,
        lab.config,
        lab.lane,
        Asking("kit"),
        lambda *_: changes.Unchanged(_adopted(lab)),
        sent.append,
        preempt=True,
        named=True,
    )
    assert sent[-1]["done"]["kind"] == "rollback"


def _adopted(lab: Lab) -> Revision:
    text = lab.world.launcher.read_bytes()
    return Revision("demo", digest(text), ADOPTED, digest(text), text)
