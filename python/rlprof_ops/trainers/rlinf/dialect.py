"""RLinf: `cluster.profiling` (what Ray has a key for) and `megatron.profiler` (torch)."""

from __future__ import annotations

from rlprof_ops.trainers.dialects import Framework
from rlprof_ops.trainers.rlinf.import_config import import_
from rlprof_ops.trainers.rlinf.names import PHASES, WORKERS
from rlprof_ops.trainers.rlinf.placement import world
from rlprof_ops.trainers.rlinf.render_config import render


def framework(name: str) -> Framework:
    return Framework(name, "RLinf", ("yaml", "hydra"), WORKERS, PHASES, render, import_, world)
