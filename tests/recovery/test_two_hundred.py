"""Two hundred switches in a row leave no more behind than one does."""

from __future__ import annotations

import gc
import os
import time

import psutil
import pytest

from lanectl import wiring
from lanectl.app import change
from lanectl.app.change import Asking, Unchanged
from lanectl.config import load
from lanectl.core.switch import Phase
from lanectl.demo.rig import LANE
from tests.lanes import bench

SWITCHES = 200
WARM_UP = 20
KEEP = 5


@pytest.mark.timeout(600)
def test_two_hundred_switches_in_a_row() -> None:
    with bench(config={"keep_backups": KEEP}) as lane:
        config = load(lane.rig.config)
        target = config.lane(None)
        asking = Asking("two hundred")
        me = psutil.Process()
        names = ("a", "b")

        def open_files() -> int:
            gc.collect()
            return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

        with wiring.ports(config, target) as ports:
            bystander = lane.seen().bystander
            at_first: tuple[int, int, int] | None = None
            memory = 0
            began = time.monotonic()
            for number in range(SWITCHES):
                name = names[number % 2]
                row = change.run(
                    ports,
                    target,
                    lambda _undone, name=name: change.plan_switch(
                        ports, config, target, name, asking
                    ),
                    asking=asking,
                    say=lambda _text: None,
                )
                assert not isinstance(row, Unchanged)
                assert row.phase is Phase.COMMITTED, f"switch {number}: {row.reason}"
                if number == WARM_UP:
                    at_first = (open_files(), me.num_threads(), len(lane.rig.alive()))
                    memory = me.memory_info().rss
            took = time.monotonic() - began
            assert at_first
            now = (open_files(), me.num_threads(), len(lane.rig.alive()))
            assert now[0] <= at_first[0] + 2, f"{now[0]} descriptors, {at_first[0]} at first"
            assert now[1] <= at_first[1] + 1, f"{now[1]} threads, {at_first[1]} at first"
            assert now[2] == at_first[2] == 3, "supervisord, the lane, the bystander"
            assert not [
                c for c in me.children() if c.status() == psutil.STATUS_ZOMBIE and is_ours(c)
            ]
            grown = (me.memory_info().rss - memory) / 1e6
            assert grown < 40, f"grown by {grown:.0f} MB"
            history = ports.store.history(LANE, limit=SWITCHES + 10)
        assert len(history) == SWITCHES
        assert not lane.staged()
        # The newest ones, and one copy of each of the three revisions that are still needed.
        assert KEEP <= len(lane.backups()) <= KEEP + 3, lane.backups()
        needed = {"adopted", "a", "b"}
        assert needed <= {path.name.split("-")[-1] for path in lane.backups()} | {names[1]}
        assert lane.seen().bystander == bystander
        assert lane.store_path.stat().st_size < 30e6
        lane.check_serves()
        print(f"{SWITCHES} switches in {took:.1f} s")


def is_ours(child: psutil.Process) -> bool:
    """Not one that pytest or the rig keeps for later."""
    try:
        return "lanectl" in " ".join(child.cmdline())
    except psutil.Error:
        return False
