"""The main job through the real commands: adopt, switch, and everything that refuses to."""

from __future__ import annotations

import http.client
import json
import os
import re
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import MakeOperator, Operator

OFF = {"speculative": False, "max_num_seqs": 8}
ON = {"speculative": {"method": "mtp", "num_speculative_tokens": 2}, "note": "for speed"}
BAD = {"flags": {"--standin-mode": "wrong-tool"}}
PROFILES = {"off": OFF, "on": ON, "bad": BAD, "more": {"max_num_seqs": 9}}

SWITCH_KEYS = {
    *("switch", "lane", "kind", "phase", "from", "to", "verdict", "confirmation", "receipt"),
    *("events", "reason", "next"),
}
STATUS_KEYS = {
    *("lane", "profile", "note", "sha256", "stable", "drift", "program", "ready", "running"),
    *("waiting", "gpu", "quarantined", "unfinished", "probation", "last_smoke"),
}
HISTORY_KEYS = {"switch", "at", "from", "to", "phase", "reason", "who"}
SIDE_KEYS = {"profile", "sha256", "stable"}
VERDICT_KEYS = {"outcome", "class", "probes"}
PROBE_KEYS = {"name", "class", "outcome", "elapsed_s", "detail"}
EVENT_KEYS = {"seq", "phase", "outcome", "at", "elapsed_s", "detail"}
GATE = [
    *("cold", "hot", "prefix-a", "prefix-b", "prefix-a-again", "thinking-on", "thinking-off"),
    *("after-result", "no-arguments", "long-1", "long-2", "cancelled", "settled"),
]


def is_utc(text: str) -> bool:
    return datetime.fromisoformat(text).utcoffset() == UTC.utcoffset(None)


def is_verdict(verdict: dict[str, Any]) -> bool:
    assert set(verdict) >= VERDICT_KEYS
    assert all(set(probe) == PROBE_KEYS for probe in verdict["probes"])
    return True


@contextmanager
def requests(user: Operator, count: int) -> Iterator[None]:
    """Requests without end, running on the lane until the block is left."""
    body = {
        "model": "demo",
        "stream": True,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "go on"}],
    }
    connections = [http.client.HTTPConnection("127.0.0.1", user.rig.port) for _ in range(count)]

    def read(connection: http.client.HTTPConnection) -> None:
        try:
            while connection.sock and connection.sock.recv(65536):
                pass
        except OSError:
            return

    readers = []
    for connection in connections:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        readers.append(threading.Thread(target=read, args=(connection,), daemon=True))
        readers[-1].start()
    user.wait_for(lambda: user.status()["running"] == count, "they run")
    try:
        yield
    finally:
        for connection in connections:
            connection.close()


# ------------------------------------------------------------------------------------- adopt


def test_adopt_proves_the_running_lane(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, adopt=None)
    lane = user.status()
    assert (lane["profile"], lane["sha256"], lane["stable"], lane["drift"]) == (None,) * 4
    for command in (("switch", "demo", "off"), ("restart", "demo"), ("rollback", "demo")):
        said = user.run(*command)
        assert said.exit == 3 and "adopt" in said.doc["error"]["next"], said
    pid = user.pid
    said = user.adopt()
    assert {"lane", "profile", "sha256", "stable", "reason", "verdict"} <= set(said.doc)
    assert (said.doc["profile"], said.doc["sha256"]) == ("adopted", user.deployed)
    assert (said.doc["stable"], said.doc["reason"]) == (True, "")
    assert [p["name"] for p in said.doc["verdict"]["probes"]] == GATE
    assert is_verdict(said.doc["verdict"])
    lane = user.status()
    assert (lane["profile"], lane["stable"], lane["drift"]) == ("adopted", True, False)
    assert lane["last_smoke"]["outcome"] == "passed" and user.pid == pid
    assert user.backups == [] and user.history() == []


@pytest.mark.parametrize("case", ["unproven", "failed gate", "older process", "down"])
def test_adopted_without_proof_is_not_stable(operator: MakeOperator, case: str) -> None:
    mode = "wrong-tool" if case == "failed gate" else ""
    user = operator(launcher=lambda rig: rig.launcher_text(mode=mode), adopt=None)
    if case == "older process":
        user.wait_for(
            lambda: user.started(user.pid) + 1.5 < datetime.now(UTC).timestamp(), "time passes"
        )
        user.launcher.write_bytes(user.launcher.read_bytes() + b"# edited\n")
    if case == "down":
        user.stop_program()
    said = user.adopt(*(["--unproven"] if case == "unproven" else []))
    assert said.doc["stable"] is False and said.doc["reason"], said
    assert user.status()["stable"] is False
    assert (said.doc["verdict"] is None) is (case in ("unproven", "down"))


# ------------------------------------------------------------------------------------- switching


def test_off_and_on_again(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    base, first, bystander = user.deployed, user.pid, user.bystander
    assert "--speculative-config" in user.words()

    off = user.switch("off", "--reason", "agents get garbage", "--approved-by", "the owner")
    assert off.exit == 0, off
    assert set(off.doc) == SWITCH_KEYS
    assert off.doc["lane"] == "demo" and off.doc["phase"] == "committed"
    assert off.doc["from"] == {"profile": "adopted", "sha256": base, "stable": False}
    assert off.doc["to"] == {"profile": "off", "sha256": user.deployed, "stable": True}
    assert is_verdict(off.doc["verdict"]) and off.doc["verdict"]["outcome"] == "passed"
    assert [p["name"] for p in off.doc["verdict"]["probes"]] == GATE
    events = off.doc["events"]
    assert [e["phase"] for e in events] == [
        *("preparing", "draining", "installing", "restarting", "verifying", "committed")
    ]
    assert all(set(e) == EVENT_KEYS and is_utc(e["at"]) for e in events)
    assert [e["seq"] for e in events] == sorted({e["seq"] for e in events})
    assert [e["outcome"] for e in events[:-1]] == ["ok"] * 5
    assert off.doc["reason"] == "agents get garbage"
    assert "--speculative-config" not in user.words() and user.pid != first
    assert not user.living(first)
    second = user.pid

    on = user.switch("on")
    assert on.exit == 0, on
    words = user.words()
    asked = json.loads(words[words.index("--speculative-config") + 1])
    assert asked == ON["speculative"] and user.pid not in (first, second)
    assert user.bystander == bystander

    lane = user.status()
    assert set(lane) >= STATUS_KEYS
    assert (lane["profile"], lane["note"], lane["sha256"]) == ("on", "for speed", user.deployed)
    assert lane["program"]["state"] == "RUNNING" and lane["program"]["pid"] == user.pid
    assert is_utc(lane["program"]["started"]) and lane["ready"] is True
    assert (lane["running"], lane["waiting"], lane["drift"]) == (0, 0, False)
    for key in ("gpu", "quarantined", "unfinished", "probation"):
        assert lane[key] is None

    newest, oldest = user.history()
    assert set(newest) >= HISTORY_KEYS and set(newest["from"]) == SIDE_KEYS == set(newest["to"])
    assert (oldest["switch"], newest["switch"]) == (off.doc["switch"], on.doc["switch"])
    assert (oldest["phase"], oldest["reason"]) == ("committed", "agents get garbage")
    assert is_utc(newest["at"]) and newest["who"]
    # The same base and the same profile: the same digest, whatever lay between.
    again = user.switch("off")
    assert again.doc["to"]["sha256"] == off.doc["to"]["sha256"]


def test_smoke_document_and_exit_codes(operator: MakeOperator) -> None:
    user = operator(launcher=lambda rig: rig.launcher_text(), adopt=None)
    said = user.run("smoke", "demo")
    assert (said.exit, said.doc["gate"], said.doc["lane"]) == (0, "quick", "demo"), said
    assert is_verdict(said.doc) and [p["name"] for p in said.doc["probes"]] == ["tool-call"]
    said = user.run("smoke", "demo", "--gate", "switch")
    assert (said.exit, [p["name"] for p in said.doc["probes"]]) == (0, GATE), said
    user.configure(model="another")
    said = user.run("smoke", "demo")
    assert (said.exit, said.doc["class"], said.doc["outcome"]) == (7, "client_error", "error"), said


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("switch", "demo", "nobody"), "config"),
        (("switch", "nobody", "off"), "config"),
        (("switch", "demo", "off", "--gate", "none"), "usage"),
        (("rollback", "demo", "--to", "ffff"), "config"),
        (("rollback", "demo", "--backup", "nowhere"), "config"),
    ],
)
def test_usage(shared: MakeOperator, words: tuple[str, ...], code: str) -> None:
    user = shared(profiles=PROFILES)
    said = user.run(*words)
    assert (said.exit, said.code) == (2, code), said
    assert set(said.doc) == {"error"}
    assert set(said.doc["error"]) == {"code", "exit", "message", "next"}
    assert said.doc["error"]["exit"] == 2 and said.doc["error"]["message"] in said.err


def test_what_is_already_is_left_alone(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    user.switch("off")
    before = user.everything()
    said = user.switch("off")
    assert (said.exit, said.doc["phase"], said.doc["switch"]) == (0, "unchanged", None), said
    assert set(said.doc) == SWITCH_KEYS and said.doc["from"] == said.doc["to"]
    assert user.everything() == before


@pytest.mark.parametrize("case", ["older process", "wrong words", "down"])
def test_same_digest_alone_is_not_what_was_asked(operator: MakeOperator, case: str) -> None:
    user = operator(profiles=PROFILES)
    assert user.switch("off").exit == 0
    digest, pid, text = user.deployed, user.pid, user.launcher.read_bytes()
    before = user.words()
    user.stop_program()
    if case == "older process":
        # Started from another text that said the same; the recorded one came back after that.
        user.rig.write_launcher(text + b"# other\n")
        pid = start_by_hand(user)
        user.wait_for(
            lambda: user.started(pid) + 1.5 < datetime.now(UTC).timestamp(), "time passes"
        )
        user.rig.write_launcher(text)
    elif case == "wrong words":
        # Started from the recorded text, but something on its way added a word.
        vllm = Path(next(word for word in before if Path(word).name == "vllm"))
        (vllm.parent / "real").mkdir()
        real = vllm.rename(vllm.parent / "real" / "vllm")
        vllm.write_text(f'#!/bin/sh\nexec {real} "$@" --max-num-seqs 3\n')
        vllm.chmod(0o755)
        pid = start_by_hand(user)
        real.rename(vllm)
        assert user.words()[-1] == "3"
    said = user.switch("off")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert user.pid not in (0, pid) and not user.living(pid)
    assert user.deployed == digest and "3" not in user.words()


def test_a_port_that_the_launcher_does_not_serve_is_refused(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    before = user.rig.program()
    user.configure(api="http://127.0.0.1:9/v1")
    said = user.switch("off")
    assert (said.exit, said.doc["phase"]) == (3, "aborted"), said
    assert f"serves port {user.rig.port}" in said.doc["reason"]
    assert user.rig.program()["pid"] == before["pid"]


def test_same_digest_that_does_not_answer_is_not_called_unchanged(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    assert user.switch("off").exit == 0
    user.configure(api=f"http://127.0.0.1:{user.rig.port}/v2")
    said = user.switch("off")
    assert (said.exit, said.doc["phase"]) == (3, "aborted"), said


def start_by_hand(user: Operator) -> int:
    """Start the program past lanectl; its pid."""
    user.supervisord("startProcess", "lane")
    user.until_ready()
    return user.pid


def test_dry_run_changes_nothing_at_all(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    before = user.everything()
    said = user.switch("off", "--dry-run")
    assert (said.exit, said.doc["phase"], said.doc["switch"]) == (0, "dry-run", None), said
    assert set(said.doc) == SWITCH_KEYS
    assert said.doc["from"]["sha256"] == user.deployed != said.doc["to"]["sha256"]
    assert "-  --speculative-config" in said.doc["receipt"]["diff"]
    assert user.everything() == before and user.backups == [] and user.litter == []
    assert user.switch("off").doc["to"]["sha256"] == said.doc["to"]["sha256"], "as was announced"
    # Refused where the switch would be.
    user.configure(require_approval=True)
    said = user.switch("on", "--dry-run")
    assert (said.exit, said.code) == (3, "approval-missing"), said


# ------------------------------------------------------------------------------ drain, cut


def test_drain_deadline_and_cut(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, drain_timeout_s=1)
    old, pid = user.deployed, user.pid
    with requests(user, 2):
        said = user.switch("off")
        assert (said.exit, said.doc["phase"]) == (3, "aborted"), said
        assert [e["phase"] for e in said.doc["events"]] == ["preparing", "draining", "aborted"]
        assert "2 requests" in said.doc["reason"] and "--cut" in said.doc["reason"]
        assert (user.deployed, user.pid, user.litter) == (old, pid, [])
        assert user.status()["running"] == 2, "they were not touched"
        said = user.switch("off", "--cut")
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert said.doc["receipt"]["requests_cut"] == 2
    assert "cut as asked" in said.doc["events"][1]["detail"]


def test_drain_waits_for_what_ends_in_time(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, drain_timeout_s=60)
    with requests(user, 1):
        command = user.begin("switch", "demo", "off")
        user.wait_for(lambda: user.status()["unfinished"], "the switch is under way")
        user.wait_for(lambda: user.history()[0]["phase"] == "draining", "it waits for the request")
    said = user.end(command)
    assert (said.exit, said.doc["phase"]) == (0, "committed"), said
    assert said.doc["receipt"]["requests_cut"] == 0


# ------------------------------------------------------------------- approval, bar, quarantine


def test_approval(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, require_approval=True)
    before = user.everything()
    said = user.switch("off")
    assert (said.exit, said.code) == (3, "approval-missing"), said
    assert "--approved-by" in said.doc["error"]["next"]
    assert user.everything() == before
    said = user.switch("off", "--approved-by", "the owner")
    assert said.exit == 0 and said.doc["receipt"]["approved_by"] == "the owner", said


def test_bar_and_its_two_ways_out(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    assert user.switch("bad").exit == 4
    pid = user.pid
    said = user.switch("bad")
    assert (said.exit, said.code, user.pid) == (3, "barred", pid), said
    assert "--barred-ok" in said.doc["error"]["next"]
    assert user.switch("bad", "--dry-run").code == "barred"
    assert user.switch("bad", "--barred-ok").exit == 4, "tried, and undone again"
    said = user.run("release", "demo")
    assert said.exit == 0 and len(said.doc["unbarred"]) == 1, said
    assert user.switch("bad").exit == 4


def test_rollback_bars_what_was_left(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    base = user.deployed
    assert user.switch("off").exit == 0
    said = user.run("rollback", "demo", "--reason", "an incident")
    assert (said.exit, said.doc["phase"], user.deployed) == (0, "committed", base), said
    assert "draining" not in [e["phase"] for e in said.doc["events"]]
    off = user.profile("off")
    assert (off["barred"], off["stable"]) == (True, False)
    assert user.switch("off").code == "barred"
    assert user.switch("off", "--barred-ok").exit == 0


def test_quarantine_blocks_the_switch_alone(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    base = user.deployed
    assert user.switch("off").exit == 0
    assert user.run("quarantine", "demo", "--reason", "looking into it").exit == 0
    for words in ((), ("--dry-run",), ("--barred-ok",)):
        said = user.switch("on", *words)
        assert (said.exit, said.code) == (3, "quarantined"), said
    pid = user.pid
    said = user.run("restart", "demo")
    assert (said.exit, said.doc["phase"]) == (0, "committed") and user.pid != pid, said
    assert user.run("smoke", "demo").exit == 0
    assert user.run("repair", "demo", "reap-orphans").exit == 0
    assert user.run("repair", "demo", "reopen-log").exit == 0
    said = user.run("rollback", "demo")
    assert said.exit == 0 and user.deployed == base, said
    assert user.status()["quarantined"], "none of these releases it"
    assert user.run("release", "demo").exit == 0
    assert user.status()["quarantined"] is None
    assert user.switch("on").exit == 0


def test_release_asks_for_a_good_lane_or_for_force(operator: MakeOperator) -> None:
    user = operator(launcher=lambda rig: rig.launcher_text(mode="flood"), profiles=PROFILES)
    assert user.run("quarantine", "demo").exit == 0
    said = user.run("release", "demo")
    assert (said.exit, said.code) == (3, "quarantined"), said
    assert user.status()["quarantined"]
    assert user.run("release", "demo", "--force").exit == 0
    assert user.status()["quarantined"] is None


def test_restart_is_verified_and_keeps_the_revision(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    assert user.switch("off").exit == 0
    text, pid, backups = user.launcher.read_bytes(), user.pid, user.backups
    said = user.run("restart", "demo", "--reason", "memory")
    assert (said.exit, said.doc["kind"], said.doc["phase"]) == (0, "restart", "committed"), said
    assert said.doc["from"] == said.doc["to"] and said.doc["verdict"]["outcome"] == "passed"
    assert user.pid not in (0, pid) and not user.living(pid)
    assert user.launcher.read_bytes() == text and user.backups == backups


# ----------------------------------------------------------------------------------- the file


def test_mode_and_owner_are_kept(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES)
    user.launcher.chmod(0o4750)
    if os.geteuid() == 0:
        os.chown(user.launcher, 0, 12345)
        user.launcher.chmod(0o4750)
    was = user.launcher.stat()
    assert user.switch("off").exit == 0
    now, copy = user.launcher.stat(), user.backups[-1].stat()
    for file in (now, copy):
        assert stat.S_IMODE(file.st_mode) == stat.S_IMODE(was.st_mode)
        assert (file.st_uid, file.st_gid) == (was.st_uid, was.st_gid)


def test_link_stays_and_its_target_is_replaced(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, adopt=None)
    real = user.rig.folder / "real" / "lane-of-mine.sh"
    real.parent.mkdir()
    user.launcher.rename(real)
    user.launcher.symlink_to(real)
    adopted = user.adopt("--unproven")
    assert (adopted.doc["followed_link"], adopted.doc["launcher"]) == (True, str(real))
    plain = user.rig.run("adopt", "demo", "--unproven")
    assert "is a link" in plain.stdout and str(real) in plain.stdout
    said = user.switch("off")
    assert said.exit == 0, said
    assert said.doc["receipt"]["followed_link"] is True
    assert said.doc["receipt"]["launcher"] == str(real)
    assert user.launcher.is_symlink() and user.launcher.readlink() == real
    assert user.sha(real) == said.doc["to"]["sha256"]
    assert said.doc["receipt"]["backup"].startswith(f"{real}.bak-")


def test_backups_are_named_kept_and_thinned(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, keep_backups=2)
    base, text = user.deployed, user.launcher.read_bytes()
    made = []
    outgoing = "adopted"
    for profile in ("off", "on", "more", "off", "on", "more"):
        said = user.switch(profile, "--gate", "quick")
        assert said.exit == 0, said
        path = said.doc["receipt"]["backup"]
        name = rf"{re.escape(str(user.launcher))}\.bak-\d{{8}}-\d{{6}}-{outgoing}(-\d+)?"
        assert re.fullmatch(name, path), path
        made.append(path)
        outgoing = profile
    left = [str(p) for p in user.backups]
    assert set(left) <= set(made)
    newest = sorted(made)[-2:]
    assert set(newest) <= set(left), "the newest two stay"
    assert base in {user.sha(p) for p in user.backups}, "the base is needed for good"
    needed = {base, said.doc["from"]["sha256"], said.doc["to"]["sha256"]}
    assert all(str(p) in newest or user.sha(p) in needed for p in user.backups)
    assert len(left) <= 4
    # By hand the rollback is one file copy.
    (first,) = [p for p in user.backups if user.sha(p) == base]
    said = user.run("rollback", "demo", "--backup", str(first))
    assert said.exit == 0 and user.launcher.read_bytes() == text, said


def test_backup_of_a_stable_revision_is_never_thinned(operator: MakeOperator) -> None:
    user = operator(profiles=PROFILES, keep_backups=1)
    said = user.switch("off")  # the switch gate: stable
    stable = said.doc["to"]["sha256"]
    assert said.doc["to"]["stable"] is True
    for profile in ("on", "more", "on", "more"):
        assert user.switch(profile, "--gate", "quick").exit == 0
    assert stable in {user.sha(p) for p in user.backups}


@pytest.mark.parametrize("case", ["bash -n", "no proof", "approval", "quarantine", "client error"])
def test_refusal_leaves_no_backup(operator: MakeOperator, case: str) -> None:
    user = operator(profiles=PROFILES)
    (user.rig.folder / "broken.sh").write_text("#!/usr/bin/env bash\nexec vllm serve m '\n")
    user.configure({**PROFILES, "script": {"script": "broken.sh"}})
    before, profile = user.everything(), "off"
    if case == "bash -n":
        profile = "script"
    elif case == "no proof":
        text = user.rig.launcher_text().replace("exec vllm", 'eval "exec vllm"')
        user.rig.write_launcher(text)
        user.adopt("--unproven")
        before = user.everything()
    elif case == "approval":
        user.configure(require_approval=True)
        before = user.everything()
    elif case == "quarantine":
        user.run("quarantine", "demo")
        before = user.everything()
    else:
        user.configure(model="another")
        before = user.everything()
    said = user.switch(profile)
    assert said.exit == 3, said
    after = user.everything()
    for seen in (before, after):
        del seen["history"]
    assert after == before and user.backups == [] and user.litter == []


# ---------------------------------------------------------------------------------- secrets

KEY = "sk-secret0123456789abcdef"
TOKEN = "hf_AbCdEfGhIjKlMnOpQrSt"


def test_secrets_stay_in_the_file(operator: MakeOperator, tmp_path: Any) -> None:
    def launcher(rig: Any) -> str:
        text = rig.launcher_text(flags=(f"--api-key {KEY}",))
        return text.replace("\nexec", f"\nexport HF_TOKEN={TOKEN}\nexec", 1)

    user = operator(launcher=launcher, adopt=None)
    key = user.rig.folder / "lane.key"
    key.write_text(f"{KEY}\n")
    key.chmod(0o600)
    profiles = {**PROFILES, "dead": {"flags": {"--standin-mode": "crash-start"}}}
    user.configure(profiles, api_key_file=str(key))
    done = [
        user.adopt(),
        user.switch("off", "--dry-run"),
        user.switch("off"),
        user.switch("dead"),
        user.switch("bad"),
        user.run("restart", "demo"),
        user.run("rollback", "demo"),
        user.run("profiles", "demo"),
        user.run("diff", "demo", "on"),
        user.run("smoke", "demo"),
        user.run("launcher", "show", str(user.launcher)),
        user.run("doctor", "demo"),
    ]
    assert [said.exit for said in done[:7]] == [0, 0, 0, 4, 4, 0, 0], done
    text = "".join(said.out + said.err for said in done)
    for command in (("status",), ("history",), ("diff", "demo", "on"), ("profiles", "demo")):
        plain = user.rig.run(*command)
        text += plain.stdout + plain.stderr
    assert "***" in text
    with sqlite3.connect(user.rig.folder / "lanectl.db") as store:
        for line in store.iterdump():
            # The revision's text is the launcher itself, and is what a rollback needs.
            text += "" if line.startswith('INSERT INTO "revisions"') else line
    for file in (tmp_path / "state").rglob("*"):
        text += file.read_text(errors="replace") if file.is_file() else ""
    for lock in user.rig.folder.glob("*.lock"):
        text += lock.read_text(errors="replace")
    for secret in (KEY, TOKEN):
        at = text.find(secret)
        assert at < 0, text[max(0, at - 300) : at + 100]
        assert secret in user.launcher.read_text()
        assert all(secret in p.read_text() for p in user.backups)
    assert KEY in user.words()
    for file in user.rig.folder.glob("lanectl.db*"):
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, "the store holds the launchers"
