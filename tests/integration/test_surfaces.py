"""What the commands show and tell, on lanes that are sick in one way or another."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lanectl import wiring
from lanectl.adapters.notify_log import SIZE_MAX, LogNotifier
from lanectl.adapters.store_sql import open_store
from lanectl.app import service
from lanectl.cli import errors
from lanectl.cli.main import cli
from lanectl.config import Config, load
from lanectl.core.lane import ADOPTED, Kind, Plan, Revision, digest
from tests.fakes import Lab
from tests.lanes import bench

SECRET = "S3cretValue9"
LANE_KEYS: Mapping[str, Any] = {
    "supervisor": "unix:///nowhere/supervisor.sock",
    "program": "vllm",
    "api": "http://127.0.0.1:9/v1",
}
TEXT = b"#!/bin/bash\nexec vllm serve m --port 9 --max-num-seqs 8\n"


class Operator:
    """Commands against a configuration in a folder of their own; no lane of it runs."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.file = folder / "lanectl.toml"
        self.out = self.err = ""

    def configure(self, more: str = "", **lanes: Mapping[str, Any]) -> None:
        text = f'[store]\nurl = "sqlite:///{self.folder}/lanectl.db"\n'
        for name, keys in lanes.items():
            launcher = self.folder / f"{name}.sh"
            launcher.write_bytes(TEXT)
            table = {"launcher": str(launcher), **LANE_KEYS, **keys}
            text += f"[lanes.{name}]\n"
            text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        self.file.write_text(text + more)

    @property
    def config(self) -> Config:
        return load(self.file)

    def adopt(self, *lanes: str) -> None:
        """As `adopt --unproven`, which asks supervisord."""
        with wiring.store(self.config) as store:
            for name in lanes:
                revision = Revision(name, digest(TEXT), ADOPTED, digest(TEXT), TEXT)
                store.adopt(revision, wiring.SystemClock().now())

    def __call__(self, *words: str) -> int:
        self._capsys.readouterr()
        code = errors.run(cli, ["--config", str(self.file), *words])
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, *words: str) -> Any:
        assert self(*words, "--json") == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, capsys)


# ---------------------------------------------------------------------------------------- profiles

SECRET_PROFILE = f"""
[lanes.q.profiles.p]
env = {{ HF_TOKEN = "{SECRET}", SEQS = "8" }}
flags = {{ "--api-key" = "{SECRET},{SECRET}", "--max-model-len" = "4096" }}
note = "started with --api-key {SECRET}"
"""


def test_profiles_shows_no_secret(operator: Operator) -> None:
    operator.configure(SECRET_PROFILE, q={})
    operator.adopt("q")
    told = operator.json("profiles", "q")
    assert SECRET not in operator.out
    assert told[1]["env"] == {"HF_TOKEN": "***", "SEQS": "8"}
    assert told[1]["flags"] == {"--api-key": "***", "--max-model-len": "4096"}
    assert operator("profiles", "q") == 0
    assert SECRET not in operator.out and "SEQS=8" in operator.out
    with wiring.ports(operator.config, operator.config.lane("q")) as ports:
        document = service.profiles(ports, operator.config, operator.config.lane("q"))
    assert SECRET not in json.dumps(document[1]["env"]) + json.dumps(document[1]["flags"])


def test_a_missing_script_is_told_of_its_profile_only(operator: Operator) -> None:
    scripts = '[lanes.a.profiles.s]\nscript = "none.sh"\n[lanes.a.profiles.p]\nmax_num_seqs = 4\n'
    operator.configure(scripts, a={}, b={})
    operator.adopt("a", "b")
    assert operator("status", "b") == 0 and operator("history", "a") == 0
    told = {p["profile"]: p for p in operator.json("profiles", "a")}
    assert "there is no file" in told["s"]["refused"] and told["s"]["sha256"] is None
    assert told["p"]["sha256"] and told["p"]["refused"] is None
    assert operator("diff", "a", "p") == 0
    assert operator("diff", "a", "s") == 2
    assert "lanes.a.profiles.s.script: there is no file" in operator.err


# ------------------------------------------------------------------------------------------ status


def test_one_sick_lane_does_not_blind_status(operator: Operator) -> None:
    operator.configure(
        unknown={"api_key_file": str(operator.folder / "none.key")},
        folder={"launcher": str(operator.folder)},
        gone={"launcher": str(operator.folder / "absent.sh")},
        well={},
    )
    operator.adopt("unknown", "folder", "gone", "well")
    told = {lane["lane"]: lane for lane in operator.json("status")}
    assert set(told) == {"unknown", "folder", "gone", "well"}
    assert "none.key" in told["unknown"]["problem"] and told["unknown"]["ready"] is None
    assert "is a folder" in told["folder"]["problem"] and told["folder"]["drift"] is None
    assert "absent.sh" in told["gone"]["problem"] and told["gone"]["drift"] is None
    assert told["well"]["drift"] is False
    assert operator("status") == 0
    assert "folder: " in operator.out and "is a folder" in operator.out
    assert operator("status", "unknown") == 0
    assert operator("status", "nobody") == 2


def test_status_of_an_unknown_program(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    told = service.status(lab.ports, lab.config, lab.lane)
    assert told["problem"] is None and told["ready"] is True

    def no_such(name: str) -> Any:
        raise lab.config.error("lanes.demo.program", f"supervisord knows no program {name}")

    lab.supervisor.program = no_such  # type: ignore[method-assign]
    told = service.status(lab.ports, lab.config, lab.lane)
    assert told["program"] is None and "knows no program" in told["problem"]


def test_a_store_that_cannot_be_used_ends_status(operator: Operator) -> None:
    operator.configure(a={}, b={})
    (operator.folder / "lanectl.db").write_bytes(b"no database" * 100)
    assert operator("status") == 3


# ----------------------------------------------------------------------------------- history, diff


def test_history_tells_who(operator: Operator) -> None:
    operator.configure(q={})
    operator.adopt("q")
    sha = digest(TEXT)
    lane = operator.config.lane("q")
    plan = Plan(Kind.RESTART, lane, sha, ADOPTED, sha, ADOPTED, "quick", "kit@host", "a\nb")
    store = open_store(operator.config.store_url)
    store.open_switch(plan, wiring.SystemClock().now())
    store.close()
    assert operator("history", "q") == 0
    header, row = operator.out.splitlines()
    assert header.split() == ["SWITCH", "AT", "FROM", "TO", "ENDED", "WHO", "WHY"]
    assert "kit@host" in row and r"a\nb" in row


def test_a_diff_in_a_secret_only_says_so(operator: Operator) -> None:
    key = '[lanes.q.profiles.p]\nflags = { "--api-key" = "b-S3cretValue9" }\n'
    operator.configure(key, q={})
    text = TEXT.replace(b"--port 9", b"--port 9 --api-key a-S3cretValue9")
    (operator.folder / "q.sh").write_bytes(text)
    with wiring.store(operator.config) as store:
        revision = Revision("q", digest(text), ADOPTED, digest(text), text)
        store.adopt(revision, wiring.SystemClock().now())
    assert operator("diff", "q", "p") == 0, operator.err
    assert "differs only in what is masked" in operator.out and SECRET not in operator.out
    assert operator.json("diff", "q", "p")["same"] is False
    assert operator("diff", "q", "adopted") == 0
    assert "already" in operator.out and "masked" not in operator.out


# ------------------------------------------------------------------------------------------ alerts


def test_an_alert_is_one_private_masked_line(tmp_path: Path) -> None:
    path = tmp_path / "state" / "alerts.log"
    notifier = LogNotifier(path, system_log=None)
    assert notifier.last("q") is None
    notifier.tell("q", "bad\tnews\n", f"\x1b[2J--api-key {SECRET} " + "x" * 9000)
    notifier.tell("other", "t", "b")
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    first, _ = path.read_text().splitlines()
    assert first.count("\t") == 3 and SECRET not in first and len(first) < 2300
    assert first.replace("\t", "").isprintable()
    last = notifier.last("q")
    assert last and last.title == r"bad\tnews\n" and last.body.startswith(r"\x1b[2J--api-key ***")
    path.chmod(0o644)
    notifier.tell("q", "newer", "")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (found := notifier.last("q")) and (found.title, found.body) == ("newer", "")


def test_alerts_do_not_grow_without_end(tmp_path: Path) -> None:
    path = tmp_path / "alerts.log"
    notifier = LogNotifier(path, system_log=None)
    notifier.tell("q", "old", "")
    with path.open("a") as file:
        file.write("x" * SIZE_MAX)
    notifier.tell("r", "new", "")
    assert path.stat().st_size < 100
    assert (tmp_path / "alerts.log.1").stat().st_size > SIZE_MAX
    assert notifier.last("r")


@pytest.mark.parametrize("how", ["a link", "a pipe", "a folder", "no folder", "a nul"])
def test_telling_never_fails_and_never_waits(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, target = tmp_path / "alerts.log", tmp_path / "target"
    target.write_text("")
    if how == "a link":
        path.symlink_to(target)
    elif how == "a pipe":
        os.mkfifo(path)
    elif how == "a folder":
        path.mkdir()
    else:
        path = tmp_path / "target" / "alerts.log" if how == "no folder" else tmp_path / "a\0b"
    notifier = LogNotifier(path, system_log=str(tmp_path / "no-log"))
    notifier.tell("q", "bad news", "\udc80")
    assert "bad news" in caplog.text
    assert notifier.last("q") is None
    assert target.read_text() == ""


def test_the_system_log_is_told_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        notifier = LogNotifier(tmp_path / "alerts.log", system_log=str(tmp_path / "log"))
        notifier.tell("q", "bad", "news")
        assert log.recv(4096) == b"<12>lanectl: q: bad: news"


def test_status_shows_a_fresh_alert(operator: Operator) -> None:
    operator.configure(q={}, r={})
    path = wiring.alerts_file(operator.config)
    assert path == operator.folder / "alerts.log"
    LogNotifier(path, system_log=None).tell("q", "lane q is degraded", "why")
    told, other = operator.json("status")
    assert told["last_alert"]["title"] == "lane q is degraded" and other["last_alert"] is None
    assert operator("status") == 0 and "lane q is degraded: why" in operator.out
    path.write_text(path.read_text().replace("2", "1", 1))  # A thousand years ago.
    assert operator.json("status")[0]["last_alert"] is None


@pytest.mark.timeout(240)
def test_the_owner_is_told_of_a_degraded_lane() -> None:
    """By the real worker: it has no terminal, and its logging goes nowhere."""
    with bench() as lane:
        assert lane.forge("switch", "b").status == 0
        bad = lane.rig.launcher.read_text() + "# bad\n"
        bad = bad.replace("--max-num-seqs 6", "--max-num-seqs 6 --standin-mode crash-start")
        copy = lane.rig.folder / "kept.sh"
        copy.write_text(bad)
        copy.chmod(0o755)
        done = lane.forge("rollback", "--backup", str(copy), "--json")
        assert (done.status, done.json["phase"]) == (5, "degraded"), done
        (line,) = (lane.rig.folder / "alerts.log").read_text().splitlines()
        assert "lane demo is degraded" in line
        (told,) = lane.forge("status", "--json").json
        assert told["last_alert"]["title"] == "lane demo is degraded"
