"""The receipt: what each field says is what was there."""

from __future__ import annotations

import getpass
import stat
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from conftest import MakeOperator, Operator

OFF = {"speculative": False, "max_num_seqs": 6}
BAD = {"flags": {"--standin-mode": "wrong-tool"}}
PROFILES = {"off": OFF, "bad": BAD}
WHY = ("--reason", "floods under load", "--approved-by", "the owner")


def check_common(user: Operator, doc: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """What every receipt of a change that went past its checks must hold."""
    receipt: dict[str, Any] = doc["receipt"]
    assert receipt["from_sha256"] == doc["from"]["sha256"] == before["sha256"]
    assert receipt["to_sha256"] == doc["to"]["sha256"]
    backup = Path(receipt["backup"])
    assert backup.read_bytes() == before["text"] and user.sha(backup) == before["sha256"]
    assert stat.S_IMODE(backup.stat().st_mode) == stat.S_IMODE(user.launcher.stat().st_mode)
    old, new = receipt["program"]["before"], receipt["program"]["after"]
    assert (old["pid"], new["pid"]) == (before["pid"], user.pid)
    assert at(old["started"]) == pytest.approx(before["started"], abs=0.1)
    assert at(new["started"]) == pytest.approx(user.started(user.pid), abs=0.1)
    assert receipt["command"] == user.words()
    assert getpass.getuser() in receipt["who"]
    assert (receipt["why"], receipt["approved_by"]) == ("floods under load", "the owner")
    assert receipt["versions"]["vllm"] == "0.27.1+standin"
    assert receipt["supervisor"] == "4.3.0" and receipt["lanectl"]
    assert receipt["gpu"] is None and receipt["foreign_load"] == 0
    assert receipt["requests_cut"] == 0 and receipt["others_untouched"] is True
    assert receipt["cache_before"] == "warm"
    for when in ("before", "after"):
        assert set(receipt["cache"][when]) == {"queries", "hits"}
    phases = [e["phase"] for e in doc["events"][:-1]]
    assert list(receipt["timings"]) == phases
    for event in doc["events"][:-1]:
        assert receipt["timings"][event["phase"]] == pytest.approx(event["elapsed_s"], abs=0.01)
    assert not {"staged", "others_before", "log_mark"} & set(receipt), "the engine's own notes"
    return receipt


def at(text: str) -> float:
    """A time as the documents have it: ISO 8601, in UTC."""
    assert text.endswith("Z"), text
    return datetime.fromisoformat(text).timestamp()


def look(user: Operator) -> dict[str, Any]:
    return {
        "sha256": user.deployed,
        "text": user.launcher.read_bytes(),
        "pid": user.pid,
        "started": user.started(user.pid),
    }


def test_of_a_commit(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    before = look(user)
    said = user.switch("off", *WHY)
    assert said.exit == 0, said
    receipt = check_common(user, said.doc, before)
    words = receipt["command"]
    assert words[words.index("--max-num-seqs") + 1] == "6"
    assert "--speculative-config" not in words and receipt["speculative_metrics"] is False
    assert user.deployed == receipt["to_sha256"]
    # A fresh process: its cache was cold when the gate began, and is not any more.
    assert receipt["cache"]["before"]["hits"] == 0 < receipt["cache"]["after"]["hits"]
    assert receipt["program"]["before"]["verdict"]["outcome"] == "passed"
    assert said.doc["confirmation"] is None
    told = sum(e["elapsed_s"] for e in said.doc["events"][:-1])
    whole = at(said.doc["events"][-1]["at"]) - at(said.doc["events"][0]["at"])
    assert told <= whole + 0.1
    plain = user.rig.run("switch", "demo", "bad", *WHY)
    assert plain.returncode == 4
    for word in ("backup", "program", "command", "others", "gate", "timings", user.deployed):
        assert word in plain.stdout


def test_of_a_change_that_was_undone(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    before = look(user)
    said = user.switch("bad", *WHY)
    assert said.exit == 4, said
    receipt = check_common(user, said.doc, before)
    assert user.deployed == receipt["from_sha256"] == before["sha256"]
    assert "--standin-mode" not in receipt["command"]
    assert said.doc["verdict"]["class"] == "wrong_tool", "the asked revision's"
    assert said.doc["confirmation"]["outcome"] == "passed", "the restored one's"
    assert set(receipt["timings"]) >= {"reverting", "restoring", "confirming"}


def test_of_a_rollback_and_a_restart(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    assert user.switch("off").exit == 0
    before = look(user)
    said = user.run("rollback", "demo", "--reason", "an incident")
    assert said.exit == 0, said
    receipt = said.doc["receipt"]
    assert Path(receipt["backup"]).read_bytes() == before["text"]
    assert receipt["program"]["before"]["pid"] == before["pid"]
    assert (receipt["program"]["after"]["pid"], receipt["command"]) == (user.pid, user.words())
    assert receipt["why"] == "an incident"
    before = look(user)
    said = user.run("restart", "demo")
    assert said.exit == 0 and said.doc["from"] == said.doc["to"], said
    receipt = said.doc["receipt"]
    assert "backup" not in receipt or receipt["backup"] is None
    assert receipt["program"]["before"]["pid"] == before["pid"] != user.pid
    assert receipt["command"] == user.words()


def test_cold_cache_where_the_lane_was_down(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    user.stop_program()
    said = user.switch("off")
    assert said.exit == 0, said
    receipt = said.doc["receipt"]
    assert receipt["cache_before"] == "cold"
    assert receipt["program"]["before"]["pid"] is None
    assert receipt["program"]["before"]["state"] == "STOPPED"
    assert receipt["program"]["after"]["pid"] == user.pid
    assert psutil.Process(user.pid).is_running()
