"""The main job on the real engine: vLLM for the CPU, real MTP, real supervisord (`make test-vllm`).

One lane goes through the whole story, in order: each test starts where the one before it ended, as
an operator's day does. Starting the engine takes most of a minute each time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lanectl.demo.rig import BYSTANDER, LANE, Rig

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(os.environ.get("LANECTL_VLLM_VENV", ROOT / ".venv-vllm"))
CHECKPOINTS = ROOT / "tests" / "vllm" / "checkpoints"
COMMAND_S = 800.0

PROFILES: dict[str, dict[str, Any]] = {
    "reliability": {"speculative": False, "max_num_seqs": 4},
    "flood": {"model": str(CHECKPOINTS / "flood")},
    "unknown-flag": {"flags": {"--no-such-flag": True}},
}


class Lane:
    """The pocket lane under the rig's supervisord."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def run(self, *words: str) -> tuple[int, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "lanectl", "--config", str(self.rig.config), "--json", *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.stdout.strip(), done.stderr
        return done.returncode, json.loads(done.stdout)

    def status(self) -> Any:
        return self.run("status")[1][0]

    def argv(self) -> list[str]:
        return psutil.Process(self.rig.program()["pid"]).cmdline()

    def metrics(self) -> str:
        url = f"http://127.0.0.1:{self.rig.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return str(reply.read().decode())

    def wait_ready(self, limit_s: float = 300.0) -> None:
        until = time.monotonic() + limit_s
        while not self.status()["ready"]:
            assert time.monotonic() < until, self.rig.lane_log.read_text()[-3000:]
            time.sleep(1.0)


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    # Missing is a failure, never a skip: this suite exists to be run on the real engine.
    assert (VENV / "bin" / "vllm").is_file(), "no vLLM environment: run tests/vllm/install.sh"
    rig = Rig(
        env={
            "LANECTL_VLLM_VENV": str(VENV),
            "POCKET_MODEL": str(CHECKPOINTS / "pocket"),
            "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}",
        },
        startsecs=1,
        autorestart="false",
    )
    text = (ROOT / "launchers" / "pocket-lane.sh").read_text()
    # The lane's own knobs stay as they are; only the port must be this rig's.
    assert "${POCKET_PORT:-8000}" in text
    rig.write_launcher(text.replace("${POCKET_PORT:-8000}", f"${{POCKET_PORT:-{rig.port}}}"))
    rig.write_config(
        profiles=PROFILES,
        smoke={
            "prompt_chars": 3000,
            "concurrency": 3,
            "request_timeout_s": 120,
            "deadline_s": 600,
            "thinking_max_tokens": 1024,
        },
        ready_timeout_s=300,
        stop_timeout_s=30,
        drain_timeout_s=60,
        min_uptime_s=5,
    )
    with rig:
        yield Lane(rig)


def test_adopt_with_real_mtp(lane: Lane) -> None:
    lane.wait_ready()
    code, document = lane.run("adopt")
    assert code == 0
    assert document["speculative"] == {"method": "mtp", "num_speculative_tokens": 1}
    assert document["stable"], document
    assert document["verdict"]["outcome"] == "passed"
    assert "vllm:spec_decode_num_draft_tokens_total" in lane.metrics()


def test_switch_to_mtp_off_is_proven(lane: Lane) -> None:
    bystander = lane.rig.program(BYSTANDER)
    old = lane.rig.program()["pid"]
    code, document = lane.run("switch", "reliability")
    assert (code, document["phase"]) == (0, "committed"), document
    assert not any("spec" in word for word in lane.argv())
    assert "--max-num-seqs 4" in " ".join(lane.argv())
    assert "spec_decode" not in lane.metrics()
    assert document["receipt"]["speculative_metrics"] is False
    assert document["receipt"]["versions"]["vllm"].startswith("0.27.1")
    assert document["receipt"]["others_untouched"] is True
    assert lane.rig.program()["pid"] != old
    assert lane.rig.program(BYSTANDER)["pid"] == bystander["pid"]
    probes = {probe["name"]: probe["outcome"] for probe in document["verdict"]["probes"]}
    assert set(probes.values()) == {"passed"}
    assert {"cold", "hot", "prefix-a-again", "cancelled", "settled"} <= set(probes)


def test_the_flooding_checkpoint_is_reverted(lane: Lane) -> None:
    before = lane.rig.launcher.read_bytes()
    code, document = lane.run("switch", "flood")
    assert (code, document["phase"]) == (4, "rolled-back"), document
    assert document["verdict"]["class"] == "degenerate"
    assert "'!'" in json.dumps(document["verdict"])
    assert lane.rig.launcher.read_bytes() == before
    assert str(CHECKPOINTS / "pocket") in lane.argv()
    assert lane.status()["profile"] == "reliability"


def test_an_unknown_flag_is_reverted_without_waiting(lane: Lane) -> None:
    before = lane.rig.launcher.read_bytes()
    code, document = lane.run("switch", "unknown-flag")
    assert (code, document["phase"]) == (4, "rolled-back"), document
    assert "unrecognized arguments: --no-such-flag" in document["reason"]
    assert lane.rig.launcher.read_bytes() == before
    # The limit to be ready is 300 s; a dead process must not wait it out.
    assert document["receipt"]["timings"]["verifying"] < 120


def test_the_orphaned_engine_of_a_killed_api_is_reaped(lane: Lane) -> None:
    main = psutil.Process(lane.rig.program()["pid"])
    engines = [p for p in main.children(recursive=True) if "EngineCor" in p.name()]
    assert engines, [p.name() for p in main.children(recursive=True)]
    # Down for good after the kill, so that nothing but lanectl starts it again.
    with lane.rig.rpc() as supervisord:
        os.kill(main.pid, signal.SIGKILL)
        supervisord.supervisor.getState()
    time.sleep(1.0)
    alive = [p for p in engines if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert alive, "the engine ended with its API: nothing to reap, and nothing proven"
    code, document = lane.run("restart")
    assert (code, document["phase"]) == (0, "committed"), document
    assert {p.pid for p in alive} <= set(document["receipt"]["stop"]["orphans"])
    assert not any(p.is_running() for p in alive)


def test_rollback_brings_mtp_back(lane: Lane) -> None:
    code, document = lane.run("rollback")
    assert (code, document["phase"]) == (0, "committed"), document
    assert document["to"]["profile"] == "adopted"
    assert "--speculative-config" in lane.argv()
    assert "spec_decode" in lane.metrics()
    assert lane.status()["lane"] == LANE
    assert [entry["phase"] for entry in lane.run("history")[1]] == [
        "committed",
        "committed",
        "rolled-back",
        "rolled-back",
        "committed",
    ]
