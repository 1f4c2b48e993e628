"""RLinf: `cluster.profiling` (what Ray has a key for) and `megatron.profiler` (torch)."""

from __future__ import annotations

from rlprof_ops.trainers.dialects import Framework
from rlprof_ops.trainers.rlinf.import_rlinf import import_
from rlprof_ops.trainers.rlinf.render_rlinf import render
from rlprof_ops.trainers.rlinf.rlinf_names import PHASES, WORKERS
from rlprof_ops.trainers.rlinf.rlinf_placement import world


def framework(name: str) -> Framework:
    return Framework(name, "RLinf", ("yaml", "hydra"), WORKERS, PHASES, render, import_, world)
