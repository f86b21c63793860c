"""The documents of real commands fit docs/schemas/; `--json` prints one and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lanectl.demo.rig import Rig

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    made = Rig(env={"STANDIN_MODE": "flood-spec-concurrent"})
    made.write_launcher()
    made.write_config()
    with made:
        made.wait_listening()
        yield made


def test_every_document_fits_its_schema(rig: Rig) -> None:
    launcher = str(rig.launcher)
    story: list[tuple[str, int, tuple[str, ...]]] = [
        ("error", 3, ("switch", "reliability")),
        ("status", 0, ("status",)),
        ("adopt", 0, ("adopt",)),
        ("profiles", 0, ("profiles",)),
        ("diff", 0, ("diff", "reliability")),
        ("switch", 0, ("switch", "reliability", "--dry-run")),
        ("switch", 0, ("switch", "reliability")),
        ("switch", 0, ("switch", "reliability")),
        ("switch", 4, ("switch", "throughput")),
        ("error", 3, ("switch", "throughput")),
        ("restart", 0, ("restart",)),
        ("smoke", 0, ("smoke",)),
        ("repair", 0, ("repair", "reap-orphans")),
        ("repair", 0, ("repair", "reopen-log")),
        ("quarantine", 0, ("quarantine",)),
        ("error", 3, ("switch", "adopted")),
        ("release", 0, ("release",)),
        ("rollback", 0, ("rollback",)),
        ("history", 0, ("history",)),
        ("status", 0, ("status",)),
        ("launcher-show", 0, ("launcher", "show", launcher)),
        ("launcher-edit", 0, ("launcher", "edit", launcher, "--speculative", "off")),
        ("error", 2, ("switch", "nowhere")),
        ("error", 2, ("no-such-command",)),
    ]
    for name, code, words in story:
        done = rig.run(*words, "--json")
        assert done.returncode == code, (words, done.stdout, done.stderr)
        document = json.loads(done.stdout)
        jsonschema.validate(document, schema(name))


def test_doctor_fits_its_schema(rig: Rig) -> None:
    done = rig.run("doctor", "--json")
    assert done.returncode in (0, 6), done.stderr
    jsonschema.validate(json.loads(done.stdout), schema("doctor"))


def test_json_is_taken_before_the_command_too(rig: Rig) -> None:
    done = rig.run("--json", "status")
    jsonschema.validate(json.loads(done.stdout), schema("status"))


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text())
