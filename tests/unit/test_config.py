"""lanectl.toml: every error names the key, the file and the line, and nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanectl.config import Config, find, load
from lanectl.errors import ConfigError

GOOD = """\
[store]
url = "sqlite:///state/lanectl.db"

[lanes.q]
launcher = "serve.sh"
supervisor = "unix://run/s.sock"
program = "q"
api = "http://127.0.0.1:8000/v1/"
min_uptime_s = 0

[lanes.q.smoke]
concurrency = 2

[lanes.q.profiles.reliability]
speculative = false
max_num_seqs = 8
flags = { "--max-model-len" = 65536, "--enforce-eager" = true, "--swap-space" = false }

[lanes.q.profiles.throughput]
speculative = { method = "mtp", num_speculative_tokens = 3 }
note = "fast"
"""


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "lanectl.toml"
    path.write_text(text)
    return load(path)


def test_a_whole_file(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD)
    lane = config.lane(None)
    assert lane.launcher == str(tmp_path / "serve.sh")
    assert lane.supervisor == f"unix://{tmp_path}/run/s.sock"
    assert lane.api == "http://127.0.0.1:8000/v1"
    assert lane.port == 8000
    assert lane.min_uptime_s == 0
    assert lane.smoke.concurrency == 2
    assert config.store_url == f"sqlite:///{tmp_path}/state/lanectl.db"
    flags = lane.profiles["reliability"].flags
    assert flags == {"--max-model-len": "65536", "--enforce-eager": True, "--swap-space": False}
    assert lane.profiles["reliability"].speculative is False
    assert lane.profiles["throughput"].speculative == {"method": "mtp", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("old", "new", "key", "line"),
    [
        ("concurrency = 2", "concurrency = 0", "lanes.q.smoke.concurrency", 12),
        ("concurrency = 2", 'concurrency = "2"', "lanes.q.smoke.concurrency", 12),
        ("min_uptime_s = 0", 'min_uptime_s = "10s"', "lanes.q.min_uptime_s", 9),
        ("min_uptime_s = 0", "min_uptime_s = -1", "lanes.q.min_uptime_s", 9),
        ("min_uptime_s = 0", "min_uptime_s = inf", "lanes.q.min_uptime_s", 9),
        ("min_uptime_s", "min_uptimes", "lanes.q.min_uptimes", 9),
        ('program = "q"\n', "", "lanes.q.program", 4),
        (
            "speculative = false",
            "speculative = true",
            "lanes.q.profiles.reliability.speculative",
            15,
        ),
        ("--enforce-eager", "enforce eager", "lanes.q.profiles.reliability", 14),
        ("profiles.throughput]", "profiles.adopted]", "lanes.q.profiles.adopted", 19),
        ("profiles.throughput]", 'profiles."a b"]', "lanes.q.profiles.a b", 19),
        ('note = "fast"', 'script = "nowhere.sh"', "lanes.q.profiles.throughput", 19),
        ('launcher = "serve.sh"', 'launcher = "serve.sh"\nhost = "ssh://a@b"', "lanes.q.host", 6),
    ],
)
def test_an_error_names_key_file_and_line(
    tmp_path: Path, old: str, new: str, key: str, line: int
) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as told:
        read(tmp_path, GOOD.replace(old, new))
    error = told.value
    assert (error.key, error.line) == (key, line)
    assert f"{tmp_path}/lanectl.toml:{line}: {key}:" in str(error)


def test_broken_toml_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        read(tmp_path, GOOD.replace('program = "q"', 'program = "q'))
    assert told.value.line == 7


def test_a_missing_secret_file_is_told_when_the_lane_is_used(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD.replace("min_uptime_s = 0", 'api_key_file = "k"'))
    with pytest.raises(ConfigError, match=r"lanectl.toml:9: lanes.q.api_key_file: there is no"):
        config.lane("q")


def test_an_unknown_lane_and_profile_list_the_known(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD)
    with pytest.raises(ConfigError, match="no lane 'z'; known: q"):
        config.lane("z")
    with pytest.raises(ConfigError, match="known: reliability, throughput, adopted"):
        config.profile(config.lane("q"), "z")


def test_several_lanes_want_a_name(tmp_path: Path) -> None:
    other = GOOD[GOOD.index("[lanes.q]") : GOOD.index("[lanes.q.smoke]")].replace(
        "lanes.q", "lanes.r"
    )
    config = read(tmp_path, GOOD + other)
    with pytest.raises(ConfigError, match="several lanes are configured: q, r"):
        config.lane(None)


def test_the_order_in_which_a_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "work"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lanectl.toml").write_text(GOOD)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("LANECTL_CONFIG", str(tmp_path / "b" / "lanectl.toml"))
    assert find(str(tmp_path / "a" / "lanectl.toml")) == tmp_path / "a" / "lanectl.toml"
    assert find(None) == tmp_path / "b" / "lanectl.toml"
    monkeypatch.delenv("LANECTL_CONFIG")
    assert find(None) == tmp_path / "work" / "lanectl.toml"
    with pytest.raises(ConfigError, match="there is no such file"):
        find(str(tmp_path / "none.toml"))
