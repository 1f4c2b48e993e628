"""torch: torch.profiler inside the training process, one Chrome trace a window."""

from __future__ import annotations

from pathlib import Path

from rlprof_ops.backends.contract import Asked, Backend, Check, Verdict, Where
from rlprof_ops.backends.torch.options import PLAIN_SUFFIX, SUFFIX
from rlprof_ops.backends.torch.options import validate as _validate


class Torch(Backend):
    name = "torch"
    title = "torch.profiler"
    aliases = ("pytorch", "kineto", "torch_profiler")
    suffixes = (SUFFIX, PLAIN_SUFFIX)
    summary = "`torch.profiler`: operators, kernels and phases, inside the process"
    ranges = "record_function"
    # 150 MiB a rank (slime #1879); the others are in the same range for a step of some seconds.
    bytes_per_rank_step = 150 << 20
    timed_options = {"all_threads": "true"}  # noqa: RUF012
    reader = "rlprof_ops.analyze.readers.torch_trace:read_torch"
    doctor = "rlprof_ops.doctor.software:torch"

    def answers_here(self) -> bool:
        return True

    def check(self, path: Path) -> Check:
        from rlprof_ops.backends.torch.trace_check import check

        return check(path)

    def validate(self, spec: Asked, where: Where) -> Verdict:
        return _validate(spec, where)


BACKEND = Torch()
