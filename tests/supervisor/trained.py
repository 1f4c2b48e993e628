"""Takes a window of step 2 as a worker does: trained.py RANK, in a node's environment."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

from rlprof_ops.backends import report_names
from rlprof_ops.request import Window
from rlprof_ops.runtime.process.event_log import EventLog

WINDOW = Window(2, 3)
STEPS = {"backend": "torch", "steps": [2, 3], "phase": None}
TRACE = {"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}


def train(rank: int) -> None:
    node, folder, pid = os.environ["RLPROF_NODE"], Path(os.environ["RLPROF_NODE_DIR"]), os.getpid()
    events = EventLog(folder / "events" / f"{report_names.process_name('w', rank, node, pid)}.jsonl")
    events.write("registered", worker="w", rank=rank, world_size=1, pid=pid, host=node, backends=["torch"])
    name = report_names.report_name("w", rank, WINDOW, None, node, pid, ".pt.trace.json.gz")
    path = report_names.report_folder("torch", "w", rank) / name
    events.write("opened", **STEPS, report=name)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(gzip.compress(json.dumps(TRACE).encode()))
    events.write("closed", **STEPS, path=str(path))


if __name__ == "__main__":
    train(int(sys.argv[1]))
