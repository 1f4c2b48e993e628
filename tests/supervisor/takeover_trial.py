"""What tests/supervisor/test_keeper.py runs as a node's task: takeover_trial.py FOLDER KIND.

The "supervisor" has a child started that waits for the file `end`, and hands over; one in its place waits
for that child too.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from rlprof_ops.supervisor.takeover.handover import Adopted, Handover, place_of
from rlprof_ops.supervisor.takeover.keeper import Keeper
from rlprof_ops.supervisor.takeover.reins import Reins

FOLDER, KIND = Path(sys.argv[1]), sys.argv[2]
CHILD = (
    "import sys, time, pathlib\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\nsys.exit(7)"
)


def supervise(reins: Reins) -> int:
    (FOLDER / f"pid{len(list(FOLDER.glob('pid*')))}").write_text(str(os.getpid()))
    return asyncio.run(inherit(reins) if reins.before else begin(reins))


async def begin(reins: Reins) -> int:
    argv = [sys.executable, "-c", CHILD, str(FOLDER / "end")]
    place = place_of(await reins.start(argv, os.environ, FOLDER, FOLDER / "log"))
    if KIND != "before":
        Handover(place, driver=place).leave(FOLDER)
        reins.serves()
    if KIND == "ending":
        reins.ends()
    (FOLDER / "ready").touch()
    code = await Adopted(place, reins).wait()
    reins.ends()
    return code


async def inherit(reins: Reins) -> int:
    left = Handover.find(FOLDER)
    assert left.driver is not None
    if KIND == "late":
        time.sleep(1)  # the child ends while nobody listens
    (FOLDER / "inherited").write_text(reins.before)
    (FOLDER / "told").write_text(str(reins.told))
    code = await Adopted(left.driver, reins).wait()
    reins.ends()
    return code + 10


if __name__ == "__main__":
    sys.exit(Keeper(most_quick=2).keep(supervise))
