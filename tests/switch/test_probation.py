"""Probation: a committed revision is watched until it is stable, or taken back by itself."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from conftest import MakeOperator, Operator

OFF = {"speculative": False}
# Good one request at a time, bad in the switch gate: only the gate at the end finds it.
LATE = {"flags": {"--standin-mode": "flood-spec-concurrent"}}
PROFILES = {"off": OFF, "late": LATE, "more": {"max_num_seqs": 9}}
PROBATION = {"profiles": PROFILES, "probation_s": 3}


def commit(user: Operator, profile: str, *words: str) -> Any:
    """Switch, and see the revision committed, in probation, and not stable."""
    said = user.switch(profile, *words)
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert said.doc["to"]["stable"] is False
    return said


def until_over(user: Operator) -> dict[str, Any]:
    user.wait_for(lambda: user.status()["probation"] is None, "the probation ends", 60)
    return user.status()


def test_passes_and_is_stable(operator: MakeOperator) -> None:
    user = operator(**PROBATION)
    said = commit(user, "off")
    lane = user.status()
    assert lane["probation"] is not None and lane["stable"] is False
    ends = datetime.fromisoformat(lane["probation"])
    committed = datetime.fromisoformat(said.doc["events"][-1]["at"])
    assert 2 <= (ends - committed).total_seconds() <= 20
    pid = user.pid
    lane = until_over(user)
    assert (lane["stable"], lane["sha256"]) == (True, said.doc["to"]["sha256"])
    assert lane["last_smoke"]["gate"] == "switch" and lane["last_smoke"]["outcome"] == "passed"
    assert user.pid == pid and len(user.history()) == 1
    assert lane["probation_lost"] is False


def test_failed_gate_rolls_back_by_itself_and_bars(operator: MakeOperator) -> None:
    user = operator(**PROBATION)
    old, pid, bystander = user.deployed, user.pid, user.bystander
    said = commit(user, "late", "--gate", "quick")
    new = user.pid
    assert new != pid
    user.wait_for(lambda: user.deployed == old, "the old launcher is back", 60)
    last = user.wait_for(
        lambda: (h := user.history())[0]["phase"] == "committed" and len(h) == 2 and h[0],
        "the rollback is over",
    )
    assert (last["kind"], last["who"]) == ("rollback", "lanectl (probation)")
    assert said.doc["switch"] in last["reason"] and "degenerate" in last["reason"]
    assert (last["from"]["profile"], last["to"]["sha256"]) == ("late", old)
    assert user.profile("late")["barred"] is True
    assert user.switch("late").code == "barred"
    lane = user.status()
    assert (lane["probation"], lane["ready"], lane["quarantined"]) == (None, True, None)
    assert user.pid not in (pid, new) and user.bystander == bystander
    assert user.words() == [w for w in user.words() if w != "--standin-mode"]


def test_new_switch_ends_it_unstable(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, probation_s=300)
    first = commit(user, "off").doc["to"]["sha256"]
    second = commit(user, "more").doc["to"]["sha256"]
    lane = user.status()
    assert (lane["sha256"], lane["stable"]) == (second, False) and lane["probation"]
    by_digest = {user.profile(name)["sha256"]: user.profile(name) for name in ("off", "more")}
    assert by_digest[first]["stable"] is False and by_digest[second]["stable"] is False


def test_quick_gate_alone_never_makes_stable(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, probation_s=0)
    said = user.switch("off", "--gate", "quick")
    assert (said.exit, said.doc["to"]["stable"]) == (0, False), said
    assert user.status()["stable"] is False
    said = user.switch("more")
    assert (said.exit, said.doc["to"]["stable"]) == (0, True), "the switch gate does"
    assert user.status()["stable"] is True


def test_could_not_tell_extends_it(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, probation_s=4, smoke={"request_timeout_s": 1})
    sha256 = commit(user, "off").doc["to"]["sha256"]
    first = user.status()["probation"]
    lane = psutil.Process(user.pid)
    lane.suspend()
    try:
        user.wait_for(lambda: (user.status()["probation"] or "") > first, "it is extended")
    finally:
        lane.resume()
    over = until_over(user)
    assert (over["stable"], over["sha256"]) == (True, sha256)
    assert len(user.history()) == 1, "nothing was rolled back"


def test_reply_of_an_orphan_speaks_for_nobody(operator: MakeOperator) -> None:
    profiles = {"shared": {"flags": {"--standin-mode": "orphans-port"}}}
    user = operator(profiles=profiles, probation_s=4, rig={"startsecs": 0, "autorestart": "false"})
    old = user.deployed
    commit(user, "shared", "--gate", "quick")
    (orphan,) = set(user.members(user.pid)) - {user.pid}
    os.kill(user.pid, signal.SIGKILL)
    user.wait_for(lambda: user.deployed == old, "what answers is not the program", 60)
    user.wait_for(lambda: user.history()[0]["phase"] == "committed", "the rollback is over")
    assert "wrong_process" in user.history()[0]["reason"]
    assert not user.living(orphan) and user.status()["ready"] is True


def test_process_that_died_in_it_proves_nothing(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, probation_s=2, rig={"startsecs": 0, "autorestart": "true"})
    commit(user, "off")
    first, pid = user.status()["probation"], user.pid
    os.kill(pid, signal.SIGKILL)
    user.wait_for(lambda: user.pid not in (0, pid), "supervisord starts it anew")
    user.wait_for(lambda: (user.status()["probation"] or "") > first, "it is extended")
    assert user.status()["stable"] is False


def test_nothing_happens_to_a_quarantined_lane(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, probation_s=3)
    commit(user, "late", "--gate", "quick")
    new, pid = user.deployed, user.pid
    assert user.run("quarantine", "demo").exit == 0
    lane = user.status()
    assert lane["quarantined"] and lane["probation"] is None
    worker = [
        p
        for p in psutil.process_iter(["cmdline", "environ"])
        if (p.info["environ"] or {}).get("LANECTL_CONFIG") == str(user.rig.config)
        and "lanectl" in (p.info["cmdline"] or ())
    ]
    user.wait_for(lambda: not any(p.is_running() for p in worker), "its watcher ends")
    assert (user.deployed, user.pid, len(user.history())) == (new, pid, 1)


def test_drift_ends_it_and_is_left_alone(operator: MakeOperator) -> None:
    user = operator(**PROBATION)
    commit(user, "off")
    edited = user.launcher.read_bytes() + b"# by hand\n"
    user.launcher.write_bytes(edited)
    lane = until_over(user)
    assert lane["stable"] is False and lane["drift"] is True
    assert user.launcher.read_bytes() == edited and len(user.history()) == 1
