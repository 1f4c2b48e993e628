"""NeMo RL: `NRL_NSYS_*` and `NRL_TORCH_PROFILE_*` variables (its docs nsys-profiling.md and the torch
profiler page).
"""

from __future__ import annotations

from rlprof_ops.frameworks.base import Framework
from rlprof_ops.frameworks.nemo_rl.import_config import import_
from rlprof_ops.frameworks.nemo_rl.names import PHASES, WORKERS
from rlprof_ops.frameworks.nemo_rl.placement import world
from rlprof_ops.frameworks.nemo_rl.render import render

FRAMEWORK = Framework("nemo_rl", "NeMo RL", ("env",), WORKERS, PHASES, render, import_, world)
