"""NeMo RL: `NRL_NSYS_*` and `NRL_TORCH_PROFILE_*` variables (its docs nsys-profiling.md and the torch
profiler page).
"""

from __future__ import annotations

from rlprof_ops.trainers.dialects import Framework
from rlprof_ops.trainers.nemo_rl.import_nemo_rl import import_
from rlprof_ops.trainers.nemo_rl.nemo_rl_names import PHASES, WORKERS
from rlprof_ops.trainers.nemo_rl.nemo_rl_placement import world
from rlprof_ops.trainers.nemo_rl.render_nemo_rl import render


def framework(name: str) -> Framework:
    return Framework(name, "NeMo RL", ("env",), WORKERS, PHASES, render, import_, world)
