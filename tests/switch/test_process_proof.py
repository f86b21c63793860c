"""The process that answers must be the process that was started; nothing else is ever ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil

from lanectl.demo.rig import Rig

if TYPE_CHECKING:
    from conftest import MakeOperator, Operator

Spawn = Callable[..., subprocess.Popen[bytes]]

GOOD = {"flags": {"--standin-mode": "good"}}
OFF = {"speculative": False}
LISTEN = """
import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("127.0.0.1", int(sys.argv[1])))
s.listen()
print("listening", flush=True)
time.sleep(1000)
"""


def base(mode: str) -> Callable[[Rig], str]:
    return lambda rig: rig.launcher_text(mode=mode)


def listeners(port: int) -> set[int]:
    """Who listens on the port, by the kernel."""
    return {
        c.pid
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == port and c.pid
    }


def decoy(user: Operator, spawn: Spawn) -> subprocess.Popen[bytes]:
    """A process of somebody else with the lane's very words, but another port."""
    words = user.words()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        words[words.index("--port") + 1] = str(free.getsockname()[1])
    return spawn(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# ----------------------------------------------------------------------------- the old one's end


def test_launcher_without_exec_under_supervisords_defaults(
    operator: MakeOperator, spawn: Spawn
) -> None:
    # Field note 19: `stop` says stopped, the server lives on and answers for the new launcher.
    user = operator(
        profiles={"off": OFF},
        rig={"exec_launcher": False, "stopasgroup": False, "killasgroup": False, "startsecs": 0},
    )
    shell = user.pid
    (server,) = listeners(user.rig.port)
    assert server != shell, "the server is a child of the launcher's shell"
    other = spawn("sleep", "1000")
    said = user.switch("off")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert not user.living(shell) and not user.living(server)
    (now,) = listeners(user.rig.port)
    assert os.getpgid(now) == user.pid != shell
    assert "--speculative-config" not in user.words(now)
    assert said.doc["receipt"]["command"] == user.words(now), "the server's words, not the shell's"
    assert other.poll() is None


def test_engine_that_outlives_the_server_is_ended_with_its_group(
    operator: MakeOperator, spawn: Spawn
) -> None:
    user = operator(launcher=base("orphans"), profiles={"good": GOOD}, stop_timeout_s=1)
    old = user.pid
    (engine,) = set(user.members(old)) - {old}
    other = decoy(user, spawn)
    said = user.switch("good")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert said.doc["receipt"]["stop"]["killed"] == [engine]
    assert not user.living(engine) and not user.living(old)
    assert other.poll() is None, "the same words are no proof of anything"


def test_orphan_of_an_earlier_start_is_proven_by_its_group_and_ended(
    operator: MakeOperator, spawn: Spawn
) -> None:
    user = operator(launcher=base("orphans"), profiles={"good": GOOD}, stop_timeout_s=2)
    first = user.pid
    (orphan,) = set(user.members(first)) - {first}
    other = decoy(user, spawn)
    os.kill(first, signal.SIGKILL)
    user.wait_for(lambda: user.pid not in (0, first), "supervisord starts it anew")
    user.until_ready()
    said = user.switch("good", "--gate", "quick")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert said.doc["receipt"]["stop"]["orphans"] == [orphan]
    assert not user.living(orphan) and other.poll() is None
    assert user.members(user.pid) == [user.pid]


def test_orphan_that_shares_the_port_answers_for_nobody(operator: MakeOperator) -> None:
    user = operator(launcher=base("orphans-port"), profiles={"good": GOOD}, stop_timeout_s=2)
    first = user.pid
    (orphan,) = set(user.members(first)) - {first}
    os.kill(first, signal.SIGKILL)
    user.wait_for(lambda: user.pid not in (0, first), "supervisord starts it anew")
    user.wait_for(lambda: len(listeners(user.rig.port)) == 3, "both and the orphan listen")
    assert user.state == "RUNNING" and orphan in listeners(user.rig.port)

    smoke = user.run("smoke", "demo")
    assert (smoke.exit, smoke.doc["class"]) == (6, "wrong_process"), smoke
    assert str(orphan) in smoke.doc["probes"][0]["detail"]

    said = user.switch("good")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    before = said.doc["receipt"]["program"]["before"]
    assert before["verdict"]["class"] == "wrong_process"
    assert orphan in said.doc["receipt"]["stop"]["orphans"]
    assert listeners(user.rig.port) == {user.pid} and not user.living(orphan)


def test_server_that_ignores_sigterm_is_killed_after_the_stop_limit(
    operator: MakeOperator, spawn: Spawn
) -> None:
    # supervisord itself would wait for ten seconds more.
    user = operator(
        launcher=base("sigterm-ignored"),
        profiles={"good": GOOD},
        stop_timeout_s=1,
        rig={"startsecs": 0, "stopwaitsecs": 60},
    )
    old = user.pid
    other = decoy(user, spawn)
    said = user.switch("good")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert said.doc["receipt"]["stop"]["killed"] == [old] and not user.living(old)
    assert said.doc["receipt"]["timings"]["restarting"] < 30
    assert other.poll() is None and user.state == "RUNNING"


def test_server_that_loses_sigterm_while_starting_never_comes_up(operator: MakeOperator) -> None:
    user = operator(
        launcher=base("lost-sigterm=500"), profiles={"good": GOOD}, ready=False, stop_timeout_s=100
    )
    old = user.pid
    said = user.switch("good")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    # It has no requests to finish, so the stop limit is not waited out for it.
    assert said.doc["receipt"]["stop"]["starting"] is True
    assert said.doc["receipt"]["stop"]["killed"] == [old]
    assert said.doc["receipt"]["timings"]["restarting"] < 60
    assert not user.living(old) and listeners(user.rig.port) == {user.pid}


def test_child_that_left_the_group_is_named_and_not_killed(operator: MakeOperator) -> None:
    def launcher(rig: Rig) -> str:
        return rig.launcher_text().replace("\nexec", "\nsetsid sleep 1000 &\nexec", 1)

    user = operator(launcher=launcher, profiles={"off": OFF}, stop_timeout_s=1)
    old, text = user.pid, user.launcher.read_bytes()
    away = user.wait_for(
        lambda: [c.pid for c in psutil.Process(old).children() if os.getpgid(c.pid) == c.pid],
        "the child has a group of its own",
    )[0]
    said = user.switch("off")
    assert said.exit in (4, 5), said
    assert f"{away} (sleep" in said.doc["reason"] and "process group" in said.doc["reason"]
    assert user.living(away), "not proven to be ours, so not ours to end"
    assert user.launcher.read_bytes() == text and not user.living(old)
    os.kill(away, signal.SIGKILL)


# ------------------------------------------------------------------------------- the new one's life


def test_crash_loop_of_supervisord_is_not_taken_for_a_start(operator: MakeOperator) -> None:
    # Field note 20: it dies again and again, RUNNING each time; only pid and start time tell.
    user = operator(
        profiles={"loop": {"flags": {"--standin-mode": "crash-after=1"}}},
        min_uptime_s=6,
        rig={"startsecs": 0, "autorestart": "true"},
    )
    old = user.deployed
    said = user.switch("loop", "--gate", "quick")
    assert (said.exit, said.doc["phase"]) == (4, "rolled-back"), said
    assert said.doc["verdict"]["outcome"] == "failed" and "ended" in said.doc["reason"]
    assert user.deployed == old and user.state == "RUNNING"
    assert user.pid == said.doc["receipt"]["program"]["after"]["pid"]


def test_min_uptime_is_waited_out_before_a_commit(operator: MakeOperator) -> None:
    user = operator(profiles={"off": OFF}, min_uptime_s=4)
    said = user.switch("off", "--gate", "quick")
    assert said.exit == 0, said
    verifying, committed = said.doc["events"][-2:]
    assert (verifying["phase"], committed["phase"]) == ("verifying", "committed")
    up = user.rig.program()["now"] - user.rig.program()["start"]
    assert up >= 3 and verifying["elapsed_s"] + said.doc["receipt"]["timings"]["restarting"] > 3


def test_dead_launcher_is_noticed_at_once(operator: MakeOperator) -> None:
    user = operator(
        profiles={"dead": {"flags": {"--standin-mode": "crash-start"}}},
        ready_timeout_s=100,
        stop_timeout_s=100,
    )
    said = user.switch("dead")
    assert (said.exit, said.doc["phase"]) == (4, "rolled-back"), said
    phases = [(e["phase"], e["outcome"]) for e in said.doc["events"]]
    assert phases[3:] in (
        [
            ("restarting", start),
            *([("verifying", "failed")] if start == "ok" else []),
            ("reverting", "ok"),
            ("restoring", "ok"),
            ("confirming", "ok"),
            ("rolled-back", None),
        ]
        for start in ("ok", "failed")
    )
    assert sum(said.doc["receipt"]["timings"].values()) < 60, "no deadline was waited out"
    assert "Mamba cache blocks" in said.doc["reason"]


def test_bystander_that_restarts_meanwhile_is_named_and_fails_nothing(
    operator: MakeOperator,
) -> None:
    user = operator(profiles={"slow": {"flags": {"--standin-mode": "slow-start=3"}}})
    pid, bystander = user.pid, user.bystander
    command = user.begin("switch", "demo", "slow")
    user.wait_for(lambda: user.pid not in (0, pid), "the new one was started")
    user.supervisord("stopProcess", "bystander")
    user.supervisord("startProcess", "bystander")
    assert user.bystander[0] != bystander[0]
    said = user.end(command)
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert said.doc["receipt"]["others_untouched"] is False
    assert said.doc["receipt"]["others_changed"] == ["bystander"]
    plain = user.rig.run("history", "demo")
    assert plain.returncode == 0


# --------------------------------------------------------------------------- strangers on the port


def stranger(user: Operator, spawn: Spawn) -> subprocess.Popen[bytes]:
    process = spawn(sys.executable, "-c", LISTEN, str(user.rig.port), stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"listening\n"
    return process


def test_stranger_beside_the_lane_refuses_a_switch(operator: MakeOperator, spawn: Spawn) -> None:
    user = operator(
        launcher=lambda rig: rig.launcher_text(flags=("--standin-mode orphans-port",)),
        profiles={"good": GOOD},
    )
    other = stranger(user, spawn)
    old, pid = user.deployed, user.pid
    said = user.switch("good")
    assert (said.exit, said.doc["phase"]) == (3, "aborted"), said
    assert str(other.pid) in said.doc["reason"]
    assert (user.deployed, user.pid) == (old, pid) and other.poll() is None
    assert user.backups == [], "a refusal leaves no backup"
    assert user.status()["quarantined"] is None


def test_stranger_where_the_lane_is_down_refuses_a_switch(
    operator: MakeOperator, spawn: Spawn
) -> None:
    user = operator(profiles={"off": OFF})
    user.stop_program()
    other = stranger(user, spawn)
    old = user.deployed
    said = user.switch("off")
    assert (said.exit, said.doc["phase"]) == (3, "aborted"), said
    assert str(other.pid) in said.doc["reason"] and other.poll() is None
    assert (user.deployed, user.state, user.backups) == (old, "STOPPED", [])


def test_stranger_that_the_new_launcher_lets_loose(operator: MakeOperator) -> None:
    def script(user: Operator) -> str:
        text = user.rig.launcher_text(speculative=None, mode="slow-start=3")
        away = f"(setsid {sys.executable} -c '{LISTEN}' {user.rig.port} >/dev/null 2>&1 &)\n"
        return text.replace("\nexec", f"\n{away}sleep 0.5\nexec", 1)

    user = operator(profiles={})
    file = user.rig.folder / "loose.sh"
    file.write_text(script(user))
    user.configure({"loose": {"script": str(file)}})
    old = user.deployed
    said = user.switch("loose", "--gate", "quick")
    loose = listeners(user.rig.port)
    assert said.exit == 5 and said.doc["phase"] == "degraded", said
    assert all(str(pid) in said.doc["reason"] for pid in loose) and loose
    assert user.deployed == old and user.status()["quarantined"]
    assert said.doc["verdict"]["class"] in ("wrong_process", "unreachable")
    for pid in loose:
        os.kill(pid, signal.SIGKILL)
    user.wait_for(lambda: not listeners(user.rig.port), "the port is free")
    said = user.run("restart", "demo")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
