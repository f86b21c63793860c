"""A rig: a stand-in lane and a bystander under a supervisord of their own, in a private folder.

    with Rig() as rig:                       # supervisord up, the lane starting
        rig.wait_listening()
        rig.run("status", "--json")          # lanectl against this rig's lanectl.toml

The demo, the tests and the benchmarks use it. Whatever happens to the lane in between, `stop` ends
every process that the rig started and nothing else; so does a watcher when the owner is killed.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lanectl.demo import sessions

LANE = "demo"
PROGRAM = "lane"
BYSTANDER = "bystander"
MODEL = "stand-in/qwen-tiny"
MTP: Mapping[str, Any] = {"method": "mtp", "num_speculative_tokens": 3}
PROFILES: Mapping[str, Mapping[str, Any]] = {
    "reliability": {"speculative": False, "max_num_seqs": 8},
    "throughput": {
        "speculative": MTP,
        "max_num_seqs": 8,
        "note": "enabled on a throughput result, not a quality result",
    },
}
SMOKE: Mapping[str, Any] = {
    "concurrency": 4,
    "prompt_chars": 8000,
    "max_tokens": 512,
    "thinking_max_tokens": 1024,
    "request_timeout_s": 5,
    "deadline_s": 30,
}
INET_USER, INET_PASSWORD = "lane", "stand-in"
SOCKET_PATH_MAX = 107
START_S = 10.0
ROOT = Path(__file__).resolve().parents[2]


class Rig:
    """One supervisord with the programs `lane` and `bystander`.

    folder: where everything lies; a temporary one, removed by `stop`, if not given.
    exec_launcher: False leaves `exec` out of the launcher, the way that loses the server.
    inet: supervisord listens on a loopback port with user and password as well, and the
    configuration names that one.
    env: more environment for the lane program, `{"STANDIN_MODE": "flood"}`.
    options: of the program `lane` as supervisord names them: `startsecs=0`, `stopasgroup=False`,
    `autorestart="false"`.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        exec_launcher: bool = True,
        inet: bool = False,
        env: Mapping[str, str] | None = None,
        **options: str | int | float | bool,
    ) -> None:
        self._temporary: list[Path] = []
        self.folder = self._temporary_folder("lanectl-rig-") if folder is None else folder
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._runtime = self.folder if _fits(self.folder) else self._temporary_folder("lanectl-")
        self._exec = exec_launcher
        self._env = dict(env or {})
        self._options = options
        self._holders = [reserve_port(), *([reserve_port()] if inet else [])]
        ports: list[int] = [holder.getsockname()[1] for holder in self._holders]
        self.port = ports[0]
        self._inet_port = ports[1] if inet else None
        self._supervisords: list[tuple[subprocess.Popen[bytes], int]] = []
        self._watchers: list[subprocess.Popen[str]] = []
        self._kept = False
        self.launcher = self.folder / "serve-lane.sh"
        self.config = self.folder / "lanectl.toml"
        self.socket = self._runtime / "supervisor.sock"
        self._write_wrapper()
        self.write_launcher()
        self.write_config()

    # ---------------------------------------------------------------------------------- addresses

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def supervisor(self) -> str:
        """supervisord's address as lanectl.toml has it."""
        if self._inet_port is not None:
            return f"http://127.0.0.1:{self._inet_port}"
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """supervisord's pid."""
        return self._supervisords[-1][0].pid

    @property
    def lane_log(self) -> Path:
        return self.folder / "lane.log"

    # -------------------------------------------------------------------------------------- files

    def launcher_text(
        self,
        *,
        speculative: Mapping[str, Any] | None = MTP,
        max_num_seqs: int = 8,
        mode: str = "",
        flags: tuple[str, ...] = (),
    ) -> str:
        """A launcher as people write them. flags: whole lines, each a flag with its value."""
        lines = [
            f"{'exec ' if self._exec else ''}vllm serve {MODEL}",
            "--host 127.0.0.1",
            f"--port {self.port}",
            f"--served-model-name {LANE}",
            "--max-model-len 32768",
            f"--max-num-seqs {max_num_seqs}",
            "--enable-auto-tool-choice",
            "--tool-call-parser hermes",
            "--reasoning-parser qwen3",
        ]
        if speculative is not None:
            lines.append(f"--speculative-config '{json.dumps(speculative)}'")
        if mode:
            lines.append(f"--standin-mode {mode}")
        command = " \\\n  ".join([*lines, *flags])
        return (
            "#!/usr/bin/env bash\n"
            "# Serves the demo lane. The `vllm` on its PATH is a stand-in, not vLLM.\n"
            f"set -euo pipefail\n\n{command}\n"
        )

    def write_launcher(self, text: str | bytes | None = None) -> Path:
        """Put a launcher in place; without a text the usual one, with MTP on."""
        data = self.launcher_text() if text is None else text
        self.launcher.write_bytes(data.encode() if isinstance(data, str) else data)
        self.launcher.chmod(0o755)
        return self.launcher

    def write_config(
        self,
        *,
        profiles: Mapping[str, Mapping[str, Any]] | None = None,
        smoke: Mapping[str, Any] | None = None,
        extra: str = "",
        **lane: Any,
    ) -> Path:
        """Write lanectl.toml with limits fit for a stand-in; None leaves a key out.

        profiles: instead of PROFILES; smoke: over SMOKE; lane: other keys of the lane's table;
        extra: TOML text for the end of the file.
        """
        table: dict[str, Any] = {
            "launcher": str(self.launcher),
            "supervisor": self.supervisor,
            "program": PROGRAM,
            "api": self.api,
            "ready_timeout_s": 20,
            "stop_timeout_s": 5,
            "drain_timeout_s": 5,
            "min_uptime_s": 0,
            "probation_s": 0,
        }
        if self._inet_port is not None:
            password = self.folder / "supervisor.password"
            password.write_text(f"{INET_PASSWORD}\n")
            password.chmod(0o600)
            table |= {"supervisor_user": INET_USER, "supervisor_password_file": str(password)}
        table |= lane
        here = f"lanes.{LANE}"
        tables: dict[str, Mapping[str, Any]] = {
            "store": {"url": f"sqlite:///{self.folder}/lanectl.db"},
            here: {**table, **lane},
            f"{here}.smoke": {**SMOKE, **(smoke or {})},
        }
        for name, profile in (PROFILES if profiles is None else profiles).items():
            tables[f"{here}.profiles.{_key(name)}"] = profile
        text = ""
        for name, keys in tables.items():
            text += f"[{name}]\n"
            text += "".join(f"{k} = {_toml(v)}\n" for k, v in keys.items() if v is not None) + "\n"
        self.config.write_text(text + extra)
        return self.config

    def _write_wrapper(self) -> None:
        """The `vllm` on the lane's PATH; in `/proc` it looks as in an environment of vLLM's own.

        It is one, without packages: importing those that the interpreter has elsewhere can take
        longer than all of the stand-in's start.
        """
        folder = self._runtime / "bin"
        folder.mkdir(exist_ok=True)
        python, real = folder / "python", Path(sys.executable).resolve()
        python.unlink(missing_ok=True)
        python.symlink_to(real)
        settings = f"home = {real.parent}\ninclude-system-site-packages = false\n"
        (self._runtime / "pyvenv.cfg").write_text(settings)
        wrapper = folder / "vllm"
        wrapper.write_text(
            f"#!{python}\n# A stand-in, not vLLM.\nimport sys\n\n"
            # Compiled once for all starts, also where Python is told to keep no compiled files.
            f"sys.pycache_prefix = {str(self._runtime / 'pycache')!r}\n"
            "sys.dont_write_bytecode = False\n"
            f"sys.path.insert(0, {str(ROOT)!r})\n"
            "from lanectl.demo.standin import main\n\nsys.exit(main())\n"
        )
        wrapper.chmod(0o755)

    def _write_supervisor_config(self) -> Path:
        env = {"PATH": f"{self._runtime / 'bin'}:{os.environ.get('PATH', os.defpath)}", **self._env}
        lane: dict[str, str | int | float | bool] = {
            "command": shlex.quote(str(self.launcher)),
            "directory": str(self.folder),
            "environment": ",".join(f'{name}="{value}"' for name, value in env.items()),
            "redirect_stderr": True,
            "stdout_logfile": str(self.lane_log),
            "stopasgroup": True,
            "killasgroup": True,
            **self._options,
        }
        sections: dict[str, dict[str, str | int | float | bool]] = {
            "unix_http_server": {"file": str(self.socket), "chmod": "0700"},
            "supervisord": {
                "logfile": str(self.folder / "supervisord.log"),
                "pidfile": str(self.folder / "supervisord.pid"),
                "childlogdir": str(self.folder),
                "nodaemon": True,
            },
            "rpcinterface:supervisor": {
                "supervisor.rpcinterface_factory": (
                    "supervisor.rpcinterface:make_main_rpcinterface"
                )
            },
            "supervisorctl": {"serverurl": f"unix://{self.socket}"},
            f"program:{PROGRAM}": lane,
            f"program:{BYSTANDER}": {"command": "sleep 1000000", "stopasgroup": True},
        }
        if self._inet_port is not None:
            sections["inet_http_server"] = {
                "port": f"127.0.0.1:{self._inet_port}",
                "username": INET_USER,
                "password": INET_PASSWORD,
            }
        text = ""
        for name, keys in sections.items():
            text += f"[{name}]\n"
            # A percent sign starts a substitution in this file.
            text += "".join(f"{k}={str(v).replace('%', '%%')}\n" for k, v in keys.items())
        path = self.folder / "supervisord.conf"
        path.write_text(text)
        return path

    # ---------------------------------------------------------------------------------- processes

    def start(self) -> Self:
        """Start supervisord, and wait until it answers; its programs are starting then."""
        config = self._write_supervisor_config()
        self.socket.unlink(missing_ok=True)
        with (self.folder / "supervisord.out").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(config)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = sessions.started(process.pid)
        self._supervisords.append((process, started))
        watcher = [sys.executable, "-S", "-E", sessions.__file__, str(process.pid), str(started)]
        self._watchers.append(
            subprocess.Popen(
                [*watcher, *map(str, self._temporary)],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        try:
            self._wait_for_supervisord(process)
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_for_supervisord(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + START_S
        while True:
            try:
                with self.rpc() as supervisord:
                    supervisord.supervisor.getState()
                return
            except (OSError, http.client.HTTPException) as error:
                if process.poll() is not None or time.monotonic() > until:
                    out = (self.folder / "supervisord.out").read_text(errors="replace")
                    raise RuntimeError(f"supervisord did not come up: {error}\n{out}") from error
            time.sleep(0.01)

    def stop(self) -> None:
        """End every process the rig started, and remove a temporary folder. Bounded; repeatable."""
        if self._kept:
            return
        left: list[int] = []
        for process, started in self._supervisords:
            left += sessions.end(process.pid, started)
            # Reaped only now: until then its pid, and so the session, cannot be another's.
            process.wait(timeout=sessions.END_S)
        self._supervisords.clear()
        for watcher in self._watchers:
            watcher.kill()
            watcher.communicate()
        self._watchers.clear()
        for holder in self._holders:
            holder.close()
        for folder in self._temporary:
            shutil.rmtree(folder, ignore_errors=True)
        if left:
            raise RuntimeError(f"these processes of the rig survived SIGKILL: {left}")

    def keep(self) -> None:
        """Leave everything running when this process ends; `stop` does nothing any more."""
        self._kept = True
        for watcher in self._watchers:
            watcher.communicate("keep", timeout=sessions.END_S)
        self._watchers.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def alive(self) -> list[int]:
        """Every live process the rig started, supervisord and orphans included."""
        return sorted(
            pid for process, _ in self._supervisords for pid in sessions.members(process.pid)
        )

    @contextmanager
    def rpc(self, timeout_s: float = 15.0) -> Iterator[xmlrpc.client.ServerProxy]:
        """supervisord's XML-RPC, over its socket."""
        transport = _UnixTransport(str(self.socket), timeout_s)
        with xmlrpc.client.ServerProxy("http://localhost/RPC2", transport=transport) as proxy:
            yield proxy

    def program(self, name: str = PROGRAM) -> dict[str, Any]:
        """`getProcessInfo` of a program."""
        with self.rpc() as supervisord:
            info: Any = supervisord.supervisor.getProcessInfo(name)
        return dict(info)

    def wait_listening(self, timeout_s: float = 10.0) -> None:
        """Wait until something accepts connections on the lane's port."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError as error:
                if time.monotonic() > until:
                    log = self.lane_log.read_text(errors="replace")[-2000:]
                    raise TimeoutError(f"nothing listens on {self.port}: {error}\n{log}") from error
            time.sleep(0.005)

    @property
    def environment(self) -> dict[str, str]:
        """What a lanectl command needs to find itself and this rig's configuration."""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, "LANECTL_CONFIG": str(self.config)}

    def run(self, *words: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a lanectl command against this rig, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "lanectl", *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _temporary_folder(self, prefix: str) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        self._temporary.append(folder)
        return folder


class _UnixTransport(xmlrpc.client.Transport):
    """XML-RPC over a unix socket, with a time limit on every wait."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__()
        self._path = path
        self._timeout_s = timeout_s

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=self._timeout_s)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(self._timeout_s)
        try:
            connection.sock.connect(self._path)
        except OSError:
            connection.sock.close()
            raise
        return connection


def _fits(folder: Path) -> bool:
    """Whether a socket's path fits in there, and a `#!` line can name a program in there.

    supervisord makes its socket under a name longer by a dot and its pid.
    """
    longest = os.fsencode(folder / "supervisor.sock.4194304")
    return len(longest) <= SOCKET_PATH_MAX and not any(c.isspace() for c in str(folder))


def reserve_port() -> socket.socket:
    """A free loopback port, bound and never listening: nobody else is given it meanwhile.

    A server that sets SO_REUSEADDR or SO_REUSEPORT, as they all do, binds beside it.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)


def _toml(value: Any) -> str:
    """A TOML value on one line; tables become inline tables."""
    if isinstance(value, Mapping):
        pairs = (f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{ {', '.join(pairs)} }}"
    # JSON's strings, numbers and booleans are TOML's, once characters stand for themselves.
    return json.dumps(value, ensure_ascii=False)
