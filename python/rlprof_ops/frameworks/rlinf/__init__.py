"""RLinf: `cluster.profiling` (nsight, rocprof_sys) and `megatron.profiler` (torch)."""

from __future__ import annotations

from rlprof_ops.frameworks.base import Framework
from rlprof_ops.frameworks.rlinf.import_config import import_
from rlprof_ops.frameworks.rlinf.names import PHASES, WORKERS
from rlprof_ops.frameworks.rlinf.placement import world
from rlprof_ops.frameworks.rlinf.render import render

FRAMEWORK = Framework("rlinf", "RLinf", ("yaml", "hydra"), WORKERS, PHASES, render, import_, world)
