"""What an operator can get wrong: refused, with the place and the way out, and nothing changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanectl.demo.rig import LANE, PROGRAM
from tests.lanes import PROFILES, Answer, Bench, Command, Forge, Seen, bench, wait_for

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("bad-input")]


@pytest.fixture(scope="module")
def module_lane() -> Iterator[Bench]:
    with bench() as made:
        yield made


@pytest.fixture
def lane(module_lane: Bench) -> Iterator[Bench]:
    """The module's lane; launcher and configuration are put back afterwards."""
    made = module_lane
    wait_for(lambda: not unfinished(made))
    config, launcher = made.rig.config.read_bytes(), made.rig.launcher.read_bytes()
    yield made
    made.rig.config.write_bytes(config)
    path = made.rig.launcher
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)
    if not unfinished(made):
        made.rig.write_launcher(launcher)
        with made.store() as store:
            store.set_current(LANE, made.digest())


def unfinished(lane: Bench) -> bool:
    with lane.store() as store:
        return store.unfinished(LANE) is not None


def everything(lane: Bench) -> tuple[list[str], int, dict[str, object], dict[str, object]]:
    """What may not have changed: files beside the launcher, journal, processes."""
    with lane.store() as store:
        switches = len(store.history(LANE, limit=1000))
    return lane.beside(), switches, lane.rig.program(), lane.rig.program("bystander")


def without_now(program: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in program.items() if key not in ("now", "description")}


def refused(lane: Bench, *words: str, exit: int, code: str, forge: Forge | None = None) -> Answer:
    """The command is refused with that exit and code, and nothing has changed."""
    beside, switches, program, other = everything(lane)
    done = (forge or lane.forge)(*words, "--json")
    assert done.status == exit, done
    assert done.error["code"] == code, done
    now = everything(lane)
    # The lock file may be new; nothing else may.
    assert [n for n in now[0] if not n.endswith(".lock")] == [
        n for n in beside if not n.endswith(".lock")
    ]
    assert now[1] == switches, "the refusal left a journal"
    assert without_now(now[2]) == without_now(program)
    assert without_now(now[3]) == without_now(other)
    plain = (forge or lane.forge)(*words)
    assert plain.status == exit and plain.out == "", plain
    assert plain.err.startswith("lanectl: ") or "\nlanectl: " in plain.err, plain
    return done


CHANGES = (("switch", "a"), ("restart",), ("rollback",))


def test_an_unknown_profile(lane: Bench) -> None:
    done = refused(lane, "switch", "throughputt", exit=2, code="config")
    for name in PROFILES:
        assert name in done.error["message"] + done.error["next"], "the known ones are listed"


def test_an_unknown_lane(lane: Bench) -> None:
    for words in (("switch", "nowhere", "a"), ("rollback", "nowhere"), ("status", "nowhere")):
        done = refused(lane, *words, exit=2, code="config")
        assert "nowhere" in done.error["message"]
        assert LANE in done.error["message"] + done.error["next"]


@pytest.mark.parametrize(
    ("broken", "line_of", "key"),
    [
        ('\n[lanes.demo.more\nx = "', "[lanes.demo.more", None),
        ("\n[daemon_or_so]\nx = 1\n", "[daemon_or_so]", "daemon_or_so"),
        ("\n[lanes.demo.profiles.z]\nmax_num_seq = 3\n", "max_num_seq = 3", "max_num_seq"),
        ("\n[lanes.demo.profiles.z]\nmax_num_seqs = -3\n", "max_num_seqs = -3", "max_num_seqs"),
        (
            '\n[lanes.demo.profiles.z]\nscript = "no-such.sh"\n',
            'script = "no-such.sh"',
            "lanes.demo.profiles.z.script",
        ),
    ],
)
def test_a_broken_configuration(lane: Bench, broken: str, line_of: str, key: str | None) -> None:
    text = lane.rig.config.read_text() + broken
    lane.rig.config.write_text(text)
    number = text[: text.index(line_of)].count("\n") + 1
    # A file that is missing is only looked for when its profile is asked for.
    words = ("switch", "z") if key and key.endswith("script") else ("switch", "a")
    done = refused(lane, *words, exit=2, code="config")
    message = done.error["message"]
    assert str(lane.rig.config) in message
    assert key is None or key in message
    if key is None:
        assert "line" in message or f"{lane.rig.config}:" in message, message
    else:
        assert f"{lane.rig.config}:{number}:" in message, message


def test_no_configuration_at_all(lane: Bench) -> None:
    refused(
        lane, "switch", "a", "--config", str(lane.rig.folder / "none.toml"), exit=2, code="config"
    )


def test_a_program_of_another_name(lane: Bench) -> None:
    lane.rig.write_config(profiles=PROFILES, smoke={"gate": "quick"}, program="lame")
    for words in CHANGES:
        done = refused(lane, *words, exit=2, code="config")
        assert PROGRAM in done.error["message"] + done.error["next"], "the near name is told"
        assert "lame" in done.error["message"]


def test_a_missing_supervisor_socket(lane: Bench) -> None:
    lane.rig.write_config(
        profiles=PROFILES, smoke={"gate": "quick"}, supervisor="unix:///no/such/supervisor.sock"
    )
    for words in CHANGES:
        done = refused(lane, *words, exit=3, code="unreachable")
        assert "/no/such/supervisor.sock" in done.error["message"]


def test_the_launcher_is_a_folder(lane: Bench) -> None:
    lane.rig.launcher.unlink()
    lane.rig.launcher.mkdir()
    for words in CHANGES:
        done = refused(lane, *words, exit=2, code="config")
        assert "is a folder" in done.error["message"]
    lane.rig.launcher.rmdir()


def test_the_launcher_is_missing(lane: Bench) -> None:
    lane.rig.launcher.unlink()
    for words in CHANGES:
        done = refused(lane, *words, exit=2, code="config")
        assert "there is no file" in done.error["message"]
        assert f"{lane.rig.config}:" in done.error["message"], "with key, file and line"
    assert not lane.rig.launcher.exists()


def test_the_launcher_is_a_link(lane: Bench) -> None:
    """The file it leads to is changed, and the link stays one."""
    real = lane.rig.folder / "real.sh"
    lane.rig.launcher.rename(real)
    lane.rig.launcher.symlink_to(real)
    done = lane.forge("switch", "a", "--json")
    assert done.status == 0, done
    assert lane.rig.launcher.is_symlink() and "--max-num-seqs 4" in real.read_text()
    back = lane.forge("rollback", "--json")
    assert back.status == 0, back
    assert lane.rig.launcher.is_symlink()
    # A link to a link, or to nothing: nobody can say at a glance what would be replaced.
    lane.rig.launcher.unlink()
    second = lane.rig.folder / "second.sh"
    second.symlink_to(real)
    lane.rig.launcher.symlink_to(second)
    refused(lane, "switch", "a", exit=3, code="refused")
    second.unlink()
    refused(lane, "switch", "a", exit=3, code="refused")
    real.rename(lane.rig.launcher)


def test_the_launcher_is_rubbish(lane: Bench) -> None:
    assert lane.forge("switch", "a", "--barred-ok").status == 0
    rubbish = bytes(range(256)) * 8
    lane.rig.launcher.write_bytes(rubbish)
    for words in CHANGES:
        done = refused(lane, *words, exit=3, code="drift")
        assert lane.digest()[:12] in done.error["message"] + done.error["next"]
    adopted = lane.forge("adopt", "--unproven", "--json")
    assert adopted.status in (2, 3), adopted
    assert "error" in adopted.json
    assert lane.rig.launcher.read_bytes() == rubbish


def test_an_unwritable_folder(lane: Bench) -> None:
    """Not even root can write there: the folder is marked immutable, or read-only by its mode."""
    folder = lane.rig.folder / "fixed"
    folder.mkdir()
    launcher = folder / "serve-lane.sh"
    shutil.copy2(lane.rig.launcher, launcher)
    store = f"sqlite:///{lane.rig.folder}/other.db"
    lane.rig.write_config(profiles=PROFILES, smoke={"gate": "quick"}, launcher=str(launcher))
    text = lane.rig.config.read_text()
    lane.rig.config.write_text(text.replace(f"sqlite:///{lane.store_path}", store))
    assert lane.forge("adopt", "--unproven").status == 0
    before = sorted(folder.iterdir())
    if os.geteuid() == 0:
        for words in (("--bind", str(folder), str(folder)), ("-o", "remount,ro,bind", str(folder))):
            if subprocess.run(["mount", *words], capture_output=True).returncode:
                pytest.skip("no read-only mount can be made here")
    else:
        folder.chmod(0o555)
    try:
        done = lane.forge("switch", "a", "--json")
        program = lane.rig.program()
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.chmod(0o755)
    assert done.status == 3, done
    assert str(launcher) in done.out
    assert sorted(folder.iterdir()) == before
    assert without_now(program) == without_now(lane.rig.program())


# ----------------------------------------------------------------------------- two at the same time


def test_beside_a_running_switch(lane: Bench) -> None:
    before = lane.seen()
    with Command(lane.rig, "switch", "slow", "--json") as first:
        wait_for(lambda: unfinished(lane))
        wait_for(lambda: lane.digest() != before.sha256)
        for words in (("switch", "a"), ("restart",), ("adopt", "--unproven")):
            done = lane.forge(*words, "--json")
            assert (done.status, done.error["code"]) == (3, "busy"), done
            message = done.error["message"]
            assert str(first_worker(lane)) in message, "the holder is shown"
            assert "@" in message and " s" in message, "who holds it, and for how long"
            assert "lanectl status" in done.error["next"]
        told = lane.forge("status", "--json").json[0]
        assert told["unfinished"] and told["unfinished_holder"]["pid"] == first_worker(lane)
        ended = first.end()
    assert ended.status == 0, ended
    assert lane.forge("rollback").status == 0


def first_worker(lane: Bench) -> int:
    lock = f"{lane.rig.launcher}.lanectl.lock"
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(fd) == lock:  # noqa: PTH115
                return int(fd.parts[2])
        except OSError:
            continue
    raise AssertionError("nobody holds the lane")


def race(*forges: tuple[Forge, tuple[str, ...]]) -> list[Answer]:
    """Run the commands at the same moment."""
    answers: list[Answer] = []
    gate = threading.Barrier(len(forges))

    def go(forge: Forge, words: tuple[str, ...]) -> None:
        gate.wait()
        answers.append(forge(*words))

    threads = [threading.Thread(target=go, args=pair) for pair in forges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def one_of_two(lane: Bench, answers: list[Answer], before: Seen) -> None:
    assert sorted(answer.status for answer in answers) == [0, 3], list(map(str, answers))
    (loser,) = (answer for answer in answers if answer.status == 3)
    assert loser.error["code"] == "busy", loser
    now = lane.seen()
    assert now.spawned == before.spawned + 1, "one restart, not two"
    assert now.bystander == before.bystander
    assert not lane.staged()
    lane.check_serves()


def test_two_switches_at_once_from_one_store(lane: Bench) -> None:
    with Forge(lane.rig) as second:
        second("status")
        before = lane.seen()
        answers = race(
            (lane.forge, ("switch", "slow", "--barred-ok", "--json")),
            (second, ("switch", "slow", "--barred-ok", "--json")),
        )
        one_of_two(lane, answers, before)
    assert lane.forge("rollback").status == 0


def test_two_switches_at_once_from_two_stores(lane: Bench) -> None:
    """The lock lies beside the launcher, whichever store its holder writes to."""
    other = lane.rig.folder / "other.toml"
    other.write_text(lane.rig.config.read_text().replace("lanectl.db", "second.db"))
    with Forge(lane.rig) as second:
        adopted = second("adopt", "--unproven", "--config", str(other))
        assert adopted.status == 0, adopted
        before = lane.seen()
        answers = race(
            (lane.forge, ("switch", "slow", "--barred-ok", "--json")),
            (second, ("switch", "slow", "--barred-ok", "--json", "--config", str(other))),
        )
        one_of_two(lane, answers, before)
    # To the store that lost, the change of the other is drift, and never overwritten unasked.
    with lane.store() as store:
        row = store.lane(LANE)
    assert row
    won = row.current_sha256 == lane.digest()
    loser = ("--config", str(other if won else lane.rig.config))
    drifted = lane.forge("switch", "b", "--barred-ok", "--json", *loser)
    assert (drifted.status, drifted.error["code"]) == (3, "drift"), drifted
    here = lane.digest()
    accepted = lane.forge("rollback", "--json", "--accept-drift", here[:12], *loser)
    assert accepted.status in (0, 3), accepted
    lane.check_serves()
