"""memory: CUDA's allocation history as a snapshot, or the process's resident memory on the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlprof_ops.backends.contract import Asked, Backend, Check, Spec, Verdict, Where, WindowRecorder
from rlprof_ops.backends.memory.memory_options import HOST_SUFFIX, SUFFIX
from rlprof_ops.backends.memory.memory_options import validate as _validate


class Memory(Backend):
    name = "memory"
    title = "memory"
    aliases = ("torch_memory",)
    suffixes, telling = (SUFFIX, HOST_SUFFIX), (HOST_SUFFIX,)
    summary = "CUDA's allocation history for pytorch.org/memory_viz, or with `host: true` resident memory"
    bytes_per_rank_step = 50 << 20
    parts_of_steps = True
    reader = "rlprof_ops.analyze.readers.memory_report:read_memory"

    def check(self, path: Path) -> Check:
        from rlprof_ops.backends.memory.report_check import check

        return check(path)

    def validate(self, spec: Asked, where: Where) -> Verdict:
        return _validate(spec, where)

    def recorder(self, spec: Spec, beside: Sequence[Spec]) -> tuple[WindowRecorder | None, str]:
        from rlprof_ops.backends.memory.memory_recorder import memory_recorder

        return memory_recorder(spec), ""


BACKEND = Memory()
