"""What the commands show and tell, on lanes that are sick in one way or another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lanectl import wiring
from lanectl.app import service
from lanectl.cli import errors
from lanectl.cli.main import cli
from lanectl.config import Config, load
from lanectl.core.lane import ADOPTED, Revision, digest

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
