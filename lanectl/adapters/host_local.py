"""The machine we run on, as `ports.Host`: launcher files, backups, the lock, the shell.

What a launcher says is run, often as root, so a place that somebody else can write to is not
followed into. Refused before anything is written: a folder that is world-writable without the
sticky bit (anyone could swap the launcher between our check and our rename), and a folder owned by
somebody other than root, us or the launcher's own owner. A root operator working on a user's
launcher in that user's folder is the common case and is fine; so is a group-writable folder, where
the group is trusted by whoever set it up. The same holds for the folder of a symbolic link's
target. A link to a link is refused: nobody can say at a glance which file would be replaced.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
import shlex
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lanectl.adapters import launcher_lock, procfs, script_check
from lanectl.adapters.refusal import refusal
from lanectl.core.lane import digest
from lanectl.errors import ConfigError, Drift, Refused
from lanectl.ports import Backup, LauncherFile, Listener, PathFacts, Process, ScriptCheck

SIZE_LIMIT = 1 << 20
"""A launcher larger than this many bytes is something else."""

_BACKUP = re.compile(r"\.bak-(\d{8}-\d{6})-[A-Za-z0-9._-]+\Z")
_STAGED = re.compile(r"\.lanectl-[0-9a-f]{8}\Z")


def _follow(path: str) -> str:
    """`path` made absolute, with one symbolic link at its end followed."""
    path = os.path.abspath(path)  # noqa: PTH100  (resolve() would follow every link)
    try:
        target = os.readlink(path)  # noqa: PTH115
    except OSError:
        return path
    named = Path(path).parent / target
    target = str(named.parent.resolve() / named.name)
    if os.path.islink(target):  # noqa: PTH114
        raise Refused(
            f"{path} is a link to {target}, which is a link again; nothing changed",
            next_step="set launcher to the file itself",
        )
    return target


def _folder(path: str) -> str:
    return str(Path(path).parent)


def _load(path: str) -> tuple[bytes, os.stat_result] | None:
    """Text and metadata of a regular file that is no link; None when absent."""
    try:
        # O_NONBLOCK: a named pipe must not hold us up before we can see that it is one.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Refused(f"{path} has become a symbolic link; nothing changed") from error
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise ConfigError(f"{path} is not a regular file") from error
        raise refusal("cannot read", path, error) from error
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise ConfigError(f"{path} is a folder", next_step="name the launcher script in it")
        if not stat.S_ISREG(info.st_mode):
            raise ConfigError(f"{path} is not a regular file")
        text = b""
        while len(text) <= SIZE_LIMIT and (part := os.read(fd, SIZE_LIMIT + 1 - len(text))):
            text += part
        if len(text) > SIZE_LIMIT:
            raise Refused(f"{path} is larger than {SIZE_LIMIT} bytes, so it is no launcher script")
        return text, info
    except OSError as error:
        raise refusal("cannot read", path, error) from error
    finally:
        os.close(fd)


def _refuse_unsafe_folder(folder: str, owner: int) -> None:
    """See the module's docstring. `owner` is the launcher's uid."""
    try:
        info = Path(folder).stat()
    except OSError as error:
        raise refusal("cannot look at", folder, error) from error
    if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
        raise Refused(
            f"anyone can write to {folder}, so anyone could swap the launcher; nothing changed",
            next_step=f"chmod o-w {shlex.quote(folder)}",
        )
    if info.st_uid not in (0, os.geteuid(), owner):
        raise Refused(
            f"{folder} belongs to {_user(info.st_uid)}, who could swap the launcher of "
            f"{_user(owner)}; nothing changed",
            next_step=f"chown {_user(owner)} {shlex.quote(folder)}",
        )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_new(names: Callable[[int], str], text: bytes, like: LauncherFile) -> str:
    """Write `text` to the first of `names(1)`, `names(2)`, … that does not exist; its path.

    Mode and owner are those of `like`; the file and its folder are synced, the text is read back
    and compared. On any failure the file is removed again.
    """
    _refuse_unsafe_folder(_folder(like.path), like.uid)
    number = 1
    while True:
        path = names(number)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            break
        except FileExistsError:
            number += 1
        except OSError as error:
            raise refusal("cannot write", path, error) from error
    try:
        rest = memoryview(text)
        while rest:
            rest = rest[os.write(fd, rest) :]
        info = os.fstat(fd)
        if (info.st_uid, info.st_gid) != (like.uid, like.gid):
            os.fchown(fd, like.uid, like.gid)
        os.fchmod(fd, like.mode)  # After fchown, which clears the set-id bits.
        os.fsync(fd)
        read_back = _load(path)
        if read_back is None or digest(read_back[0]) != digest(text):
            raise Refused(f"{path} does not read back as written; nothing changed")
        _sync_folder(_folder(path))
    except BaseException as error:
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        if isinstance(error, OSError):
            raise refusal("cannot write", path, error) from error
        raise
    finally:
        os.close(fd)
    return path


class LocalHost:
    """`ports.Host` for this machine. Holds no state; one may serve many lanes and threads."""

    # ---------------------------------------------------------------------------------------- files

    def read(self, path: str) -> LauncherFile | None:
        asked = os.path.abspath(path)  # noqa: PTH100
        real = _follow(path)
        loaded = _load(real)
        if loaded is None:
            if real != asked:
                raise Refused(
                    f"{asked} is a link to {real}, which does not exist",
                    next_step="restore that file, or set launcher to one that exists",
                )
            return None
        text, info = loaded
        return LauncherFile(
            asked=asked,
            path=real,
            text=text,
            sha256=digest(text),
            mode=stat.S_IMODE(info.st_mode),
            uid=info.st_uid,
            gid=info.st_gid,
            changed_at=max(info.st_mtime, info.st_ctime),
        )

    def stage(self, beside: LauncherFile, text: bytes) -> str:
        _refuse_unsafe_folder(_folder(beside.asked), beside.uid)
        real = Path(beside.path)

        def name(_number: int) -> str:
            return str(real.with_name(f".{real.name}.lanectl-{secrets.token_hex(4)}"))

        return _write_new(name, text, beside)

    def discard(self, staged: str) -> None:
        if not _STAGED.search(staged):
            raise ValueError(f"{staged} is no staged file")
        Path(staged).unlink(missing_ok=True)

    def discard_stale(self, path: str) -> None:
        real = Path(_follow(path))
        for entry in self._beside(real):
            if entry.name.startswith(f".{real.name}.") and _STAGED.fullmatch(
                entry.name, len(real.name) + 1
            ):
                with suppress(OSError):
                    os.unlink(entry.path)  # noqa: PTH108

    def replace(self, path: str, staged: str, expect: frozenset[str]) -> str:
        """See `ports.Host`. Refused when the rename itself is not possible; nothing changed then.

        A failure after the rename is an OSError: the caller must look at what stands there.
        """
        real = _follow(path)
        try:
            owner = os.lstat(staged).st_uid
        except OSError as error:
            raise refusal("cannot find the staged", staged, error) from error
        for folder in {_folder(os.path.abspath(path)), _folder(real)}:  # noqa: PTH100
            _refuse_unsafe_folder(folder, owner)
        self._expect(real, expect)
        try:
            os.rename(staged, real)  # noqa: PTH104
        except OSError as error:
            raise refusal("cannot replace", real, error) from error
        _sync_folder(_folder(real))
        loaded = _load(real)
        return digest(loaded[0]) if loaded else ""

    @staticmethod
    def _expect(real: str, expect: frozenset[str]) -> None:
        """The compare of compare-and-swap: Drift unless what stands at `real` is in `expect`."""
        loaded = _load(real)
        wanted = " or ".join(sorted(digits[:12] for digits in expect)) or "nothing"
        if loaded is None:
            raise Drift(
                f"{real} is gone; expected {wanted}; nothing changed",
                next_step="put the launcher back (`lanectl rollback --backup FILE`)",
            )
        found = digest(loaded[0])
        if found not in expect:
            raise Drift(
                f"{real} holds {found}, expected {wanted}: somebody else changed it; "
                "nothing changed",
                next_step=f"look with `lanectl diff`, then --accept-drift {found} to overwrite it",
            )

    def stat_path(self, path: str) -> PathFacts | None:
        try:
            info = Path(path).stat()
            real = str(Path(path).resolve())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise refusal("cannot look at", path, error) from error
        return PathFacts(
            real=real,
            mode=stat.S_IMODE(info.st_mode),
            uid=info.st_uid,
            gid=info.st_gid,
            owner=_user(info.st_uid),
            is_link=os.path.islink(path),  # noqa: PTH114
            is_folder=stat.S_ISDIR(info.st_mode),
        )

    # -------------------------------------------------------------------------------------- backups

    def back_up(self, source: LauncherFile, profile: str, at: datetime) -> str:
        stem = f"{source.path}.bak-{at.astimezone(UTC):%Y%m%d-%H%M%S}-{profile}"
        return _write_new(
            lambda number: stem if number == 1 else f"{stem}-{number}", source.text, source
        )

    def backups(self, path: str) -> list[Backup]:
        """Those that can be read, by the time in their name, then by the order of writing."""
        real = Path(_follow(path))
        found: list[tuple[str, int, Backup]] = []
        for entry in self._beside(real):
            match = _BACKUP.fullmatch(entry.name, len(real.name))
            if match is None or not entry.name.startswith(real.name):
                continue
            try:
                loaded = _load(entry.path)
                stamp = datetime.strptime(match[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
            except (Refused, ConfigError, ValueError):
                continue
            if loaded is not None:
                backup = Backup(entry.path, digest(loaded[0]), stamp.timestamp())
                found.append((match[1], loaded[1].st_mtime_ns, backup))
        found.sort(key=lambda item: item[:2], reverse=True)
        return [backup for _, _, backup in found]

    def remove_backup(self, path: str) -> None:
        if not _BACKUP.search(path):
            raise ValueError(f"{path} is no backup of ours")
        Path(path).unlink(missing_ok=True)

    @staticmethod
    def _beside(real: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(real.parent) as entries:
                return list(entries)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refusal("cannot list", str(real.parent), error) from error

    # ----------------------------------------------------------------------------------------- logs

    def exists(self, path: str) -> bool:
        return Path(path).is_file()

    def save_log(self, pid: int, path: str, at: datetime) -> str | None:
        for held in procfs.held_files(pid, path):
            copy = f"{path}.saved-{at.astimezone(UTC):%Y%m%d-%H%M%S}"
            try:
                fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                with Path(held).open("rb") as source, os.fdopen(fd, "wb") as target:
                    shutil.copyfileobj(source, target)
                    target.flush()
                    os.fsync(target.fileno())
            except OSError as error:
                raise refusal("cannot save the unlinked log to", copy, error) from error
            return copy
        return None

    # ----------------------------------------------------------------------------------------- lock

    def lock(self, path: str, holder: Mapping[str, Any]) -> AbstractContextManager[None]:
        return launcher_lock.hold(launcher_lock.beside(_follow(path)), holder)

    def lock_holder(self, path: str) -> Mapping[str, Any] | None:
        return launcher_lock.holder(launcher_lock.beside(_follow(path)))

    # ---------------------------------------------------------------------------------------- shell

    def check_script(self, text: bytes) -> ScriptCheck:
        return script_check.check_script(text)

    # ------------------------------------------------------------------------------------ processes

    def boot_id(self) -> str:
        return procfs.boot_id()

    def processes(self) -> list[Process]:
        return procfs.processes()

    def process(self, pid: int) -> Process | None:
        return procfs.process(pid)

    def environ(self, pid: int) -> Mapping[str, str] | None:
        return procfs.environ(pid)

    def listeners(self, port: int) -> list[Listener]:
        return procfs.listeners(port)

    def signal(self, process: Process, signal: int) -> bool:
        return procfs.send_signal(process, signal)

    def run(self, argv: Sequence[str], *, timeout_s: float) -> tuple[int, str, str]:
        return procfs.run(argv, timeout_s=timeout_s)
