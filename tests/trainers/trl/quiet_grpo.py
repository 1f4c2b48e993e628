"""grpo.py with a slow step and a long checkpoint on rank 0, for which the others wait in a collective:
quiet_grpo.py STEP_S SAVE_S TIMEOUT_S ARGUMENTS of grpo.py

Step 8 computes for STEP_S seconds more, and each checkpoint is written for SAVE_S seconds. TIMEOUT_S is the
process group's.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path

import torch

slow_s, save_s, timeout_s = (float(sys.argv.pop(1)) for _ in range(3))
# On CPUs, Accelerate gives its group no `ddp_timeout`; one that is there it takes.
torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))

import grpo  # noqa: E402
from transformers import TrainerCallback  # noqa: E402


class Slow(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        until = time.monotonic() + slow_s
        while state.is_world_process_zero and state.global_step == 7 and time.monotonic() < until:
            torch.ones(256, 256) @ torch.ones(256, 256)

    def on_save(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        until = time.monotonic() + save_s
        while state.is_world_process_zero and time.monotonic() < until:
            with open(Path(args.output_dir, "more_weights"), "wb") as file:
                file.write(bytes(8 << 20))
                file.flush()
                os.fsync(file.fileno())
            time.sleep(0.2)


if __name__ == "__main__":
    grpo.main(Slow())
