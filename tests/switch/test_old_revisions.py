"""The old revision is bad already: what it is measured by, and how the switch away from it ends."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from conftest import MakeOperator, Operator

GOOD = {"flags": {"--standin-mode": "good"}}
BAD = {"flags": {"--standin-mode": "wrong-tool"}}
PROFILES = {"good": GOOD, "bad": BAD}
QUICK = {"request_timeout_s": 2}


def bad_base(operator: MakeOperator, mode: str, **more: Any) -> Operator:
    return operator(
        launcher=lambda rig: rig.launcher_text(mode=mode),
        **{"profiles": PROFILES, "stop_timeout_s": 2, **more},
    )


def fatal(operator: MakeOperator) -> Operator:
    user = bad_base(operator, "crash-start", ready=False, rig={"startsecs": 1, "startretries": 0})
    user.wait_for(lambda: user.state == "FATAL", "supervisord gives up")
    return user


def backoff(operator: MakeOperator) -> Operator:
    user = bad_base(
        operator, "crash-start", ready=False, rig={"startsecs": 1, "startretries": 1000}
    )
    user.wait_for(lambda: user.state == "BACKOFF", "supervisord tries again")
    return user


def stopped(operator: MakeOperator) -> Operator:
    user = operator(profiles=PROFILES)
    user.stop_program()
    return user


def unreachable(operator: MakeOperator) -> Operator:
    user = bad_base(operator, "slow-start=1000", ready=False)
    assert user.state == "RUNNING"
    return user


def flood(operator: MakeOperator) -> Operator:
    return bad_base(operator, "flood")


def frozen(operator: MakeOperator) -> Operator:
    return bad_base(operator, "frozen", smoke=QUICK)


def html_error(operator: MakeOperator) -> Operator:
    return bad_base(operator, "html-error")


def crash_loop(operator: MakeOperator) -> Operator:
    return bad_base(
        operator,
        "crash-after=0.3",
        ready=False,
        rig={"startsecs": 0, "autorestart": "true"},
        drain_timeout_s=1,
    )


DOWN = [stopped, fatal, backoff, unreachable]
UP = [flood, frozen, html_error]


@pytest.mark.parametrize("make", [*DOWN, *UP], ids=lambda make: make.__name__)
def test_a_good_revision_ends_it(operator: MakeOperator, make: Any) -> None:
    user = make(operator)
    bystander = user.bystander
    said = user.switch("good")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    before = said.doc["receipt"]["program"]["before"]
    assert before["down"] is (make in DOWN) and before["ready"] is (make is flood)
    # supervisord may count `startsecs` still; the lane's own `min_uptime_s` is 0 here.
    user.wait_for(lambda: user.state == "RUNNING", "supervisord calls it up")
    assert user.pid == said.doc["receipt"]["program"]["after"]["pid"]
    assert user.deployed == said.doc["to"]["sha256"]
    assert user.status()["ready"] is True and user.bystander == bystander
    if make in DOWN:
        assert "drained by definition" in said.doc["events"][1]["detail"]


@pytest.mark.parametrize("make", [*DOWN, *UP], ids=lambda make: make.__name__)
def test_a_bad_revision_is_undone_to_no_worse_than_it_was(
    operator: MakeOperator, make: Any
) -> None:
    user = make(operator)
    text, bystander = user.launcher.read_bytes(), user.bystander
    said = user.switch("bad")
    assert (said.exit, said.doc["phase"]) == (4, "rolled-back"), said
    assert said.doc["verdict"]["class"] == "wrong_tool"
    assert user.launcher.read_bytes() == text
    lane = user.status()
    assert (lane["quarantined"], lane["drift"], lane["unfinished"]) == (None, False, None)
    assert user.bystander == bystander
    if make in DOWN:
        assert (user.state, user.pid) == ("STOPPED", 0), "down before, left down"
    else:
        assert user.state == "RUNNING"
        assert user.pid == said.doc["receipt"]["program"]["after"]["pid"]


def test_crash_loop_has_one_of_the_ends_that_are_given(operator: MakeOperator) -> None:
    # Up or down at the baseline is chance here, and so is whether it drains: never worse than that.
    user = crash_loop(operator)
    text = user.launcher.read_bytes()
    said = user.switch("good", "--cut")
    ends = {0: "committed", 3: "aborted", 4: "rolled-back"}
    assert said.doc["phase"] == ends.get(said.exit), said
    if said.exit == 0:
        assert user.status()["ready"] is True
    else:
        assert user.launcher.read_bytes() == text
    assert user.status()["quarantined"] is None


def test_drifted_launcher_is_never_overwritten(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    pid, recorded = user.pid, user.deployed
    edited = user.launcher.read_bytes() + b"# by hand\n"
    user.launcher.write_bytes(edited)
    assert user.status()["drift"] is True
    for command in (("switch", "demo", "good"), ("restart", "demo"), ("rollback", "demo")):
        said = user.run(*command)
        assert (said.exit, said.code) == (3, "drift"), said
        assert said.doc["error"]["next"]
    assert user.switch("good", "--dry-run").code == "drift"
    assert user.launcher.read_bytes() == edited and user.pid == pid
    assert user.backups == [] and user.history() == [] and user.litter == []
    # Naming it puts the recorded one back; the edit is kept as a backup.
    said = user.run("rollback", "demo", "--accept-drift", user.deployed)
    assert (said.exit, said.doc["phase"], user.deployed) == (0, "committed", recorded), said
    assert [p.read_bytes() for p in user.backups] == [edited]
    user.launcher.write_bytes(edited)
    # Adopting it keeps the edit, and makes it the base.
    user.adopt("--unproven")
    said = user.switch("good")
    assert said.exit == 0, said
    assert b"# by hand\n" in user.launcher.read_bytes()


CLIENT_ERRORS = {
    "401": ("unauthorized", {}, "client_error"),
    "unknown model": ("good", {"model": "another"}, "client_error"),
    "budget": ("budget", {}, "budget_exhausted"),
}


@pytest.mark.parametrize("case", CLIENT_ERRORS)
def test_baseline_that_blames_our_probe_aborts_before_any_change(
    operator: MakeOperator, case: str
) -> None:
    mode, keys, cls = CLIENT_ERRORS[case]
    user = bad_base(operator, mode, **keys)
    before = user.everything()
    said = user.switch("good")
    assert (said.exit, said.doc["phase"]) == (3, "aborted"), said
    assert cls in said.doc["reason"]
    assert [e["phase"] for e in said.doc["events"]] == ["preparing", "aborted"]
    after = user.everything()
    (entry,) = after.pop("history")
    assert (entry["phase"], entry["switch"]) == ("aborted", said.doc["switch"])
    del before["history"]
    assert after == before and user.backups == []
    assert user.profile("good")["barred"] is False


def test_frozen_process_is_unreachable_and_counts_as_down(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, smoke=QUICK, stop_timeout_s=1)
    old = user.pid
    psutil.Process(old).send_signal(signal.SIGSTOP)
    said = user.switch("good")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert said.doc["receipt"]["program"]["before"]["down"] is True
    assert said.doc["receipt"]["stop"]["killed"] == [old] and not user.living(old)


def test_supervisord_away_refuses_a_switch(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    text, pid = user.launcher.read_bytes(), user.pid
    supervisord = psutil.Process(user.rig.pid)
    supervisord.suspend()
    try:
        said = user.switch("good")
        assert (said.exit, said.code) == (3, "unreachable"), said
        lane = user.status()
        assert lane["program"] is None and lane["ready"] is True
    finally:
        supervisord.resume()
    assert user.launcher.read_bytes() == text and user.pid == pid
    assert user.history() == [] and user.backups == []


def test_smoke_of_a_lane_that_is_down_could_not_tell(operator: MakeOperator) -> None:
    user = stopped(operator)
    said = user.run("smoke", "demo")
    assert (said.exit, said.doc["class"], said.doc["outcome"]) == (7, "unreachable", "error"), said
