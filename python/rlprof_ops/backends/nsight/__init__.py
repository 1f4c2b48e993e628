"""nsight: Nsight Systems. `nsys launch` wraps a process, and windows are opened in its session from inside or
from outside; or `nsys profile` with a capture range.
"""

from __future__ import annotations

from pathlib import Path

from rlprof_ops.backends.contract import Asked, Backend, Check, Verdict, Where
from rlprof_ops.backends.nsight.options import NAME, RAW_SUFFIX, SUFFIX
from rlprof_ops.backends.nsight.options import validate as _validate


class Nsight(Backend):
    name = NAME
    title = "Nsight"
    aliases = ("nsys", "nsight_systems", "nvidia", "nvtx")
    suffixes = (SUFFIX, RAW_SUFFIX)
    summary = "Nsight Systems (`nsys`): CUDA, NVTX ranges and the host, of a worker and its children"
    ranges = "nvtx"
    bytes_per_rank_step = 50 << 20
    windows_from_outside = True
    wrap = "rlprof_ops.backends.nsight.wrap:WRAP"
    ray_plugin = "rlprof_ops.backends.nsight.ray_plugin:PLUGIN"

    def check(self, path: Path) -> Check:
        from rlprof_ops.backends.nsight.nsys_cli import check

        return check(path)

    def validate(self, spec: Asked, where: Where) -> Verdict:
        return _validate(spec, where)


BACKEND = Nsight()
