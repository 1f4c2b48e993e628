"""rocprof_sys: AMD's rocprof-sys, which runs a Python worker as its script and writes at its end."""

from __future__ import annotations

from collections.abc import Sequence

from rlprof_ops.backends.contract import (
    Asked,
    Backend,
    Spec,
    Verdict,
    Where,
    WindowRecorder,
    not_wrapped,
)
from rlprof_ops.backends.rocprof_sys.front_end import NAME, SUFFIX
from rlprof_ops.backends.rocprof_sys.front_end import validate as _validate


class RocprofSys(Backend):
    name = NAME
    title = "rocprof-sys"
    aliases = ("rocprof", "rocprof-sys", "rocm", "amd", "omnitrace")
    suffixes = (SUFFIX,)
    summary = "AMD's rocprof-sys: HIP, roctx ranges and the host, one trace for all windows of a process"
    ranges = "nvtx"
    secret_files = ("*metadata*.json",)
    derived = (".pftrace",)
    on_demand = False
    one_report = True
    ray_key = "_rocprof_sys"
    wrap = "rlprof_ops.backends.rocprof_sys.wrap_worker:WRAP"
    ray_plugin = "rlprof_ops.backends.rocprof_sys.wrap_worker:PLUGIN"
    doctor = "rlprof_ops.doctor.profilers:rocprof"

    def validate(self, spec: Asked, where: Where) -> Verdict:
        return _validate(spec, where)

    def recorder(self, spec: Spec, beside: Sequence[Spec]) -> tuple[WindowRecorder | None, str]:
        from rlprof_ops.backends.rocprof_sys.recorder import RocprofRecorder, is_wrapped

        if is_wrapped():
            return RocprofRecorder(), ""
        return None, not_wrapped("`rocprofsys` (the module rocprofsys is not loaded)")


BACKEND = RocprofSys()
