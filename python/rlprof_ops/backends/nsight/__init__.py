"""nsight: Nsight Systems. `nsys launch` wraps a process, and windows are opened in its session from inside or
from outside; or `nsys profile` with a capture range.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.backends.contract import (
    Asked,
    Backend,
    Check,
    Options,
    Spec,
    Verdict,
    Where,
    WindowRecorder,
    not_wrapped,
)
from rlprof_ops.backends.nsight.nsys_options import CUDA_RANGE, EXPORT_SUFFIX, NAME, RAW_SUFFIX, SUFFIX
from rlprof_ops.backends.nsight.nsys_options import validate as _validate


class Nsight(Backend):
    name = NAME
    title = "Nsight"
    aliases = ("nsys", "nsight_systems", "nvidia", "nvtx")
    suffixes = telling = (SUFFIX, RAW_SUFFIX)
    masked = (*suffixes, EXPORT_SUFFIX)  # nsys 2023.4 writes the environment of all that it can read
    summary = "Nsight Systems (`nsys`): CUDA, NVTX ranges and the host, of a worker and its children"
    ranges = "nvtx"
    bytes_per_rank_step = 50 << 20
    derived = (EXPORT_SUFFIX,)
    ray_key = "_nsight"
    window_options = ("capture-range", "max_mb")
    windows_from_outside = True
    parts_of_steps = True
    wrap = "rlprof_ops.backends.nsight.nsys_wrap:WRAP"
    ray_plugin = "rlprof_ops.backends.nsight.ray_plugin:PLUGIN"
    reader = "rlprof_ops.analyze.readers.nsys_export:read_nsys"
    doctor = "rlprof_ops.backends.nsight.nsys_doctor:findings"

    def check(self, path: Path) -> Check:
        from rlprof_ops.backends.nsight.nsys_cli import check

        return check(path)

    def why_unreadable(self, original: Path, masked: Path) -> str:
        from rlprof_ops.backends.nsight.nsys_process import why_unreadable

        return super().why_unreadable(original, masked) or why_unreadable(original, masked)

    def validate(self, spec: Asked, where: Where) -> Verdict:
        return _validate(spec, where)

    def answers_here(self) -> bool:
        return bool(os.environ.get(env_names.NSYS_SESSION))

    def opened_by_others(self) -> bool:
        return os.environ.get(env_names.NSYS_RANGE, CUDA_RANGE) == CUDA_RANGE  # other ranges only we open

    def holds_cupti(self, spec: Options) -> str:
        from rlprof_ops.backends.nsight.nsys_cli import traces_cuda

        if not traces_cuda(spec):
            return ""
        return (
            "nsys traces CUDA in this process and CUPTI serves one profiler only: ask for one of"
            " nsight and torch, or `t: nvtx`"
        )

    def recorder(self, spec: Spec, beside: Sequence[Spec]) -> tuple[WindowRecorder | None, str]:
        session, opened_by = os.environ.get(env_names.NSYS_SESSION), os.environ.get(env_names.NSYS_RANGE)
        if session:
            from rlprof_ops.backends.nsight.session_recorder import NsysSessionRecorder

            return NsysSessionRecorder(session, spec), ""
        if opened_by:
            from rlprof_ops.backends.nsight.range_recorder import NsysRangeRecorder

            return NsysRangeRecorder(opened_by), ""
        return None, not_wrapped("`nsys launch` (RLPROF_NSYS_SESSION is not set)")


BACKEND = Nsight()
