"""Steps and phases as TensorBoard scalars, by TensorBoard's own writer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlprof_ops.errors import UsageError
from rlprof_ops.operate.export.led_steps import RecordedStep


class TensorBoardScalars:
    """`rlprof/step_s` and `rlprof/phase/<name>_s` over the step. Raises UsageError where there is no
    TensorBoard.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise UsageError(
                f"--tensorboard needs TensorBoard ({error}): pip install 'rlprof-ops[export]'"
            ) from None
        self._event: Any = Event
        self._summary: Any = Summary
        self._writer: Any = EventFileWriter(str(folder), filename_suffix=".rlprof")

    def add(self, steps: Iterable[RecordedStep]) -> None:
        for step in steps:
            scalars = {"rlprof/step_s": step.seconds}
            scalars |= {f"rlprof/phase/{phase.name}_s": phase.own_s for phase in step.phases}
            values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            summary = self._summary(value=values)
            self._writer.add_event(self._event(wall_time=step.end_ns / 1e9, step=step.step, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
