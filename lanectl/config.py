"""lanectl.toml into core values. Every error names the key, the file and the line.

The pydantic models are the reference: `docs/reference.md` is generated from their descriptions.
Relative paths start at the folder of the file.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from lanectl.core.lane import ADOPTED, Lane, Profile, SmokeSettings
from lanectl.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9._-]+")
FLAG = re.compile(r"--?[A-Za-z0-9][A-Za-z0-9._-]*")
SECONDS_MAX = 7 * 24 * 3600.0

Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX)]
Limit = Annotated[float, Field(gt=0, le=SECONDS_MAX)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


def _text_of_number(value: object) -> object:
    """`65536` in TOML is the word `65536` on a command line; a bool stays what it is."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


Word = Annotated[str, BeforeValidator(_text_of_number), Field(pattern=r"^[^\x00-\x1f\x7f]*$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SmokeModel(Strict):
    """`[lanes.NAME.smoke]`: how a gate judges this lane."""

    gate: Literal["quick", "switch", "soak"] = Field(
        "switch", description="The gate that a switch must pass."
    )
    concurrency: Annotated[int, Field(ge=1, le=256)] = Field(
        4, description="Long prompts sent at the same time."
    )
    prompt_chars: Count = Field(
        40000, description="Characters of a long prompt; cut to the lane's max_model_len."
    )
    max_tokens: Count = Field(512, description="Token cap of a reply without thinking.")
    thinking_max_tokens: Count = Field(4096, description="Token cap of a reply with thinking.")
    request_timeout_s: Limit = Field(60.0, description="Seconds that one request may take.")
    deadline_s: Limit = Field(300.0, description="Seconds that a whole gate may take.")
    soak_s: Limit = Field(600.0, description="Seconds that the soak gate goes on.")


class ProfileModel(Strict):
    """`[lanes.LANE.profiles.NAME]`: a named desired state of the launcher."""

    speculative: Literal[False] | dict[str, Any] | None = Field(
        None, description="`false` switches speculative decoding off; a table is its settings."
    )
    max_num_seqs: Count | None = Field(None, description="Sequences that run at the same time.")
    model: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Another checkpoint: a folder or a model id."
    )
    env: dict[str, Word] = Field(
        default_factory=dict, description="Values for the launcher's own knobs (`MTP=${MTP:-3}`)."
    )
    flags: dict[str, bool | Word] = Field(
        default_factory=dict,
        description="Server flags: a value, `true` for a bare flag, `false` removes the flag.",
    )
    script: str | None = Field(None, description="A whole launcher instead of an edit of the base.")
    note: str = Field("", description="Shown in `status`.")

    @model_validator(mode="after")
    def _consistent(self) -> ProfileModel:
        edits = [k for k in ("speculative", "max_num_seqs") if getattr(self, k) is not None]
        edits += [k for k in ("model", "env", "flags") if getattr(self, k)]
        if self.script is not None and edits:
            raise ValueError(f"a script stands for itself: leave out {', '.join(edits)}")
        for flag in self.flags:
            if not FLAG.fullmatch(flag):
                raise ValueError(f"{flag!r} is no flag: write it as on the command line, --like-so")
        for name in self.env:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is no name of an environment variable")
        return self


class LaneModel(Strict):
    """`[lanes.NAME]`: one vLLM server."""

    host: str = Field("local", description="The machine it runs on. `local` is this one.")
    launcher: Annotated[str, Field(min_length=1)] = Field(description="The launcher script.")
    supervisor: str = Field(
        "unix:///run/supervisor.sock",
        description="supervisord's socket (`unix:///…`) or port (`http://127.0.0.1:9001`).",
        pattern=r"^(unix:///?[^/]|http://).*",
    )
    supervisor_user: str | None = Field(None, description="User name for supervisord.")
    supervisor_password_file: str | None = Field(
        None, description="File that holds the password for supervisord."
    )
    program: Annotated[str, Field(min_length=1)] = Field(description="The supervisord program.")
    api: str = Field(
        description="The lane's OpenAI API, up to and including `/v1`.",
        pattern=r"^https?://[^/]+.*",
    )
    api_key_file: str | None = Field(None, description="File that holds the lane's API key.")
    model: str | None = Field(None, description="Model name; the first of `/v1/models` if absent.")
    ready_timeout_s: Limit = Field(900.0, description="Seconds from start to ready.")
    stop_timeout_s: Seconds = Field(60.0, description="Seconds before the process group is killed.")
    drain_timeout_s: Seconds = Field(120.0, description="Seconds to wait for an empty queue.")
    min_uptime_s: Seconds | None = Field(
        None,
        description="Seconds up before a commit. Absent: the larger of `startsecs` and 10.",
    )
    probation_s: Seconds = Field(
        1800.0, description="Seconds of probation after a commit. 0: stable at the commit."
    )
    keep_backups: Annotated[int, Field(ge=1, le=10000)] = Field(
        20, description="Backups kept beside the launcher."
    )
    require_approval: bool = Field(False, description="`switch` needs `--approved-by`.")
    smoke: SmokeModel = Field(default_factory=SmokeModel)
    profiles: dict[str, ProfileModel] = Field(default_factory=dict)


class StoreModel(Strict):
    """`[store]`: where revisions and the journal are kept."""

    url: str | None = Field(
        None, description="SQLAlchemy URL. Absent: SQLite in the platform's state folder."
    )


class ConfigModel(Strict):
    """The whole file."""

    store: StoreModel = Field(default_factory=StoreModel)
    lanes: dict[str, LaneModel] = Field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """A configuration that holds. `lines` maps dotted keys to lines, for later errors."""

    file: Path
    store_url: str
    lanes: Mapping[str, Lane]
    lines: Mapping[str, int]

    def error(self, key: str, message: str, *, next_step: str = "") -> ConfigError:
        """A ConfigError at `key`: its line, or that of the nearest table above it."""
        return ConfigError(
            message,
            key=key,
            file=str(self.file),
            line=_line_of(self.lines, key),
            next_step=next_step,
        )

    def lanes_to_see(self, name: str | None) -> list[Lane]:
        """The lane of that name, or all. A missing secret file is something to see, no refusal."""
        if name is None and self.lanes:
            return list(self.lanes.values())
        if name is not None and name in self.lanes:
            return [self.lanes[name]]
        return [self.lane(name)]  # Says what is wrong.

    def lane(self, name: str | None) -> Lane:
        """The lane of that name, or the only one. Its secret files must exist."""
        if not self.lanes:
            raise self.error("lanes", "no lane is configured", next_step="add a [lanes.NAME] table")
        if name is None:
            if len(self.lanes) > 1:
                raise ConfigError(
                    f"several lanes are configured: {', '.join(sorted(self.lanes))}",
                    file=str(self.file),
                    next_step="name the lane after the command",
                )
            name = next(iter(self.lanes))
        if name not in self.lanes:
            raise ConfigError(
                f"there is no lane {name!r}; known: {', '.join(sorted(self.lanes))}",
                file=str(self.file),
                next_step="lanectl status",
            )
        lane = self.lanes[name]
        for key in ("api_key_file", "supervisor_password_file"):
            path = getattr(lane, key)
            if path and not Path(path).is_file():
                raise self.error(f"lanes.{name}.{key}", f"there is no file {path}")
        return lane

    def profile(self, lane: Lane, name: str) -> Profile:
        """The lane's profile of that name; `adopted` is the base itself. Its script must exist."""
        if name == ADOPTED:
            return Profile(ADOPTED)
        if name not in lane.profiles:
            known = ", ".join([*sorted(lane.profiles), ADOPTED])
            raise self.error(
                f"lanes.{lane.name}.profiles",
                f"lane {lane.name} has no profile {name!r}; known: {known}",
                next_step=f"lanectl profiles {lane.name}",
            )
        profile = lane.profiles[name]
        if profile.script and not Path(profile.script).is_file():
            key = f"lanes.{lane.name}.profiles.{name}.script"
            raise self.error(key, f"there is no file {profile.script}")
        return profile


def find(explicit: str | None) -> Path:
    """The configuration file, by the order of design section 6. ConfigError when there is none."""
    if explicit or (explicit := os.environ.get("LANECTL_CONFIG")):
        path = Path(explicit).absolute()
        if not path.is_file():
            raise ConfigError("there is no such file", file=str(path))
        return path
    places = [
        Path("lanectl.toml").absolute(),
        Path(platformdirs.user_config_dir("lanectl")) / "lanectl.toml",
        Path("/etc/lanectl/lanectl.toml"),
    ]
    for path in places:
        if path.is_file():
            return path
    raise ConfigError(
        f"no configuration found; looked at {', '.join(map(str, places))}",
        next_step="lanectl --config FILE …, or write lanectl.toml (the README has one to copy)",
    )


def load(path: Path) -> Config:
    """Read and check the file. Raises ConfigError."""
    try:
        source = path.read_text(encoding="utf-8")
        data = tomllib.loads(source)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8", file=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        line = int(at[1]) if at else len(source.splitlines())
        raise ConfigError(f"broken TOML: {error}", file=str(path), line=line) from error
    lines = _key_lines(source)
    _check_names(data, path, lines)
    try:
        model = ConfigModel.model_validate(data)
    except ValidationError as error:
        # A key that is not known explains one that is missing.
        wrong = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        raise _config_error(wrong[0], path, lines) from error
    folder = path.parent
    lanes = {name: _lane(name, lane, folder) for name, lane in model.lanes.items()}
    config = Config(path, _store_url(model.store.url, folder), lanes, lines)
    for name, lane in lanes.items():
        if lane.host != "local":
            raise config.error(
                f"lanes.{name}.host", f"{lane.host!r}: only `local` is supported by this version"
            )
    return config


def _lane(name: str, model: LaneModel, folder: Path) -> Lane:
    def absolute(path: str | None) -> str | None:
        return None if path is None else str(folder / path)

    fields = model.model_dump(exclude={"smoke", "profiles"})
    for key in ("launcher", "api_key_file", "supervisor_password_file"):
        fields[key] = absolute(fields[key])
    if model.supervisor.startswith("unix://"):
        fields["supervisor"] = "unix://" + str(folder / model.supervisor.removeprefix("unix://"))
    profiles = {
        key: Profile(key, **{**value.model_dump(), "script": absolute(value.script)})
        for key, value in model.profiles.items()
    }
    fields["api"] = model.api.rstrip("/")
    return Lane(
        name=name, **fields, smoke=SmokeSettings(**model.smoke.model_dump()), profiles=profiles
    )


def _store_url(url: str | None, folder: Path) -> str:
    if url is None:
        return f"sqlite:///{Path(platformdirs.user_state_dir('lanectl')) / 'lanectl.db'}"
    prefix = "sqlite:///"
    if url.startswith(prefix) and not url.startswith(prefix + "/") and url != prefix:
        return f"{prefix}{folder / url.removeprefix(prefix)}"
    return url


def _check_names(data: Mapping[str, Any], path: Path, lines: Mapping[str, int]) -> None:
    lanes = data.get("lanes", {})
    keys = [("lanes", name) for name in lanes] if isinstance(lanes, dict) else []
    for _, lane in list(keys):
        profiles = lanes[lane].get("profiles", {}) if isinstance(lanes[lane], dict) else {}
        if isinstance(profiles, dict):
            keys += [(f"lanes.{lane}.profiles", name) for name in profiles]
    for table, name in keys:
        key = f"{table}.{name}"
        wrong = ""
        if not NAME.fullmatch(name):
            wrong = f"{name!r}: a name holds only letters, digits, `.`, `_`, `-`"
        elif name == ADOPTED and table != "lanes":
            wrong = "`adopted` is the name of the text that `adopt` found"
        if wrong:
            raise ConfigError(wrong, key=key, file=str(path), line=_line_of(lines, key))


def _config_error(error: ErrorDetails, path: Path, lines: Mapping[str, int]) -> ConfigError:
    parts = [str(part) for part in error["loc"]]
    if error["type"] in ("missing", "extra_forbidden"):
        key = ".".join(parts)
    else:
        # A union's branches stand in pydantic's location too; they are no keys of the file.
        known = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        key = next((key for key in known if key in lines), parts[0])
    return ConfigError(_message(error, key), key=key, file=str(path), line=_line_of(lines, key))


def _message(error: ErrorDetails, key: str) -> str:
    """What is wrong, in words of the file and not of the library."""
    name = key.rpartition(".")[2]
    if error["type"] == "extra_forbidden":
        known = [*LaneModel.model_fields, *SmokeModel.model_fields, *ProfileModel.model_fields]
        near = difflib.get_close_matches(name, known, 1)
        return "unknown key" + (f", did you mean {near[0]}?" if near else "")
    if error["type"] == "missing":
        return "is missing"
    if name.endswith("_s") and error["type"].startswith("float"):
        return "write a number of seconds, such as 300"
    if name == "supervisor":
        return "write unix:///run/supervisor.sock or http://127.0.0.1:9001"
    if name == "api":
        return "write http://HOST:PORT/v1"
    return error["msg"].removeprefix("Value error, ")


_HEADER = re.compile(r"^\s*\[\[?\s*(?P<key>[^\]]+?)\s*\]\]?\s*(#.*)?$")
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_ASSIGNMENT = re.compile(rf"^\s*(?P<key>{_PART}(?:\s*\.\s*{_PART})*)\s*=")


def _dotted(key: str) -> str:
    return ".".join(part.strip("\"'") for part in re.findall(_PART, key))


def _key_lines(source: str) -> dict[str, int]:
    """Dotted keys to lines, counted from 1. Only for error messages: tomllib tells no places."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(source.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _dotted(header["key"])
            lines.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            key = _dotted(assignment["key"])
            lines.setdefault(f"{table}.{key}" if table else key, number)
    return lines


def _line_of(lines: Mapping[str, int], key: str) -> int | None:
    """The line of `key`, or that of the nearest table above it."""
    while key:
        if key in lines:
            return lines[key]
        key = key.rpartition(".")[0]
    return None
