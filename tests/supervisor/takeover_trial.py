"""What tests/supervisor/test_keeper.py runs as a node's task: takeover_trial.py FOLDER KIND.

The "supervisor" has a driver started that waits for the file `end`; one in its place waits for it too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from rlprof_ops.supervisor.driver import Driver
from rlprof_ops.supervisor.keeper import SIGNALS, Keeper
from rlprof_ops.supervisor.node.node_state import EndOrder, NodeState

FOLDER, KIND = Path(sys.argv[1]), sys.argv[2]
CHILD = f"while ! [ -e '{FOLDER}/end' ]; do sleep 0.05; done; exit 7"


STATE = NodeState.make(FOLDER)


def supervise(before: str) -> int:
    (FOLDER / f"pid{len(list(FOLDER.glob('pid*')))}").write_text(str(os.getpid()))
    if KIND == "faulty":
        raise ValueError("a fault of ours")
    return asyncio.run(serve(before))


async def serve(before: str) -> int:
    if KIND == "held" and len(list(FOLDER.glob("pid*"))) == 2:
        time.sleep(60)  # until it is killed
    if before and KIND == "late":
        time.sleep(1)  # the driver ends, and an order comes, while nobody listens
    state = NodeState.load(FOLDER, STATE.driver)
    order = EndOrder(state)
    if before:
        (FOLDER / "inherited").write_text(before)
    driver = Driver.find(state)
    if driver is None:
        if KIND == "asked" and not before:  # killed before the keeper has heard of it
            state.request_driver(
                {
                    "argv": ["bash", "-c", CHILD],
                    "env": dict(os.environ),
                    "cwd": "/",
                    "log": str(FOLDER / "log"),
                }
            )
            (FOLDER / "ready").touch()
            time.sleep(60)
        driver = await Driver.start(CHILD, FOLDER / "script", FOLDER / "log", os.environ, FOLDER, state)
    (FOLDER / "ready").touch()
    ended = asyncio.ensure_future(driver.wait())
    await asyncio.wait({ended, order.given}, return_when=asyncio.FIRST_COMPLETED)
    if order.cause is not None:
        (FOLDER / "told").write_text(str(order.cause))
        await driver.end(5)
        return 100
    return ended.result() + (10 if before else 0)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    sys.exit(Keeper("n1", STATE, most_quick=2).keep(supervise))
