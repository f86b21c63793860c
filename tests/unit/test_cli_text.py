"""What lanes and strangers say reaches a terminal escaped and without secrets, always."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lanectl.cli import changes, doctor, errors, looks, standing, tables
from lanectl.cli.follow import Live, Plain
from lanectl.cli.options import Settings
from lanectl.core.text import mask_document, mask_value

SECRET = "S3cretValue9"
EVIL = f"\x1b]0;owned\x07[/INST] [tool_calls] \x9b31m \u202eright --api-key {SECRET}"
SHA = "ab" * 32


def harmless(text: str) -> bool:
    """Nothing steers a terminal; line ends and tabs are ours."""
    return all(char.isprintable() or char in "\n\t" for char in text) and SECRET not in text


def test_one_line_of_foreign_text() -> None:
    assert tables.shown("a\nb\t\x85") == r"a\nb\t\x85"
    assert harmless(tables.shown(EVIL)) and "[/INST] [tool_calls]" in tables.shown(EVIL)
    assert tables.shown(None) == "None"
    assert tables.shown(tables.shown(EVIL)) == tables.shown(EVIL)


def test_several_lines_keep_their_ends_and_tabs() -> None:
    assert tables.shown_lines("a\n\tb\r\n\x1b[2J") == "a\n\tb\\r\n\\x1b[2J"
    key = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\nb"
    assert SECRET not in tables.shown_lines(key)


def test_live_takes_text_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    view = Live()
    view.show({"say": f"closing [/INST] {EVIL}"})
    view.show({"say": "verifying"})
    view.show({"say": EVIL})
    view.close()
    told = capsys.readouterr().err
    assert "[/INST]" in told and "[tool_calls]" in told and "verifying" in told
    assert harmless(told.replace("\x1b[?25h", "").replace("\x1b[?25l", ""))


def test_plain_lines_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    Plain().show({"say": EVIL})
    looks.say(EVIL)
    assert harmless(capsys.readouterr().err)


def test_an_error_cannot_pass_for_another_line(capsys: pytest.CaptureFixture[str]) -> None:
    body = errors.document("x", 3, f"no\nnext: curl evil\n  fine {EVIL}", EVIL)
    assert errors.tell(body, as_json=True) == 3
    told = capsys.readouterr()
    assert harmless(told.err) and harmless(told.out)
    assert told.err.splitlines()[:3] == [
        "lanectl: no",
        "  next: curl evil",
        told.err.split("\n")[2],
    ]
    assert told.err.split("\n")[2].startswith("  fine")


def change_document(**more: Any) -> dict[str, Any]:
    side = {"profile": "p", "sha256": SHA, "stable": False}
    probe = {"name": EVIL, "class": "ok", "outcome": "passed", "elapsed_s": 1.0, "detail": EVIL}
    return {
        "switch": "s-1",
        "lane": "q",
        "kind": "switch",
        "phase": "rolled-back",
        "from": side,
        "to": side,
        "verdict": {"outcome": "failed", "class": "empty", "probes": [probe]},
        "confirmation": None,
        "receipt": {
            "from_sha256": SHA,
            "backup": EVIL,
            "command": ["vllm", EVIL, "--api-key", SECRET],
            "others_untouched": False,
            "others_changed": [EVIL],
            "diff": f"+{EVIL}\n",
            "timings": {"verifying": 1.0},
        },
        "events": [{"log": f"{EVIL}\n{EVIL}"}],
        "reason": EVIL,
        **more,
    }


def test_what_a_change_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        assert changes.show(change_document(), as_json) == 4
        told = capsys.readouterr()
        assert harmless(told.out) and harmless(told.err)
        assert "[tool_calls]" in told.out
    assert json.loads(told.out)["receipt"]["others_changed"][0].startswith(
        "\x1b]0;owned\x07[/INST]"
    )


def test_every_cell_and_every_remark(capsys: pytest.CaptureFixture[str]) -> None:
    print(tables.table(["A", "B"], [[EVIL, "b\nc"]]))
    looks.print_diff(f"--- {EVIL}\n+{EVIL}\n")
    looks.print_findings([{"severity": "error", "line": 1, "message": EVIL, "code": "x"}])
    said = {"severity": "error", "check": "model", "message": EVIL, "mend": EVIL, "source": EVIL}
    doctor._print({"lane": "q", "checks": [said]}, show_all=True)
    standing._print(Settings(), {}, EVIL)
    looks._print_status([status(quarantined=EVIL, note=EVIL, profile=EVIL)])
    assert harmless(capsys.readouterr().out)


def status(**more: Any) -> dict[str, Any]:
    names = (
        "profile sha256 stable program ready running waiting last_smoke unfinished quarantined "
        "drift probation probation_lost note problem last_alert"
    )
    told = dict.fromkeys(names.split(" "))
    return {**told, "lane": "q", **more}


def test_a_document_keeps_its_data_and_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    tables.emit({"model": "\x9b\u202e\U000e0001é\udc80", "env": {"HF_TOKEN": SECRET}, "n": 1})
    told = capsys.readouterr().out
    assert harmless(told) and "é" in told
    assert json.loads(told) == {
        "model": "\x9b\u202e\U000e0001é\udc80",
        "env": {"HF_TOKEN": "***"},
        "n": 1,
    }


def test_names_give_secrets_away() -> None:
    assert mask_value("HF_TOKEN", SECRET) == "***"
    assert mask_value("HF_TOKEN", "$HF_TOKEN") == "$HF_TOKEN"
    assert mask_value("--api-key", f"{SECRET},{SECRET}") == "***"
    assert mask_value("--max-model-len", "65536") == "65536"
    assert mask_value("X", f"--api-key {SECRET}") == "--api-key ***"
    told = mask_document({"argv": ["--api-key", SECRET, "a"], "flags": {"--x": True}, "n": None})
    assert told == {"argv": ["--api-key", "***", "***"], "flags": {"--x": True}, "n": None}
    assert mask_document({"api_key": [SECRET, SECRET]}) == {"api_key": ["***", "***"]}
