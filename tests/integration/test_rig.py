"""The rig gives a real supervisord with a stand-in lane, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
import xmlrpc.client
from collections.abc import Callable
from pathlib import Path

import pytest

from lanectl.demo import sessions
from lanectl.demo.rig import INET_PASSWORD, INET_USER, ROOT, Rig


def wait_for(what: Callable[[], bool], seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.01)


def live(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_start_and_stop_leave_nothing() -> None:
    with Rig(startsecs=0) as rig:
        rig.wait_listening()
        folder, port, alive = rig.folder, rig.port, rig.alive()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(alive) == 3, "supervisord, the lane, the bystander"
        lane, bystander = rig.program(), rig.program("bystander")
        assert (lane["statename"], lane["pid"] in alive) == ("RUNNING", True)
        assert bystander["pid"] in alive
        assert os.getpgid(lane["pid"]) == lane["pid"], "a group of its own"
    assert not any(map(live, alive))
    assert not folder.exists()
    assert not listens(port)
    rig.stop()


def test_lane_looks_like_vllm_in_proc_and_says_what_it_is_in_its_log() -> None:
    with Rig() as rig:
        rig.wait_listening()
        words = Path(f"/proc/{rig.program()['pid']}/cmdline").read_text().split("\0")
        assert [Path(word).name for word in words[:3]] == ["python", "vllm", "serve"]
        assert words[words.index("--port") + 1] == str(rig.port)
        assert rig.lane_log.read_text().startswith("STAND-IN, not vLLM")


def test_two_rigs_side_by_side(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as one, Rig(tmp_path / "b") as two:
        one.wait_listening()
        two.wait_listening()
        assert one.port != two.port and one.socket != two.socket
        one.stop()
        assert len(two.alive()) == 3 and listens(two.port)
        assert one.folder.exists(), "a folder that was given stays"


def test_restart_by_rpc_starts_the_launcher_of_now() -> None:
    with Rig(startsecs=0) as rig:
        rig.wait_listening()
        before = rig.program()["pid"]
        rig.write_launcher(
            rig.launcher_text(speculative=None, flags=("--max-num-batched-tokens 9",))
        )
        with rig.rpc() as supervisord:
            supervisord.supervisor.stopProcess("lane")
            supervisord.supervisor.startProcess("lane")
        rig.wait_listening()
        command = Path(f"/proc/{rig.program()['pid']}/cmdline").read_text()
        assert rig.program()["pid"] != before
        assert "--max-num-batched-tokens" in command and "--speculative-config" not in command


def test_stop_ends_an_orphan_whose_parent_is_gone() -> None:
    with Rig(env={"STANDIN_MODE": "orphans-port"}, startsecs=0, autorestart="false") as rig:
        rig.wait_listening()
        server = rig.program()["pid"]
        engine = next(p for p in rig.alive() if p != server and os.getpgid(p) == server)
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: rig.program()["statename"] == "EXITED")
        parent = int(Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent not in (server, rig.pid), "it has gone to init, or to a subreaper"
        os.kill(engine, signal.SIGTERM)
        time.sleep(0.1)
        assert live(engine) and listens(rig.port)
    assert not live(engine)
    assert not listens(rig.port)


def test_launcher_without_exec_loses_the_server_with_supervisords_defaults() -> None:
    with Rig(exec_launcher=False, stopasgroup=False, killasgroup=False) as rig:
        rig.wait_listening()
        with rig.rpc() as supervisord:
            supervisord.supervisor.stopProcess("lane")
        assert rig.program()["statename"] == "STOPPED"
        assert listens(rig.port), "field note 19: it lives on and keeps the port"
    assert not listens(rig.port)


def test_options_reach_supervisord() -> None:
    with Rig(startsecs=7, autorestart="false", stopasgroup=False, killasgroup=False) as rig:
        with rig.rpc() as supervisord:
            answer = supervisord.supervisor.getAllConfigInfo()
        assert isinstance(answer, list)
        lane = next(info for info in answer if info["name"] == "lane")
        assert (lane["startsecs"], lane["killasgroup"]) == (7, False)
        assert rig.program()["statename"] == "STARTING"


def test_loopback_port_with_a_password(tmp_path: Path) -> None:
    with Rig(tmp_path, inet=True) as rig:
        lane = tomllib.loads(rig.config.read_text())["lanes"]["demo"]
        assert lane["supervisor"] == rig.supervisor and lane["supervisor_user"] == INET_USER
        assert Path(lane["supervisor_password_file"]).read_text().strip() == INET_PASSWORD
        bare = rig.supervisor.removeprefix("http://")
        with xmlrpc.client.ServerProxy(f"http://{INET_USER}:{INET_PASSWORD}@{bare}") as allowed:
            assert allowed.supervisor.getState()
        with (
            xmlrpc.client.ServerProxy(f"http://{bare}") as stranger,
            pytest.raises(xmlrpc.client.ProtocolError),
        ):
            stranger.supervisor.getState()


def test_long_folder_with_a_space(tmp_path: Path) -> None:
    folder = tmp_path / ("a long name " * 12 + "end")
    with Rig(folder) as rig:
        rig.wait_listening()
        assert rig.launcher.parent == folder
        assert len(str(rig.socket)) < 90
        short = rig.socket.parent
    assert not short.exists() and folder.exists()


def test_config_is_what_lanectl_reads() -> None:
    rig = Rig()
    rig.write_config(
        profiles={"flooded": {"flags": {"--standin-mode": "flood", "--seed": False}}},
        smoke={"gate": "quick"},
        extra='[notify]\nurl = "x"\n',
        min_uptime_s=3,
        drain_timeout_s=None,
    )
    found = tomllib.loads(rig.config.read_text())
    rig.stop()
    lane = found["lanes"]["demo"]
    assert found["store"]["url"] == f"sqlite:///{rig.folder}/lanectl.db"
    assert lane["min_uptime_s"] == 3 and "drain_timeout_s" not in lane
    assert lane["smoke"]["gate"] == "quick" and lane["smoke"]["concurrency"] == 4
    assert lane["profiles"] == {"flooded": {"flags": {"--standin-mode": "flood", "--seed": False}}}
    assert found["notify"] == {"url": "x"}


OWNER = """
import sys, time
from lanectl.demo.rig import Rig
rig = Rig().start()
rig.wait_listening()
if {keep}:
    rig.keep()
print(rig.pid, *rig.alive(), rig.folder, flush=True)
if not {keep}:
    time.sleep(60)
"""


def owner(*, keep: bool) -> tuple[subprocess.Popen[str], list[int], Path]:
    """A process of its own with a rig; its supervisord and other processes, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(keep=keep)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    *pids, folder = process.stdout.readline().split()
    return process, [int(pid) for pid in pids], Path(folder)


def test_killed_owner_leaves_nothing() -> None:
    process, pids, folder = owner(keep=False)
    assert all(map(live, pids))
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(live, pids)))
    wait_for(lambda: not folder.exists())


def test_kept_rig_outlives_its_owner() -> None:
    process, pids, folder = owner(keep=True)
    process.communicate(timeout=10)
    try:
        time.sleep(0.3)
        assert all(map(live, pids)) and folder.exists()
    finally:
        assert sessions.end(pids[0], sessions.started(pids[0])) == []
        subprocess.run(["rm", "-r", str(folder)], check=True)


def test_failure_to_start_says_why(tmp_path: Path) -> None:
    rig = Rig(tmp_path, startsecs="soon")
    with pytest.raises(RuntimeError, match="'soon' in section 'program:lane'"):
        rig.start()
    assert rig.alive() == []
