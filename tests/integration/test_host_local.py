"""The local host against real files, real processes and the real bash."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanectl.adapters import host_local, launcher_lock, procfs, script_check
from lanectl.adapters.host_local import LocalHost
from lanectl.core.lane import digest
from lanectl.errors import ConfigError, Drift, EffectFailed, LaneBusy, Refused
from lanectl.ports import LauncherFile, Process

OLD = b"#!/bin/bash\nexec vllm serve old\n"
NEW = b"#!/bin/bash\nexec vllm serve new\n"
AT = datetime(2026, 3, 1, 4, 5, 6, tzinfo=UTC)
NOBODY = 65534


@pytest.fixture
def host() -> LocalHost:
    return LocalHost()


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    path = tmp_path / "serve.sh"
    path.write_bytes(OLD)
    path.chmod(0o750)
    return path


def read(host: LocalHost, path: Path) -> LauncherFile:
    found = host.read(str(path))
    assert found is not None
    return found


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


@contextmanager
def child(*argv: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdout.close()


def python(code: str, *argv: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(code), *argv)


# -------------------------------------------------------------------------------------------- read


def test_absent_file_is_none(host: LocalHost, tmp_path: Path) -> None:
    assert host.read(str(tmp_path / "none.sh")) is None


@pytest.mark.parametrize(
    "text",
    [b"", b"#!/bin/bash\r\necho\r\n", b"\xff\xfe\x00\x80 no utf-8", b"\xef\xbb\xbf#!/bin/sh\n"],
)
def test_bytes_pass_through_untouched(host: LocalHost, launcher: Path, text: bytes) -> None:
    before = read(host, launcher)
    staged = host.stage(before, text)
    assert host.replace(str(launcher), staged, frozenset({before.sha256})) == digest(text)
    assert launcher.read_bytes() == read(host, launcher).text == text
    backup = host.back_up(read(host, launcher), "p", AT)
    assert Path(backup).read_bytes() == text


def test_one_link_is_followed_and_stays_a_link(host: LocalHost, launcher: Path) -> None:
    link = launcher.with_name("link.sh")
    link.symlink_to("serve.sh")
    before = read(host, link)
    assert (before.asked, before.path) == (str(link), str(launcher))
    host.replace(str(link), host.stage(before, NEW), frozenset({before.sha256}))
    assert link.is_symlink() and launcher.read_bytes() == NEW


def test_link_with_parent_steps_through_a_linked_folder(host: LocalHost, tmp_path: Path) -> None:
    deep = tmp_path / "store" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "store" / "real.sh").write_bytes(OLD)
    (tmp_path / "short").symlink_to(deep)
    (deep / "link.sh").symlink_to("../real.sh")
    assert read(host, tmp_path / "short" / "link.sh").path == str(tmp_path / "store" / "real.sh")


def test_link_to_a_link_is_refused(host: LocalHost, launcher: Path) -> None:
    (launcher.parent / "one").symlink_to("serve.sh")
    (launcher.parent / "two").symlink_to("one")
    with pytest.raises(Refused, match="a link again"):
        host.read(str(launcher.parent / "two"))


def test_dangling_link_is_refused(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(Refused, match="does not exist"):
        host.read(str(tmp_path / "link"))


def test_folder_pipe_and_socket_are_configuration_errors(host: LocalHost, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        host.read(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        host.read(str(tmp_path / "pipe"))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "sock"))
        with pytest.raises(ConfigError, match="not a regular file"):
            host.read(str(tmp_path / "sock"))


def test_too_large_is_refused(host: LocalHost, launcher: Path) -> None:
    launcher.write_bytes(b"x" * host_local.SIZE_LIMIT)
    assert len(read(host, launcher).text) == host_local.SIZE_LIMIT
    launcher.write_bytes(b"x" * (host_local.SIZE_LIMIT + 1))
    with pytest.raises(Refused, match="larger than"):
        host.read(str(launcher))


# -------------------------------------------------------------------------------- stage and replace


def test_stage_keeps_mode_and_owner_and_hides(host: LocalHost, launcher: Path) -> None:
    if os.geteuid() == 0:
        os.chown(launcher, NOBODY, NOBODY)
        launcher.chmod(0o4750)
    before = read(host, launcher)
    staged = Path(host.stage(before, NEW))
    info = staged.stat()
    assert (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) == (
        before.mode,
        before.uid,
        before.gid,
    )
    assert staged.parent == launcher.parent
    assert staged.name.startswith(".serve.sh.lanectl-")
    assert launcher.read_bytes() == OLD


@pytest.mark.parametrize("effect", ["stage", "back_up"])
def test_full_disk_is_refused_and_leaves_nothing(launcher: Path, effect: str) -> None:
    code = """
        import datetime, resource, sys
        from lanectl.adapters.host_local import LocalHost
        from lanectl.errors import Refused
        host = LocalHost()
        file = host.read(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))
        try:
            if sys.argv[2] == "stage":
                host.stage(file, b"x" * 100)
            else:
                host.back_up(file, "p", datetime.datetime.now(datetime.UTC))
        except Refused as error:
            print(error.message, "|", error.next_step)
    """
    done = subprocess.run(python(code, str(launcher), effect), capture_output=True, text=True)
    assert "cannot write" in done.stdout, done.stderr
    assert "nothing changed | raise the file size limit" in done.stdout
    assert names(launcher.parent) == {"serve.sh"}


def test_no_space_says_what_to_do(
    host: LocalHost, launcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(host, launcher)

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refused, match=r"No space left.*nothing changed") as caught:
        host.stage(before, NEW)
    assert "free some space" in caught.value.next_step
    assert names(launcher.parent) == {"serve.sh"}


def test_text_that_reads_back_otherwise_is_refused(
    host: LocalHost, launcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(host, launcher)
    really_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: really_write(fd, bytes(data).upper()))
    with pytest.raises(Refused, match="does not read back"):
        host.stage(before, NEW)
    assert names(launcher.parent) == {"serve.sh"}


def test_replace_with_another_digest_in_place_is_drift(host: LocalHost, launcher: Path) -> None:
    before = read(host, launcher)
    staged = host.stage(before, NEW)
    launcher.write_bytes(b"by hand")
    with pytest.raises(Drift) as caught:
        host.replace(str(launcher), staged, frozenset({before.sha256}))
    assert digest(b"by hand") in caught.value.message
    assert before.sha256[:12] in caught.value.message
    assert f"--accept-drift {digest(b'by hand')}" in caught.value.next_step
    assert launcher.read_bytes() == b"by hand"
    host.discard(staged)
    host.discard(staged)
    assert names(launcher.parent) == {"serve.sh"}


def test_replace_of_a_launcher_that_is_gone_is_drift(host: LocalHost, launcher: Path) -> None:
    before = read(host, launcher)
    staged = host.stage(before, NEW)
    launcher.unlink()
    with pytest.raises(Drift, match="is gone"):
        host.replace(str(launcher), staged, frozenset({before.sha256}))
    assert not launcher.exists()


def test_launcher_swapped_for_a_link_after_reading_is_refused(
    host: LocalHost, launcher: Path
) -> None:
    """The link stands where the target of a link was: one more link than was followed."""
    link = launcher.with_name("link.sh")
    link.symlink_to("serve.sh")
    before = read(host, link)
    staged = host.stage(before, NEW)
    launcher.rename(launcher.with_name("moved.sh"))
    launcher.symlink_to("moved.sh")
    with pytest.raises(Refused, match="a link again"):
        host.replace(str(link), staged, frozenset({before.sha256}))


def test_of_two_staged_at_once_only_the_first_is_installed(host: LocalHost, launcher: Path) -> None:
    before = read(host, launcher)
    mine, theirs = host.stage(before, NEW), host.stage(before, b"theirs")
    expect = frozenset({before.sha256})
    host.replace(str(launcher), theirs, expect)
    with pytest.raises(Drift):
        host.replace(str(launcher), mine, expect)
    assert launcher.read_bytes() == b"theirs"


def test_the_compare_is_the_last_thing_before_the_rename(
    host: LocalHost, launcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit that lands while the folders are looked at is still seen."""
    before = read(host, launcher)
    staged = host.stage(before, NEW)
    really_look = host_local._refuse_unsafe_folder

    def look_while_somebody_edits(folder: str, owner: int) -> None:
        really_look(folder, owner)
        launcher.write_bytes(b"by hand")

    monkeypatch.setattr(host_local, "_refuse_unsafe_folder", look_while_somebody_edits)
    with pytest.raises(Drift):
        host.replace(str(launcher), staged, frozenset({before.sha256}))
    assert launcher.read_bytes() == b"by hand"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_unwritable_folder_is_refused() -> None:
    code = """
        import os, sys
        from lanectl.adapters.host_local import LocalHost
        from lanectl.errors import Refused
        host = LocalHost()
        os.setuid(65534)
        try:
            host.stage(host.read(sys.argv[1]), b"x")
        except Refused as error:
            print(error.message, "|", error.next_step)
    """
    with tempfile.TemporaryDirectory() as folder:
        launcher = Path(folder, "serve.sh")
        launcher.write_bytes(OLD)
        launcher.parent.chmod(0o755)
        done = subprocess.run(python(code, str(launcher)), capture_output=True, text=True)
    assert "Permission denied; nothing changed | run lanectl as" in done.stdout, done.stderr


def test_world_writable_folder_is_refused(host: LocalHost, launcher: Path) -> None:
    before = read(host, launcher)
    staged = host.stage(before, NEW)
    launcher.parent.chmod(0o777)
    with pytest.raises(Refused, match="anyone can write"):
        host.stage(before, NEW)
    with pytest.raises(Refused, match="anyone can write"):
        host.back_up(before, "p", AT)
    with pytest.raises(Refused, match="anyone can write"):
        host.replace(str(launcher), staged, frozenset({before.sha256}))
    launcher.parent.chmod(0o1777)
    host.replace(str(launcher), staged, frozenset({before.sha256}))


def test_link_into_a_world_writable_folder_is_refused(host: LocalHost, launcher: Path) -> None:
    shared = launcher.parent / "shared"
    shared.mkdir()
    (shared / "real.sh").write_bytes(OLD)
    link = launcher.with_name("link.sh")
    link.symlink_to("shared/real.sh")
    before = read(host, link)
    shared.chmod(0o777)
    with pytest.raises(Refused, match="anyone can write"):
        host.stage(before, NEW)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_folder_of_another_user_is_refused_unless_the_launcher_is_theirs(
    host: LocalHost, launcher: Path
) -> None:
    os.chown(launcher.parent, NOBODY, NOBODY)
    with pytest.raises(Refused, match="could swap the launcher"):
        host.stage(read(host, launcher), NEW)
    os.chown(launcher, NOBODY, NOBODY)
    before = read(host, launcher)
    host.replace(str(launcher), host.stage(before, NEW), frozenset({before.sha256}))
    assert launcher.stat().st_uid == NOBODY


def test_stale_staged_files_of_this_launcher_go(host: LocalHost, launcher: Path) -> None:
    host.stage(read(host, launcher), NEW)
    kept = {".other.sh.lanectl-0123abcd", ".serve.sh.lanectl-notes", ".serve.sh.swp"}
    for name in kept:
        (launcher.parent / name).touch()
    host.discard_stale(str(launcher))
    assert names(launcher.parent) == kept | {"serve.sh"}


def test_only_staged_files_and_backups_are_removed(host: LocalHost, launcher: Path) -> None:
    with pytest.raises(ValueError, match="no staged file"):
        host.discard(str(launcher))
    with pytest.raises(ValueError, match="no backup"):
        host.remove_backup(str(launcher))
    assert launcher.exists()


# ------------------------------------------------------------------------------------------ backups


def test_backups_are_named_in_utc_and_listed_newest_first(host: LocalHost, launcher: Path) -> None:
    before = read(host, launcher)
    local = AT.astimezone(timezone(timedelta(hours=9)))
    first = host.back_up(before, "adopted", AT)
    second = host.back_up(before, "adopted", local)
    third = host.back_up(before, "adopted", AT)
    older = host.back_up(before, "mtp-3", AT - timedelta(days=1))
    newer = host.back_up(before, "a.b_c", AT + timedelta(seconds=1))
    stem = f"{launcher}.bak-20260301-040506-adopted"
    assert [first, second, third] == [stem, f"{stem}-2", f"{stem}-3"]
    assert Path(first).stat().st_mode == launcher.stat().st_mode
    for number, path in enumerate([first, second, third]):
        os.utime(path, (number, number))
    (launcher.parent / "serve.sh.bak-by-hand").touch()
    (launcher.parent / "serve.sh.bak-20260301-040506-folder").mkdir()
    listed = host.backups(str(launcher))
    assert [backup.path for backup in listed] == [newer, third, second, first, older]
    assert {backup.sha256 for backup in listed} == {digest(OLD)}
    assert listed[1].written_at == AT.timestamp()
    host.remove_backup(newer)
    host.remove_backup(newer)
    assert len(host.backups(str(launcher))) == 4


def test_backups_of_a_launcher_in_no_folder(host: LocalHost, tmp_path: Path) -> None:
    assert host.backups(str(tmp_path / "gone" / "serve.sh")) == []


# --------------------------------------------------------------------------------------------- lock


def holder(host: LocalHost) -> dict[str, object]:
    me = host.process(os.getpid())
    assert me is not None
    at = (datetime.now(UTC) - timedelta(seconds=42)).isoformat()
    return {"pid": me.pid, "started": me.started, "who": "kit", "switch": "s1", "at": at}


def test_lock_is_exclusive_names_its_holder_and_stays(host: LocalHost, launcher: Path) -> None:
    assert host.lock_holder(str(launcher)) is None
    link = launcher.with_name("link.sh")
    link.symlink_to("serve.sh")
    with host.lock(str(launcher), holder(host)):
        told = host.lock_holder(str(link))
        assert told is not None and told["who"] == "kit"
        words = r"switch s1, who kit, pid \d+, for 4[2-4] s"
        with pytest.raises(LaneBusy, match=words), host.lock(str(link), {}):
            pass
    assert host.lock_holder(str(launcher)) is None
    lock = Path(f"{launcher}.lanectl.lock")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o644 and lock.read_bytes() == b""
    with host.lock(str(launcher), {}):
        assert host.lock_holder(str(launcher)) == {}


def test_lock_is_free_after_an_exception_and_after_sigkill(host: LocalHost, launcher: Path) -> None:
    with pytest.raises(RuntimeError), host.lock(str(launcher), {}):
        raise RuntimeError
    code = """
        import os, sys, time
        from lanectl.adapters.host_local import LocalHost
        with LocalHost().lock(sys.argv[1], {"pid": 1, "who": "dead"}):
            print("held", flush=True)
            time.sleep(60)
    """
    with child(*python(code, str(launcher))) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(LaneBusy, match="who dead"), host.lock(str(launcher), {}):
            pass
        process.kill()
        process.wait()
        assert host.lock_holder(str(launcher)) is None
        with host.lock(str(launcher), {}):
            pass


def test_words_of_a_dead_process_are_not_taken_for_the_holder(
    host: LocalHost, launcher: Path
) -> None:
    with host.lock(str(launcher), {**holder(host), "started": 1.0}):
        assert host.lock_holder(str(launcher)) == {}


def test_lock_does_not_leak_into_children(host: LocalHost, launcher: Path) -> None:
    with host.lock(str(launcher), {}):
        left = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        assert host.lock_holder(str(launcher)) is None
    finally:
        left.kill()
        left.wait()


def test_a_reader_of_the_holder_never_makes_the_lane_busy(host: LocalHost, launcher: Path) -> None:
    """It has the lock for an instant to see whether it is free: that is waited out."""
    with host.lock(str(launcher), {}):
        pass
    reader = os.open(f"{launcher}.lanectl.lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    threading.Timer(0.05, os.close, [reader]).start()
    with host.lock(str(launcher), {}):
        pass


def test_lock_file_removed_meanwhile_does_not_split_the_lock(
    host: LocalHost, launcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Path(f"{launcher}.lanectl.lock")
    really_open = launcher_lock._open
    opened: list[tuple[int, bool]] = []

    def open_then_lose(path: str) -> tuple[int, bool]:
        found = really_open(path)
        if not opened:
            lock.unlink()
        opened.append(found)
        return found

    monkeypatch.setattr(launcher_lock, "_open", open_then_lose)
    with host.lock(str(launcher), {"who": "me"}):
        monkeypatch.undo()
        assert lock.exists() and host.lock_holder(str(launcher)) == {"who": "me"}


def test_lock_that_is_a_link_is_refused(host: LocalHost, launcher: Path) -> None:
    victim = launcher.with_name("victim")
    victim.write_text("precious")
    Path(f"{launcher}.lanectl.lock").symlink_to(victim)
    with pytest.raises(Refused, match="cannot open the lock"), host.lock(str(launcher), {}):
        pass
    assert victim.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_lock_made_by_root_belongs_to_the_owner_of_the_launcher(
    host: LocalHost, launcher: Path
) -> None:
    os.chown(launcher, NOBODY, NOBODY)
    with host.lock(str(launcher), {}):
        pass
    assert Path(f"{launcher}.lanectl.lock").stat().st_uid == NOBODY


# -------------------------------------------------------------------------------------------- shell


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"#!/bin/bash\nif true; then\n", "syntax error"),
        (b"#!/bin/bash\ncat <<EOF\nhello\n", "here-document"),
        (b"#!/bin/bash\r\necho\r\n", "carriage return"),
        (b"#!/no/such/shell\necho\n", "no such interpreter"),
        (b"#!/usr/bin/env no-such-shell\necho\n", "env finds no no-such-shell"),
        (b"#!/usr/bin/env\necho\n", "env finds no program"),
    ],
)
def test_bad_scripts(host: LocalHost, text: bytes, words: str) -> None:
    checked = host.check_script(text)
    assert not checked.ok and words in checked.stderr
    assert "/tmp" not in checked.stderr


@pytest.mark.parametrize(
    "text",
    [
        b"echo no shebang\n",
        b"#!/bin/bash\na=(1 2)\n",
        b"#! /usr/bin/env -S bash -e\na=(1 2)\n",
        b"#!\necho\n",
        "#!/bin/bash\necho 'größer'\n".encode(),
    ],
)
def test_good_scripts(host: LocalHost, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    checked = host.check_script(text)
    assert checked.ok, checked.stderr


def test_the_script_is_never_run_nor_our_environment_heeded(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "ran"
    rc = tmp_path / "rc"
    rc.write_text(f"touch {mark}\n")
    monkeypatch.setenv("BASH_ENV", str(rc))
    assert host.check_script(f"#!/bin/bash\ntouch {mark}\n".encode()).ok
    assert not mark.exists()


def shell_on_path(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    shell = folder / name
    shell.write_text(f"#!/bin/bash\n{body}\n")
    shell.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return shell


def test_the_shebangs_own_shell_is_asked_too(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = shell_on_path(tmp_path, "dash", 'echo "dash: $1: no arrays here" >&2', monkeypatch)
    for shebang in (f"#!{shell}", "#!/usr/bin/env dash"):
        checked = host.check_script(f"{shebang}\na=(1 2)\n".encode())
        assert not checked.ok and checked.interpreter == str(shell)
        assert checked.stderr == "dash: -n: no arrays here"


@pytest.mark.skipif(Path("/bin/sh").resolve().name != "dash", reason="sh is not dash here")
def test_arrays_die_under_dash(host: LocalHost) -> None:
    assert host.check_script(b"#!/bin/sh\na=(1 2)\n").ok is False


def test_a_shell_that_hangs_is_cut(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell_on_path(tmp_path, "zsh", "sleep 60", monkeypatch)
    monkeypatch.setattr(script_check, "TIMEOUT_S", 0.3)
    checked = host.check_script(b"#!/usr/bin/env zsh\ntrue\n")
    assert not checked.ok and "did not end within 0.3 s" in checked.stderr


# ---------------------------------------------------------------------------------------- processes


@given(
    name=st.text(st.characters(exclude_characters="\0\n", codec="utf-8"), max_size=15),
    numbers=st.lists(st.integers(0, 10**9), min_size=40, max_size=49),
)
def test_any_command_name_is_read_right(name: str, numbers: list[int]) -> None:
    line = f"77 ({name}) S {' '.join(map(str, numbers))}\n".encode()
    process = procfs.parse_stat(line)
    assert (process.pid, process.name, process.state) == (77, name, "S")
    assert (process.ppid, process.pgid) == (numbers[0], numbers[1])
    assert process.started == pytest.approx(
        procfs.boot_time() + numbers[18] / os.sysconf("SC_CLK_TCK"), abs=0.006
    )


def test_command_name_with_parentheses_of_a_live_process(host: LocalHost) -> None:
    code = """
        import ctypes, time
        ctypes.CDLL(None).prctl(15, b") S 1 (x) (", 0, 0, 0)
        print("go", flush=True)
        time.sleep(60)
    """
    with child(*python(code)) as process:
        assert process.stdout is not None and process.stdout.readline() == b"go\n"
        seen = host.process(process.pid)
        assert seen is not None
        assert (seen.name, seen.ppid) == (") S 1 (x) (", os.getpid())
        assert seen.argv[:2] == (sys.executable, "-c")
        listed = next(one for one in host.processes() if one.pid == process.pid)
        assert (listed.started, listed.argv) == (seen.started, ())


def test_start_times_hold_still_and_are_about_now(host: LocalHost) -> None:
    with child("sleep", "60") as process:
        times = set()
        for _ in range(30):
            seen = host.process(process.pid)
            assert seen is not None
            times.add(seen.started)
        assert len(times) == 1
        assert -0.1 < time.time() - times.pop() < 3
        assert host.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_zombie_is_seen_and_not_signalled(host: LocalHost) -> None:
    with child("true") as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        seen = host.process(process.pid)
        assert seen is not None and (seen.state, seen.argv) == ("Z", ())
        assert host.environ(process.pid) is None
        assert host.signal(seen, signal.SIGTERM) is False
    assert host.process(process.pid) is None
    assert host.signal(seen, signal.SIGTERM) is False


def test_a_process_that_renamed_itself_has_no_argv(host: LocalHost) -> None:
    """The title is written over argv and set as the command name, as vLLM's engine does it."""
    code = """
        import ctypes, time
        title = b"VLLM::EngineCore"
        start, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[45:47])
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, title, len(title))
        ctypes.CDLL(None).prctl(15, title, 0, 0, 0)
        print("go", flush=True)
        time.sleep(60)
    """
    with child(*python(code)) as process:
        assert process.stdout is not None and process.stdout.readline() == b"go\n"
        assert Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"VLLM::EngineCore")
        seen = host.process(process.pid)
        assert seen is not None and (seen.name, seen.argv) == ("VLLM::EngineCor", ())


def test_environ(host: LocalHost) -> None:
    with child("sleep", "60", env={"A": "1=2", "B": ""}) as process:
        deadline = time.monotonic() + 5
        while host.environ(process.pid) != {"A": "1=2", "B": ""}:  # Until it has become `sleep`.
            assert time.monotonic() < deadline
    assert host.environ(process.pid) is None


@pytest.mark.parametrize("pinned", [True, False])
def test_signal_reaches_this_very_process_only(
    host: LocalHost, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not pinned:

        def missing(_pid: int) -> int:
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", missing)
    with child("sleep", "60") as process:
        seen = host.process(process.pid)
        assert seen is not None
        reused = Process(seen.pid, seen.ppid, seen.pgid, seen.started - 0.01, "sleep", "S")
        assert host.signal(reused, signal.SIGKILL) is False
        assert process.poll() is None
        assert host.signal(seen, signal.SIGTERM) is True
        assert process.wait(5) == -signal.SIGTERM
        assert host.signal(seen, signal.SIGTERM) is False


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_signal_that_is_not_allowed_says_so(host: LocalHost) -> None:
    with child("sleep", "60") as process:
        seen = host.process(process.pid)
        assert seen is not None
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def as_nobody() -> None:
            os.setuid(NOBODY)
            try:
                host.signal(seen, signal.SIGTERM)
            except EffectFailed as error:
                answers.put(error.message)

        worker = context.Process(target=as_nobody)
        worker.start()
        assert answers.get() == f"not allowed to send SIGTERM to process {seen.pid} (sleep)"
        worker.join()


# ------------------------------------------------------------------------------------------ sockets


def test_every_listener_of_a_port_is_found_with_its_holders(host: LocalHost) -> None:
    code = """
        import os, socket, sys, time
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind(("127.0.0.1", int(sys.argv[1])))
        s.listen()
        pid = os.fork()
        if pid:
            print(pid, flush=True)
        time.sleep(60)
    """
    with socket.socket() as ours, socket.socket(socket.AF_INET6) as six:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        assert host.listeners(port) == [], "bound is not listening"
        ours.listen()
        six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        six.bind(("::1", port))
        six.listen()
        with child(*python(code, str(port))) as process:
            assert process.stdout is not None
            forked = int(process.stdout.readline())
            try:
                with socket.create_connection(("127.0.0.1", port)):
                    found = host.listeners(port)
            finally:
                os.kill(forked, signal.SIGKILL)
    me = frozenset({os.getpid()})
    assert sorted(((one.address, one.pids) for one in found), key=str) == sorted(
        [("127.0.0.1", me), ("::1", me), ("127.0.0.1", frozenset({process.pid, forked}))], key=str
    )
    # A killed process gives its socket back a moment later.
    until = time.monotonic() + 10
    while host.listeners(port) and time.monotonic() < until:
        time.sleep(0.01)
    assert host.listeners(port) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_holders_that_may_not_be_looked_at_are_unknown(host: LocalHost) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = """
            import os, sys
            from lanectl.adapters.host_local import LocalHost
            host = LocalHost()
            os.setuid(65534)
            print([one.pids for one in host.listeners(int(sys.argv[1]))])
        """
        done = subprocess.run(python(code, str(port)), capture_output=True, text=True)
    assert done.stdout == "[None]\n", done.stderr


# ----------------------------------------------------------------------------------------- commands


def test_run_tells_status_and_outputs(host: LocalHost) -> None:
    assert host.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=5) == (
        3,
        "out\n",
        "err\n",
    )
    assert host.run(["printf", "%s", "$HOME; *"], timeout_s=5)[1] == "$HOME; *"
    assert host.run(["sh", "-c", "kill -9 $$"], timeout_s=5)[0] == -9
    assert host.run(["cat"], timeout_s=5)[0] == 0, "stdin is empty"


def test_run_of_what_cannot_be_run(host: LocalHost, tmp_path: Path) -> None:
    assert host.run(["/no/such"], timeout_s=1)[0] == 127
    assert host.run([str(tmp_path)], timeout_s=1)[0] == 126


def test_run_kills_the_whole_group_at_the_limit(host: LocalHost, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    before = time.monotonic()
    status, out, _ = host.run(
        ["sh", "-c", f"echo early; sleep 60 & echo $! > {note}; wait"], timeout_s=0.4
    )
    assert (status, out) == (124, "early\n")
    assert time.monotonic() - before < 2
    deadline = time.monotonic() + 5
    while (left := host.process(int(note.read_text()))) is not None and left.state != "Z":
        assert time.monotonic() < deadline


def test_run_does_not_wait_for_who_keeps_the_pipe_open(host: LocalHost) -> None:
    before = time.monotonic()
    status, out, _ = host.run(["sh", "-c", "sleep 5 & echo $!"], timeout_s=60)
    os.kill(int(out), signal.SIGKILL)
    assert status == 0 and time.monotonic() - before < 2


def test_run_keeps_so_much_output_and_no_more(host: LocalHost) -> None:
    status, out, _ = host.run(["sh", "-c", "yes | head -c 3000000"], timeout_s=20)
    assert (status, len(out)) == (0, procfs.OUTPUT_LIMIT)


def test_run_of_a_command_that_closed_its_outputs_is_bounded(host: LocalHost) -> None:
    assert host.run(["sh", "-c", "exec >&- 2>&-; sleep 60"], timeout_s=0.3)[0] == 124
