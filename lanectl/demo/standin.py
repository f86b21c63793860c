"""A stand-in for a vLLM server: no model, no GPU, replies made up. For demo, tests, benchmarks.

    python -m lanectl.demo.standin serve MODEL --port N --max-num-seqs N
        [--speculative-config JSON] [--standin-mode MODE,MODE] ...

It takes the flags of `vllm serve`, answers like one, prints a boot log like one, and says in its
first line what it is. It listens some 30 ms after exec, because a benchmark starts it hundreds of
times: hence no dependency, no argparse, no asyncio, and `typing` for the type checker only.
`standin_modes.py` lists in how many ways it can be wrong.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time

from lanectl.demo import standin_process
from lanectl.demo.standin_engine import BLOCK_TOKENS, Engine
from lanectl.demo.standin_flags import Settings
from lanectl.demo.standin_http import VERSION, Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

STOP_GRACE_S = 1.0
"""How long a stop waits at most for the cut requests to be told `abort`."""


def say(text: str, level: str = "INFO") -> None:
    now = time.strftime("%m-%d %H:%M:%S")
    print(f"(APIServer pid={os.getpid()}) {level} {now} [standin] {text}", flush=True)


class Stop(Exception):
    """SIGTERM or SIGINT came; raised in the main thread, out of whatever it waits for."""


class Server:
    """One run of the stand-in, from its flags to its exit code."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.modes = settings.modes
        self.engine = Engine(settings)
        self._deaf = "lost-sigterm" in self.modes

    def run(self) -> int:
        print(
            "STAND-IN, not vLLM: lanectl's stand-in lane. No model is loaded and every reply is "
            f"made up. Mode: {self.modes}",
            flush=True,
        )
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        try:
            listener = self._bind()
            self._boot(listener)
            self._accept(listener)
        except Stop:
            self._wind_up()
            return 0
        except OSError as error:
            say(f"{error}", "ERROR")
            return 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._deaf or "sigterm-ignored" in self.modes:
            return
        raise Stop

    def _bind(self) -> socket.socket:
        """Bound and not yet listening: that is what a starting vLLM looks like (note 11c)."""
        family = socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.settings.reuse_port or "orphans-port" in self.modes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((self.settings.host, self.settings.port))
        return listener

    def _boot(self, listener: socket.socket) -> None:
        settings, tokens = self.settings, self.settings.blocks * BLOCK_TOKENS
        say(f"vLLM API server version {VERSION}, model {settings.model}")
        say(f"non-default args: {settings.given}")
        if "crash-start" in self.modes:
            self._crash_at_start()
        if "orphans" in self.modes:
            self._fork_engine(listener)
        if "fatal-log" in self.modes:
            say(
                "ValueError: Free memory on device cuda:0 (10.12/139.8 GiB) on startup is less "
                "than desired GPU memory utilization (0.92, 128.62 GiB). Decrease GPU memory "
                "utilization or reduce GPU memory used by other processes.",
                "ERROR",
            )
            while True:
                signal.pause()
        say(
            f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{settings.model}', "
            f"speculative_config={_shown(settings)}, max_seq_len="
            f"{settings.max_model_len}, enable_prefix_caching={settings.prefix_caching}"
        )
        time.sleep(self.modes["slow-start"])
        self._deaf = False
        say(f"GPU KV cache size: {tokens:,} tokens")
        say(
            f"Maximum concurrency for {settings.max_model_len:,} tokens per request: "
            f"{tokens / settings.max_model_len:.2f}x"
        )
        listener.listen(512)
        say(f"Starting vLLM server on http://{settings.host or '0.0.0.0'}:{settings.port}")
        print("INFO:     Application startup complete.", flush=True)
        if "crash-after" in self.modes:
            timer = threading.Timer(self.modes["crash-after"], self._crash_later)
            timer.daemon = True
            timer.start()

    def _accept(self, listener: socket.socket) -> NoReturn:
        while True:
            sock, _ = listener.accept()
            run = Connection(sock, self.engine).run
            threading.Thread(target=run, daemon=True).start()

    def _wind_up(self) -> None:
        """Tell the requests under way that they are cut, and wait for that only shortly."""
        self.engine.stopping = True
        say("Shutting down")
        until = time.monotonic() + STOP_GRACE_S
        while self.engine.running and time.monotonic() < until:
            time.sleep(0.005)

    def _crash_at_start(self) -> None:
        wanted = self.settings.max_num_seqs
        print(
            "Traceback (most recent call last):\n"
            '  File "vllm/entrypoints/cli/serve.py", line 98, in cmd\n'
            "    uvloop.run(run_server(args))\n"
            '  File "vllm/config/scheduler.py", line 231, in __post_init__\n'
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
            f"  Value error, max_num_seqs ({wanted}) exceeds available Mamba cache blocks (856). "
            "Please lower max_num_seqs to at most 856. [type=value_error]\n"
            "    For further information visit https://errors.pydantic.dev/2.13/v/value_error",
            flush=True,
        )
        _leave(1)

    def _crash_later(self) -> None:
        say("EngineCore encountered a fatal error.", "ERROR")
        print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
        _leave(1)

    def _fork_engine(self, listener: socket.socket) -> None:
        def in_the_child() -> None:
            listener.close()
            if "orphans-port" in self.modes:
                own = self._bind()
                own.listen(512)
                threading.Thread(target=self._accept, args=(own,), daemon=True).start()

        standin_process.fork_engine(in_the_child)


def _shown(settings: Settings) -> str:
    """The speculative settings as vLLM's own boot log shows them."""
    if settings.speculative is None:
        return "None"
    method = settings.speculative.get("method")
    model = settings.speculative.get("model", settings.model)
    return f"SpeculativeConfig({method=}, {model=}, num_spec_tokens={settings.draft_tokens})"


def _leave(code: int) -> None:
    """Exit now, from any thread, without waiting for the threads of open connections."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] != "serve":
        print("usage: vllm serve [model_tag] [options]", file=sys.stderr)
        return 2
    _leave(Server(Settings(words[1:])).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
