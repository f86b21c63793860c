"""Every way in which the stand-in can be wrong, as the revision that is switched to.

What is bad is undone by itself and leaves the lane as it was; what is harmless is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lanectl.demo.standin_modes import MODES

if TYPE_CHECKING:
    from conftest import MakeOperator, Operator, Said

LATE = {"ready_timeout_s": 5}
"""For a lane that never gets ready; enough for the old one to come back on a loaded machine."""
PATIENT = {"ready_timeout_s": 200}
"""For one that is to be given up long before that; waiting it out would break the test's limit."""

# mode: (class, outcome, the probe that tells it, keys of the lane)
BAD: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "flood": ("degenerate", "failed", "cold", {}),
    "flood-spec-concurrent": ("degenerate", "failed", "long-", {}),
    "flood-hot": ("degenerate", "failed", "hot", {}),
    "flood-aba": ("degenerate", "failed", "prefix-a-again", {}),
    "empty-calls": ("no_tool_call", "failed", "cold", {}),
    "wrong-tool": ("wrong_tool", "failed", "cold", {}),
    "bad-arguments": ("invalid_arguments", "failed", "cold", {}),
    "leak-content": ("tool_text_leak", "failed", "cold", {}),
    "leak-reasoning": ("tool_text_leak", "failed", "cold", {}),
    # up, and its one token of readiness is refused: told early, for what it is
    "cut-stream": ("stream_aborted", "failed", "ready", PATIENT),
    "cut-clean": ("stream_aborted", "failed", "ready", PATIENT),
    "http-500-thinking": ("http_error", "failed", "ready", PATIENT),
    "html-error": ("http_error", "failed", "ready", PATIENT),
    # never ready: no token comes
    "stall": ("timed_out", "failed", "ready", {**LATE, "request_timeout_s": 2}),
    "frozen": ("timed_out", "failed", "ready", {**LATE, "request_timeout_s": 2}),
    "slow-start=60": ("timed_out", "failed", "ready", LATE),
    "lost-sigterm=60": ("timed_out", "failed", "ready", {**LATE, "stop_timeout_s": 1}),
    # dead
    "crash-start": ("unreachable", "failed", "start", PATIENT),
    "crash-after=1": ("unreachable", "failed", "start", {"min_uptime_s": 8}),
    "crash-2s": ("unreachable", "failed", "start", {"min_uptime_s": 8}),
    # could not tell: speaks against the probe or somebody else, so nothing is barred
    "budget": ("budget_exhausted", "error", "cold", {}),
    "unauthorized": ("client_error", "error", "models", {}),
    "fatal-log": ("unreachable", "error", "start", PATIENT),
}
HARMLESS = [
    "good",
    "null-args",
    "old-reasoning-field",
    "no-cache-counter",
    "no-metrics",
    "busy",
    "slow-tokens=0.01",
    "slow-start=1",
    "budget=300",
    "lost-sigterm=1",
    "sigterm-ignored",
    "orphans",
]


def called(name: str) -> str:
    return "m-" + name.replace("=", "_")


PROFILES = {
    called(name): {"flags": {"--standin-mode": name}} for name in [*BAD, *HARMLESS, "orphans-port"]
}
DEFAULTS = {"ready_timeout_s": 20, "stop_timeout_s": 5, "min_uptime_s": 0}


def ask(operator: Operator, name: str, *words: str, **keys: Any) -> Said:
    smoke = {"request_timeout_s": keys.pop("request_timeout_s", 10)}
    operator.configure(PROFILES, smoke=smoke, **{**DEFAULTS, **keys})
    return operator.switch(called(name), *words)


def test_every_mode_has_a_case() -> None:
    cases = {name.partition("=")[0] for name in [*BAD, *HARMLESS, "orphans-port"]}
    assert cases == set(MODES)


@pytest.mark.parametrize("name", BAD)
def test_bad_revision_is_undone(shared: MakeOperator, name: str) -> None:
    cls, outcome, probe, keys = BAD[name]
    operator = shared(profiles=PROFILES)
    old, pid, bystander = operator.deployed, operator.pid, operator.bystander
    text = operator.launcher.read_bytes()

    said = ask(operator, name, **keys)

    assert (said.exit, said.doc["phase"]) == (4, "rolled-back"), said
    assert [e["phase"] for e in said.doc["events"]][-4:] == [
        "reverting",
        "restoring",
        "confirming",
        "rolled-back",
    ]
    verdict = said.doc["verdict"]
    assert (verdict["class"], verdict["outcome"]) == (cls, outcome), said
    told = [p for p in verdict["probes"] if p["outcome"] == outcome]
    assert told and all(p["name"].startswith(probe) and p["class"] == cls for p in told), said
    assert said.doc["confirmation"]["outcome"] == "passed"
    # The old revision serves, in a process that was started after the bad one.
    assert operator.launcher.read_bytes() == text and said.doc["from"]["sha256"] == old
    assert operator.pid not in (pid, 0) and not operator.living(pid)
    assert said.doc["receipt"]["program"]["after"]["pid"] == operator.pid
    assert not any("--standin-mode" in word for word in operator.words())
    assert operator.members(operator.pid) == [operator.pid], "nothing of the bad one lives on"
    assert operator.bystander == bystander and said.doc["receipt"]["others_untouched"] is True
    lane = operator.status()
    assert (lane["quarantined"], lane["unfinished"], lane["ready"]) == (None, None, True)
    assert (lane["sha256"], lane["drift"], operator.litter) == (old, False, [])
    barred = operator.profile(called(name))["barred"]
    assert barred is (outcome == "failed"), "only a failed verdict bars"


@pytest.mark.parametrize("name", ["crash-start", "fatal-log", "crash-after=1"])
def test_why_it_died_is_told(shared: MakeOperator, name: str) -> None:
    causes = {
        "crash-start": "exceeds available Mamba cache blocks",
        "fatal-log": "is less than desired GPU memory utilization",
        "crash-after=1": "CUDA error: an illegal memory access",
    }
    operator = shared(profiles=PROFILES)
    said = ask(operator, name, "--barred-ok", **BAD[name][3])
    assert said.exit == 4, said
    (failed,) = [e for e in said.doc["events"] if e["outcome"] == "failed"]
    assert causes[name] in said.doc["reason"] and causes[name] in failed["log"]
    assert causes[name] in said.err, "the person at the terminal is told as well"
    assert len(failed["log"].splitlines()) <= 40
    assert failed["phase"] in ("restarting", "verifying")


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_revision_is_committed(operator: MakeOperator, name: str) -> None:
    user = operator(profiles=PROFILES)
    pid, bystander = user.pid, user.bystander
    said = ask(user, name)
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert said.doc["verdict"]["outcome"] == "passed", said
    assert user.deployed == said.doc["to"]["sha256"] != said.doc["from"]["sha256"]
    assert user.pid != pid and not user.living(pid)
    words = user.words()
    assert words[words.index("--standin-mode") + 1] == name
    assert user.bystander == bystander and said.doc["receipt"]["others_untouched"] is True
    assert said.doc["receipt"]["foreign_load"] == {"busy": 3.0, "no-metrics": None}.get(name, 0.0)


def test_two_processes_of_one_tree_may_share_the_port(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    # Each of the two has a cache of its own, so the hot probe of the switch gate proves nothing.
    said = ask(user, "orphans-port", "--gate", "quick")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert len(user.members(user.pid)) == 2


def test_without_gauges_only_a_cut_goes_on(operator: MakeOperator) -> None:
    user = operator(
        launcher=lambda rig: rig.launcher_text(mode="no-metrics"),
        profiles={"good": {"flags": {"--standin-mode": "good"}}},
        drain_timeout_s=1,
    )
    old, pid = user.deployed, user.pid
    said = user.switch("good")
    assert (said.exit, said.doc["phase"], user.deployed, user.pid) == (3, "aborted", old, pid), said
    assert "/metrics" in said.doc["reason"] and "--cut" in said.doc["reason"]
    said = user.switch("good", "--cut")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert said.doc["receipt"]["requests_cut"] is None, "unknown, not 0"
