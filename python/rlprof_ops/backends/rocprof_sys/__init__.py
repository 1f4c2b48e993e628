"""rocprof_sys: AMD's rocprof-sys, which runs a Python worker as its script and writes at its end."""

from __future__ import annotations

from rlprof_ops.backends.contract import Asked, Backend, Verdict, Where
from rlprof_ops.backends.rocprof_sys.front_end import NAME, SUFFIX
from rlprof_ops.backends.rocprof_sys.front_end import validate as _validate


class RocprofSys(Backend):
    name = NAME
    title = "rocprof-sys"
    aliases = ("rocprof", "rocprof-sys", "rocm", "amd", "omnitrace")
    suffixes = (SUFFIX,)
    summary = "AMD's rocprof-sys: HIP, roctx ranges and the host, one trace for all windows of a process"
    ranges = "nvtx"
    wrap = "rlprof_ops.backends.rocprof_sys.wrap:WRAP"
    ray_plugin = "rlprof_ops.backends.rocprof_sys.wrap:PLUGIN"

    def validate(self, spec: Asked, where: Where) -> Verdict:
        return _validate(spec, where)


BACKEND = RocprofSys()
