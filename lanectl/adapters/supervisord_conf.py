"""What supervisord's API does not tell, read from its configuration file as well as can be.

`stopasgroup` and `autorestart` decide whether a stop leaves orphans (field note 19), yet
`getAllConfigInfo` is silent on them. So the file is found as supervisord found it, and read with
its rules. Nothing here raises: what cannot be found out is None.
"""

from __future__ import annotations

import configparser
import getopt
import glob
import os
import platform
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lanectl.adapters import procfs

_SHORT_OPTIONS = "c:h?vnu:m:d:l:y:z:e:j:i:q:a:b:ktx:s"
_LONG_OPTIONS = ["configuration=", "help", "version", "nodaemon", "user=", "umask=", "directory="]
_LONG_OPTIONS += ["logfile=", "logfile_maxbytes=", "logfile_backups=", "loglevel=", "pidfile="]
_LONG_OPTIONS += ["identifier=", "childlogdir=", "minfds=", "minprocs=", "nocleanup", "strip_ansi"]
_LONG_OPTIONS += ["profile_options=", "silent"]
_TRUE = frozenset({"yes", "true", "on", "1"})


@dataclass(frozen=True)
class ConfSettings:
    """auto_restart: `true`, `false` or `unexpected`; environment: what supervisord adds."""

    stop_as_group: bool
    kill_as_group: bool
    auto_restart: str
    environment: Mapping[str, str] | None


def read_settings(supervisord_pid: int, group: str, name: str) -> ConfSettings | None:
    """Program `group:name` in the file of the supervisord with this pid; None: not found out."""
    try:
        file = configuration_file(supervisord_pid)
        return _settings(file, supervisord_pid, group, name) if file else None
    except (OSError, ValueError, LookupError, TypeError, configparser.Error, getopt.GetoptError):
        return None


def configuration_file(supervisord_pid: int) -> Path | None:
    """Where a running supervisord has its configuration from: `-c`, else the default places.

    Relative ones are tried from its current folder, which is the one it was started in unless
    `directory` is set.
    """
    process = procfs.process(supervisord_pid)
    if process is None:
        return None
    # `/usr/bin/supervisord`, or `python -m supervisor.supervisord`.
    names = [Path(word).name.removeprefix("supervisor.") for word in process.argv]
    if "supervisord" not in names:
        return None
    script = names.index("supervisord")
    cwd = Path(os.readlink(f"/proc/{supervisord_pid}/cwd"))  # noqa: PTH115
    options, _ = getopt.getopt(list(process.argv[script + 1 :]), _SHORT_OPTIONS, _LONG_OPTIONS)
    for option, value in options:
        if option in ("-c", "--configuration"):
            return cwd / value
    here = Path(process.argv[script]).parent.parent
    places = (
        here / "etc/supervisord.conf",
        here / "supervisord.conf",
        "supervisord.conf",
        "etc/supervisord.conf",
        "/etc/supervisord.conf",
        "/etc/supervisor/supervisord.conf",
    )
    return next((cwd / place for place in places if (cwd / place).exists()), None)


def _settings(file: Path, pid: int, group: str, name: str) -> ConfSettings | None:
    expansions: dict[str, object] = {"here": str(file.parent), "host_node_name": platform.node()}
    expansions |= {f"ENV_{key}": value for key, value in (procfs.environ(pid) or {}).items()}
    parser = _parse(file, expansions)
    for section, section_group in _programs(parser):
        options = dict(parser.items(section))
        names = expansions | {
            "program_name": section.partition(":")[2],
            "group_name": section_group,
        }
        for number in _process_numbers(options):
            names["process_num"], names["numprocs"] = number, int(options.get("numprocs", "1"))
            process_name = options.get("process_name", "%(program_name)s") % names
            if (section_group, process_name) == (group, name):
                stop_as_group = _boolean(options.get("stopasgroup", "false"))
                restart = options.get("autorestart", "unexpected").lower()
                return ConfSettings(
                    stop_as_group=stop_as_group,
                    kill_as_group=_boolean(options.get("killasgroup", str(stop_as_group))),
                    auto_restart=restart
                    if restart == "unexpected"
                    else str(_boolean(restart)).lower(),
                    environment=_environment(parser, options, names),
                )
    return None


def _parse(file: Path, expansions: Mapping[str, object]) -> configparser.RawConfigParser:
    """The file and what its `[include]` names, with supervisord's rules for comments."""
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"), strict=False)
    with file.open() as text:
        parser.read_file(text)
    _expand_here(parser, file.parent)
    if parser.has_option("include", "files"):
        for pattern in (parser.get("include", "files") % expansions).split():
            for included in sorted(glob.glob(str(file.parent / pattern))):  # noqa: PTH207
                parser.read(included)
                _expand_here(parser, Path(included).parent)
    return parser


def _expand_here(parser: configparser.RawConfigParser, folder: Path) -> None:
    """`%(here)s` means the folder of the very file that says it."""
    for section in parser.sections():
        for key, value in parser.items(section):
            if "%(here)s" in value:
                parser.set(section, key, value.replace("%(here)s", str(folder)))


def _programs(parser: configparser.RawConfigParser) -> Iterator[tuple[str, str]]:
    """Each program section and its group: the one that lists it, else one of its own name."""
    groups = {
        program.strip(): section.partition(":")[2]
        for section in parser.sections()
        if section.startswith("group:")
        for program in parser.get(section, "programs", fallback="").split(",")
    }
    for section in parser.sections():
        kind, _, program = section.partition(":")
        if kind in ("program", "fcgi-program"):
            yield section, groups.get(program, program)


def _process_numbers(options: Mapping[str, str]) -> range:
    first = int(options.get("numprocs_start", "0"))
    return range(first, first + int(options.get("numprocs", "1")))


def _boolean(word: str) -> bool:
    return word.lower() in _TRUE


def _environment(
    parser: configparser.RawConfigParser,
    options: Mapping[str, str],
    expansions: Mapping[str, object],
) -> Mapping[str, str] | None:
    """[supervisord]'s environment and the program's own over it; None when it does not expand."""
    try:
        common = _pairs(parser.get("supervisord", "environment", fallback="") % expansions)
        known = dict(expansions) | {f"ENV_{key}": value for key, value in common.items()}
        return common | _pairs(options.get("environment", "") % known)
    except (KeyError, ValueError, TypeError):
        return None


def _pairs(text: str) -> dict[str, str]:
    """`KEY="value",KEY2=value` the way supervisord takes it apart."""
    lexer = shlex.shlex(text)
    lexer.wordchars += "/.+-():"
    words = list(lexer)
    found = {}
    for at in range(0, len(words), 4):
        key, equals, value = words[at : at + 3]
        if equals != "=":
            raise ValueError(f"no `=` after {key}")
        found[key] = value.strip("'\"")
    return found
