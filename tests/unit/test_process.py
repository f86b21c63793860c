"""Which processes are the lane's own: by tree for what runs, by group and start for orphans."""

from __future__ import annotations

from dataclasses import replace

from lanectl.app.process import descendants, orphans, same
from lanectl.ports import Process, Sighting

MAIN = Process(pid=100, ppid=1, pgid=100, started=1000.0, name="vllm", state="S")
ENGINE = Process(pid=110, ppid=100, pgid=100, started=1005.0, name="VLLM::EngineCor", state="S")
WORKER = Process(pid=120, ppid=110, pgid=100, started=1006.0, name="VLLM::Worker", state="S")
LEFT = Process(pid=130, ppid=100, pgid=130, started=1007.0, name="setsid", state="S")
STRANGER = Process(pid=200, ppid=1, pgid=200, started=900.0, name="bash", state="S")
SEEN = Sighting(100, 1000.0, "boot", None)


def pids(processes: list[Process]) -> set[int]:
    return {p.pid for p in processes}


def test_the_tree_holds_children_at_any_depth_and_the_group() -> None:
    adopted = replace(WORKER, ppid=1)
    everyone = [STRANGER, WORKER, LEFT, ENGINE, MAIN]
    assert pids(descendants(everyone, 100)) == {100, 110, 120, 130}
    assert pids(descendants([STRANGER, adopted, ENGINE, MAIN], 100)) == {100, 110, 120}


def test_an_orphan_is_of_a_recorded_group_and_began_after_its_leader() -> None:
    left_behind = [replace(ENGINE, ppid=1), replace(WORKER, ppid=1), STRANGER]
    assert pids(orphans(left_behind, [SEEN], None)) == {110, 120}


def test_nothing_else_is_an_orphan() -> None:
    older = replace(ENGINE, ppid=1, started=999.0)
    zombie = replace(ENGINE, ppid=1, state="Z")
    other_group = replace(ENGINE, ppid=1, pgid=77)
    for process in (older, zombie, other_group, STRANGER):
        assert orphans([process], [SEEN], None) == [], process
    assert orphans([replace(ENGINE, ppid=1)], [], None) == []


def test_todays_tree_is_never_an_orphan() -> None:
    # The pid was reused as today's main process: its group is alive and wanted.
    assert orphans([MAIN, ENGINE, WORKER], [SEEN], 100) == []


def test_a_reused_pid_is_another_process() -> None:
    assert same(MAIN, replace(MAIN, started=1000.01))
    assert not same(MAIN, replace(MAIN, started=1000.5))
    assert not same(MAIN, replace(MAIN, pid=101))
