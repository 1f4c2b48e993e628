"""The driver of a simulated job: it tells its steps as an adapter does, and waits each time until all nodes
have opened their windows."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from rlprof_ops.runtime.step_clock import SupervisorLink

base, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
link = SupervisorLink(os.environ["RLPROF_NODE_DIR"])
(base / "driver_began").touch()
waited_s = []
for step in range(1, steps + 1):
    began = time.monotonic()
    link.send({"begin": step, "t_ns": time.time_ns(), "wait": True})
    if link.wait("go", step, 60) is None:
        sys.exit(f"step {step}: not every node answered within 60 s")
    waited_s.append(time.monotonic() - began)
    time.sleep(step_s)
    link.send({"end": step, "t_ns": time.time_ns()})
    if step == 4:
        (base / "window_ended").touch()
(base / "waited.json").write_text(json.dumps(waited_s))
(base / "driver_ended").touch()
