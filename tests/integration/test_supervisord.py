"""The supervisord adapter against a real supervisord, and against servers that are none."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import xmlrpc.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lanectl.adapters import procfs, supervisord_conf, supervisord_wire
from lanectl.adapters.supervisord import Supervisord
from lanectl.errors import ConfigError, EffectFailed, Unreachable

CONF = """
    [unix_http_server]
    file=%(here)s/s.sock
    [inet_http_server]
    port=127.0.0.1:{port}
    username=lane
    password=p:ss wörd
    [supervisord]
    logfile=%(here)s/supervisord.log
    pidfile=%(here)s/supervisord.pid
    childlogdir=%(here)s
    nodaemon=true
    environment=COMMON="a,b",WHO=all
    [rpcinterface:supervisor]
    supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
    [include]
    files = more/*.conf

    [program:web]
    command=sh -c "echo out; echo err >&2; exec sleep 1000"
    stdout_logfile=%(here)s/web.out
    stderr_logfile=%(here)s/web.err
    stopasgroup=true
    autorestart=true
    startsecs=0
    environment=WHO="web on %(ENV_COMMON)s"
    [program:crash]
    command=sh -c "sleep 0.2; exit 0"
    autostart=false
    startsecs=5
    startretries=1000
    [program:missing]
    command=/no/such/launcher.sh
    autostart=false
    [program:norun]
    command=%(here)s/norun.sh
    autostart=false
    [program:stubborn]
    command=sh -c "trap '' TERM; echo ready; while :; do sleep 1000; done"
    stdout_logfile=%(here)s/stubborn.out
    stopwaitsecs=600
    killasgroup=true
    startsecs=0
    [program:worker]
    command=sleep 1000
    process_name=%(program_name)s_%(process_num)02d
    numprocs=2
    [group:pack]
    programs=alpha
    [program:alpha]
    command=sleep 1000
    redirect_stderr=true
"""
INCLUDED = """
    [program:extra]
    command=sleep 1000
    directory=%(here)s
    environment=HERE="%(here)s"
    autostart=false
    autorestart=false
    killasgroup=true
    startsecs=3
    stopwaitsecs=7
    stopsignal=INT
"""


class Running:
    """One real supervisord in its own folder, and the way to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/s.sock"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        (folder / "more").mkdir()
        (folder / "norun.sh").write_text("#!/bin/sh\n")
        (folder / "lanes.conf").write_text(textwrap.dedent(CONF).format(port=self.port))
        (folder / "more" / "extra.conf").write_text(textwrap.dedent(INCLUDED))
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "supervisor.supervisord", "-c", "lanes.conf"],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: self.client().pid() == self.process.pid)

    def client(self, **options: float) -> Supervisord:
        return Supervisord(self.url, **options)  # type: ignore[arg-type]

    def children(self) -> list[int]:
        mine = self.process.pid
        return [process.pid for process in procfs.processes() if process.ppid == mine]

    def end(self) -> None:
        children = self.children()
        self.process.kill()
        self.process.wait()
        for pid in children:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(Unreachable):
            if holds():
                return
        time.sleep(0.02)
    raise AssertionError("not in time")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    one = Running(tmp_path_factory.mktemp("sv"))
    yield one
    one.end()


@pytest.fixture
def client(running: Running) -> Iterator[Supervisord]:
    one = running.client()
    yield one
    one.close()


def pid_of(client: Supervisord, name: str) -> int:
    pid = client.program(name).pid
    assert pid is not None
    return pid


# ----------------------------------------------------------------------------------------- looking


def test_version_and_pid(running: Running, client: Supervisord) -> None:
    assert client.version().startswith("4.")
    assert client.pid() == running.process.pid


def test_programs_and_their_full_names(client: Supervisord) -> None:
    programs = {program.full_name: program for program in client.programs()}
    assert set(programs) == {
        *("web", "crash", "missing", "norun", "stubborn", "extra"),
        *("worker:worker_00", "worker:worker_01", "pack:alpha"),
    }
    web = programs["web"]
    assert web.state == "RUNNING" and web.pid is not None and web.started is not None
    assert abs(time.time() - web.started) < 120
    missing = programs["missing"]
    assert (missing.state, missing.pid, missing.started, missing.stopped) == (
        "STOPPED",
        None,
        None,
        None,
    )
    for full_name, program in programs.items():
        assert client.program(full_name).pid == program.pid
    assert client.program("web:web") == client.program("web")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("worker_01", "worker:worker_01"),
        ("alpha", "pack:alpha"),
        ("worker", "worker:worker_00, worker:worker_01"),
        ("wbe", "web"),
        ("pack:alpah", "pack:alpha"),
    ],
)
@pytest.mark.parametrize("method", ["program", "settings", "stop", "start", "log_tail"])
def test_unknown_name_lists_the_near_ones(
    client: Supervisord, method: str, name: str, near: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(client, method)(name)
    assert f"has no program '{name}'; near: {near}" in caught.value.message
    assert caught.value.next_step == f"set program to one of: {near}"


def test_unknown_name_unlike_any_lists_all(client: Supervisord) -> None:
    with pytest.raises(ConfigError) as caught:
        client.program("zzzzzz")
    assert "near" not in caught.value.message
    assert "pack:alpha" in caught.value.next_step and "web" in caught.value.next_step


@pytest.mark.parametrize("name", ["worker:*", "worker:", "*", ""])
@pytest.mark.parametrize("method", ["program", "stop", "start", "clear_logs"])
def test_several_programs_at_once_are_refused(client: Supervisord, method: str, name: str) -> None:
    before = {program.full_name: program.pid for program in client.programs()}
    with pytest.raises(ConfigError, match="does not name one program"):
        getattr(client, method)(name)
    assert {program.full_name: program.pid for program in client.programs()} == before


def test_settings(running: Running, client: Supervisord) -> None:
    web = client.settings("web")
    assert web.command.startswith("sh -c") and web.directory == ""
    assert (web.stop_as_group, web.kill_as_group, web.auto_restart) == (True, True, "true")
    assert (web.start_secs, web.stop_wait_secs, web.stop_signal) == (0.0, 10.0, signal.SIGTERM)
    assert (web.auto_start, web.redirect_stderr) == (True, False)
    assert web.stdout_log == str(running.folder / "web.out")
    assert web.environment == {"COMMON": "a,b", "WHO": "web on a,b"}


def test_settings_from_an_included_file_a_group_and_a_numbered_program(
    running: Running, client: Supervisord
) -> None:
    extra = client.settings("extra")
    assert (extra.stop_as_group, extra.kill_as_group, extra.auto_restart) == (False, True, "false")
    assert (extra.start_secs, extra.stop_wait_secs, extra.stop_signal) == (3.0, 7.0, signal.SIGINT)
    assert (extra.directory, extra.auto_start) == (str(running.folder / "more"), False)
    assert extra.environment is not None
    assert extra.environment["HERE"] == str(running.folder / "more")
    alpha = client.settings("pack:alpha")
    assert (alpha.stop_as_group, alpha.auto_restart) == (False, "unexpected")
    assert (alpha.redirect_stderr, alpha.stderr_log) == (True, "")
    assert client.settings("worker:worker_01").environment == {"COMMON": "a,b", "WHO": "all"}


def test_settings_without_the_file_are_unknown_not_false(running: Running) -> None:
    apart = Supervisord(running.url, read_conf=False)
    web = apart.settings("web")
    assert (web.stop_as_group, web.kill_as_group) == (None, True)
    assert (web.auto_restart, web.environment) == (None, None)
    # Without killasgroup there can be no stopasgroup: supervisord would not have started.
    assert apart.settings("pack:alpha").stop_as_group is False


def test_file_edited_since_supervisord_read_it_proves_nothing(
    running: Running, client: Supervisord
) -> None:
    extra = running.folder / "more" / "extra.conf"
    before = extra.read_text()
    try:
        extra.write_text(before.replace("killasgroup=true", "").replace("startsecs", "x"))
        assert client.settings("extra").auto_restart is None
        extra.write_text("no section at all")
        assert client.settings("extra").kill_as_group is True
    finally:
        extra.write_text(before)


def test_configuration_file_of_what_is_no_supervisord() -> None:
    assert supervisord_conf.configuration_file(os.getpid()) is None
    assert supervisord_conf.read_settings(os.getpid(), "web", "web") is None
    assert supervisord_conf.read_settings(2**22, "web", "web") is None


# -------------------------------------------------------------------------------------------- logs


def test_log_tail_holds_both_ends(client: Supervisord) -> None:
    until(lambda: client.log_tail("web") == "out\nerr")


@pytest.mark.parametrize(
    ("logged", "tail"),
    [
        (b"\x1b[1mbold\x1b[0m <&>\n", "?[1mbold?[0m <&>"),
        (("█" * 400 + "end\n").encode(), "█" * 33 + "end"),
        (b"\xff" + b"x" * 500 + b"\n", "x" * 103),
        (b"first\n" + b"\xff" * 80 + b"last\n", ""),
        (b"", ""),
    ],
)
def test_log_tail_of_awkward_bytes(
    running: Running, client: Supervisord, logged: bytes, tail: str
) -> None:
    """Colours break XML, a cut through a character breaks supervisord: neither may break us."""
    log = running.folder / "stubborn.out"
    log.write_bytes(logged)
    assert client.log_tail("stubborn", max_bytes=104) == tail


def test_unlinked_log_reads_as_empty_and_comes_back_without_a_restart(
    running: Running, client: Supervisord
) -> None:
    log = running.folder / "web.out"
    pid = pid_of(client, "web")
    log.unlink()
    (running.folder / "web.err").unlink()
    assert client.log_tail("web") == ""
    client.clear_logs("web")
    assert log.exists() and pid_of(client, "web") == pid


# ----------------------------------------------------------------------------------- start and stop


def test_stop_and_start_give_a_new_pid(client: Supervisord) -> None:
    before = pid_of(client, "web")
    with pytest.raises(EffectFailed, match="started already"):
        client.start("web")
    client.stop("web")
    until(lambda: client.program("web").state == "STOPPED")
    client.stop("web")
    client.start("web")
    assert pid_of(client, "web") != before
    assert client.program("worker:worker_00").state in ("STARTING", "RUNNING")


def test_backoff_is_started_already(client: Supervisord) -> None:
    client.start("crash")
    until(lambda: client.program("crash").state == "BACKOFF")
    assert client.program("crash").pid is None
    with pytest.raises(EffectFailed, match=r"started already .*Exited too quickly.*fault 60"):
        client.start("crash")
    client.stop("crash")
    until(lambda: client.program("crash").state == "STOPPED")


def test_command_that_is_missing_or_has_no_run_bit(client: Supervisord) -> None:
    with pytest.raises(EffectFailed, match=r"command does not exist.*/no/such.*fault 20"):
        client.start("missing")
    with pytest.raises(EffectFailed, match=r"may not be executed.*fault 21") as caught:
        client.start("norun")
    assert caught.value.next_step == "chmod +x the launcher"


def test_stopping_for_ever_holds_nobody_up(client: Supervisord) -> None:
    pid = pid_of(client, "stubborn")
    before = time.monotonic()
    client.stop("stubborn")
    client.stop("stubborn")
    assert time.monotonic() - before < 1
    assert client.program("stubborn").state == "STOPPING"
    # supervisord says yes and starts nothing, or says no: never a new pid (field note 21).
    with suppress(EffectFailed):
        client.start("stubborn")
    assert client.program("stubborn").pid == pid
    os.killpg(pid, signal.SIGKILL)
    until(lambda: client.program("stubborn").pid != pid)


# ------------------------------------------------------------------------------------- reachability


def test_over_tcp_with_user_and_password(running: Running, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("p:ss wörd\n")
    url = f"http://127.0.0.1:{running.port}"
    tcp = Supervisord(url, user="lane", password_file=str(password))
    assert tcp.pid() == running.process.pid
    assert tcp.settings("web").stop_as_group is True
    password.write_text("other")
    with pytest.raises(Unreachable, match=r"another user or password \(HTTP 401\)") as caught:
        Supervisord(url, user="lane", password_file=str(password)).pid()
    assert "supervisor_password_file" in caught.value.next_step
    with pytest.raises(Unreachable, match="HTTP 401"):
        Supervisord(url).pid()
    with pytest.raises(ConfigError, match="supervisor_password_file: cannot read"):
        Supervisord(url, user="lane", password_file=str(tmp_path / "none")).pid()


@pytest.mark.parametrize("url", ["s.sock", "unix://", "http://", "https://host:9001", "ftp://h"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="neither"):
        Supervisord(url)


def test_one_connection_serves_many_calls(running: Running) -> None:
    client = running.client()

    def sockets() -> int:
        links = Path(f"/proc/{running.process.pid}/fd").iterdir()
        return sum(1 for link in links if str(link.readlink()).startswith("socket:"))

    client.pid()
    before = sockets()
    for _ in range(10):
        client.programs()
    assert sockets() == before
    client.close()


def test_stopped_supervisord_is_unreachable_in_time(running: Running) -> None:
    client = running.client(timeout_s=0.5)
    client.pid()
    os.kill(running.process.pid, signal.SIGSTOP)
    try:
        for caller in (client, client, running.client(timeout_s=0.5)):
            before = time.monotonic()
            with pytest.raises(Unreachable, match=r"did not answer within 0\.5 s") as caught:
                caller.programs()
            assert running.url in caught.value.message
            assert 0.4 < time.monotonic() - before < 1.5
    finally:
        os.kill(running.process.pid, signal.SIGCONT)
    # The late answer to the call that was given up must not be taken for that of the next one.
    until(lambda: client.pid() == running.process.pid)
    assert client.version().startswith("4.")


def test_supervisord_killed_and_started_again(tmp_path: Path) -> None:
    one = Running(tmp_path)
    left: list[int] = []
    try:
        client = one.client()
        until(lambda: client.program("web").pid is not None)
        left = one.children()
        one.process.kill()
        one.process.wait()
        with pytest.raises(Unreachable, match="nothing listens there") as caught:
            client.program("web")
        assert one.url in caught.value.message
        one.start()
        until(lambda: client.program("web").pid is not None)
        assert client.program("web").pid not in left, "the new one does not know the old child"
    finally:
        for pid in left:
            os.killpg(pid, signal.SIGKILL)
        one.end()


def test_no_socket(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="there is no such socket"):
        Supervisord(f"unix://{tmp_path}/none.sock").pid()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_socket_that_we_may_not_use(running: Running) -> None:
    code = """
        import os, sys
        from lanectl.adapters.supervisord import Supervisord
        os.setuid(65534)
        try:
            Supervisord(sys.argv[1]).pid()
        except Exception as error:
            print(type(error).__name__, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), running.url], capture_output=True, text=True
    )
    assert done.stdout.startswith("Unreachable not allowed to connect"), done.stderr


# -------------------------------------------------------------------------- what is no supervisord


@contextmanager
def answering(*parts: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """A server that answers every request with the same bytes, part by part."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                peer, _ = server.accept()
                with peer, suppress(OSError):
                    peer.recv(1 << 16)
                    for part in parts:
                        peer.sendall(part)
                        time.sleep(pause_s)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


def http(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def fault(code: int, text: str) -> bytes:
    return http(xmlrpc.client.dumps(xmlrpc.client.Fault(code, text)).encode())


@pytest.mark.parametrize(
    "reply",
    [
        http(b"<html>hello</html>"),
        http(b"hello"),
        http(b""),
        http(b"<methodResponse></methodResponse>"),
        http(b"<methodResponse><params></params></methodResponse>"),
        http(b"nothing here", "404 Not Found"),
        b"SSH-2.0-OpenSSH_9.9\r\n",
    ],
)
def test_what_answers_is_no_supervisord(reply: bytes) -> None:
    with answering(reply) as url, pytest.raises(Unreachable, match="is not supervisord"):
        Supervisord(url).pid()


def test_closed_without_an_answer() -> None:
    with answering() as url, pytest.raises(Unreachable, match="closed the connection"):
        Supervisord(url).pid()


def test_torn_answer() -> None:
    with answering(http(b"x" * 100)[:-50]) as url, pytest.raises(Unreachable):
        Supervisord(url).pid()


def test_answer_that_drips_in_is_cut() -> None:
    drops = [bytes([byte]) for byte in http(b"x" * 1000)]
    before = time.monotonic()
    with answering(*drops, pause_s=0.02) as url:
        with pytest.raises(Unreachable, match="did not answer within"):
            Supervisord(url, timeout_s=0.5).pid()
        assert time.monotonic() - before < 1.0


def test_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisord_wire, "REPLY_LIMIT", 1000)
    with answering(http(b"x" * 2000)) as url, pytest.raises(Unreachable, match="not supervisord"):
        Supervisord(url).pid()


@pytest.mark.parametrize(
    ("code", "words"),
    [(30, "does not know its state"), (40, "ended at once"), (50, "could not be spawned")],
)
def test_start_faults_say_what_they_mean(code: int, words: str) -> None:
    with answering(fault(code, "THE_FAULT: web")) as url:
        with pytest.raises(EffectFailed, match=rf"{words}.*THE_FAULT: web, fault {code}") as caught:
            Supervisord(url).start("web")
        assert caught.value.next_step


def test_unknown_fault_of_start_and_stop() -> None:
    with answering(fault(99, "SOMETHING: new")) as url:
        with pytest.raises(EffectFailed, match="SOMETHING: new"):
            Supervisord(url).start("web")
        with pytest.raises(EffectFailed, match="could not stop web: SOMETHING: new"):
            Supervisord(url).stop("web")
        with pytest.raises(EffectFailed, match="could not clear the logs of web"):
            Supervisord(url).clear_logs("web")
        assert Supervisord(url).log_tail("web") == ""


def test_not_running_is_success_for_stop() -> None:
    with answering(fault(70, "NOT_RUNNING: web")) as url:
        Supervisord(url).stop("web")


@pytest.mark.parametrize(
    ("code", "words"), [(6, "shutting down or restarting"), (1, "does not know getPID")]
)
def test_faults_of_the_whole_supervisord(code: int, words: str) -> None:
    with answering(fault(code, "X")) as url, pytest.raises(Unreachable, match=words):
        Supervisord(url).pid()


def test_internal_error_of_one_call() -> None:
    with answering(http(b"", "500 Internal Server Error")) as url:
        with pytest.raises(Unreachable, match="failed on this call"):
            Supervisord(url).pid()
        assert Supervisord(url).log_tail("web") == ""
