"""torch: torch.profiler inside the training process, one Chrome trace a window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlprof_ops.backends.contract import LEADERS, Asked, Backend, Check, Spec, Verdict, Where, WindowRecorder
from rlprof_ops.backends.torch.torch_options import PLAIN_SUFFIX, SUFFIX
from rlprof_ops.backends.torch.torch_options import validate as _validate


class Torch(Backend):
    name = "torch"
    title = "torch.profiler"
    aliases = ("pytorch", "kineto", "torch_profiler")
    suffixes = telling = (SUFFIX, PLAIN_SUFFIX)
    summary = "`torch.profiler`: operators, kernels and phases, inside the process"
    ranges = "record_function"
    records_cuda = True
    # 150 MiB a rank (slime #1879); the others are in the same range for a step of some seconds.
    bytes_per_rank_step = 150 << 20
    # Its trace is of what ran, and written, in the thread that trains.
    parts_at_ranges = True
    window_options = ("max_mb",)
    timed_options = {"all_threads": "true"}  # noqa: RUF012
    reader = "rlprof_ops.analyze.readers.torch_trace:read_torch"
    doctor = "rlprof_ops.backends.torch.torch_doctor:findings"

    def answers_here(self) -> bool:
        return True

    def output_folder(self, worker: str, rank: int) -> str:
        """As NeMo RL documents it (NRL_TORCH_PROFILE_DIR): the controller's in the folder itself, those of
        generation workers in one folder each kind, of all others by kind and rank.
        """
        if worker in LEADERS:
            return ""
        return worker if "generation" in worker else f"{worker}/{rank}"

    def check(self, path: Path) -> Check:
        from rlprof_ops.backends.torch.trace_check import check

        return check(path)

    def validate(self, spec: Asked, where: Where) -> Verdict:
        return _validate(spec, where)

    def recorder(self, spec: Spec, beside: Sequence[Spec]) -> tuple[WindowRecorder | None, str]:
        from rlprof_ops.backends import get, is_known
        from rlprof_ops.backends.torch.torch_recorder import TorchRecorder
        from rlprof_ops.backends.torch.trace_check import has_cuda_activity

        others = ((get(other.backend), other) for other in beside if is_known(other.backend))
        holders = (backend.holds_cupti(other) for backend, other in others if backend.answers_here())
        conflict = next(filter(None, holders), "")
        return (None, conflict) if conflict and has_cuda_activity() else (TorchRecorder(spec), "")


BACKEND = Torch()
