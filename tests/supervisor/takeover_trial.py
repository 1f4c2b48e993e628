"""What tests/supervisor/test_keeper.py runs as a node's task: takeover_trial.py FOLDER KIND.

The "supervisor" starts a child of its own, hands over, and waits for the file `end`; one that inherits
waits for that child instead and writes down its exit code.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
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
    if reins.inherited is not None:
        return asyncio.run(inherit(reins))
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(FOLDER / "end")], start_new_session=True)
    if KIND != "before":
        Handover(place_of(child.pid), driver=place_of(child.pid)).leave(FOLDER)
        reins.serves()
    if KIND == "ending":
        reins.ends()
    (FOLDER / "ready").touch()
    code = child.wait()
    reins.ends()
    return code


async def inherit(reins: Reins) -> int:
    assert reins.inherited is not None
    left = Handover.find(FOLDER)
    assert left.driver is not None
    if KIND == "late":
        time.sleep(1)  # the child ends while nobody listens
    reins.serves()
    (FOLDER / "inherited").write_text(reins.inherited.how)
    return await Adopted(left.driver, reins.inherited).wait() + 10


if __name__ == "__main__":
    sys.exit(Keeper().keep(supervise))
