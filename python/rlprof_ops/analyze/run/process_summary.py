"""What one process did, as one report tells: small enough to pass between processes, and to merge."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from rlprof_ops.analyze.metrics.collective_events import CollectiveEvents
from rlprof_ops.analyze.metrics.gpu_work.copies import CopyTotal
from rlprof_ops.analyze.metrics.gpu_work.counters import ClassCounter, CounterSeries
from rlprof_ops.analyze.metrics.gpu_work.launching import LaunchTotal, NameDurations, QueueLength
from rlprof_ops.analyze.metrics.gpu_work.longest import LongKernels, no_kernels
from rlprof_ops.analyze.metrics.gpu_work.operator_work import OperatorTotal
from rlprof_ops.analyze.metrics.gpu_work.pipeline import PipelineTime
from rlprof_ops.analyze.metrics.gpu_work.serving import ServingTotal
from rlprof_ops.analyze.metrics.intervals import Union
from rlprof_ops.analyze.metrics.kernels import CollectiveTotal, NameTotal
from rlprof_ops.analyze.metrics.phases import Segment
from rlprof_ops.analyze.metrics.stalls import Stall
from rlprof_ops.analyze.report_model import GpuTimes, IdleSplit, MemoryPeak
from rlprof_ops.analyze.run.identity import ReportFile


class DeviceTimes(Struct, frozen=True):
    """One GPU over the whole capture, as one process used it. `busy`: when, where the GPU's UUID is known, so
    that processes that share it can be put together.
    """

    device: int
    name: str
    start: int
    end: int
    times: GpuTimes
    idle: IdleSplit
    kernels: int
    uuid: str = ""
    busy: Union | None = None


class PhaseTime(Struct, frozen=True):
    """One phase of one step on one rank. `communication_ns`: of the duration, time in collectives that
    nothing hid; `pipeline_ns`: of that, transfers between the stages of a pipeline. `when`: all of its
    stretches, however many.
    """

    step: int
    phase: str
    duration_ns: int
    stretches: int
    communication_ns: int
    gpu: GpuTimes | None
    idle: IdleSplit | None
    when: Union
    pipeline_ns: int = 0


class StepTime(Struct, frozen=True):
    """One step on one rank, or a window of `count` steps that no mark tells apart (None: nobody knows how
    many); with several GPUs in the process the GPU's times are their sum.
    """

    step: int
    start: int
    end: int
    marked: bool
    gpu: GpuTimes | None
    idle: IdleSplit | None
    count: int | None = 1


class Summary(Struct, frozen=True):
    """What one process did, as one report tells. `told_apart`: another process has the same worker and rank,
    so that it is named with its pid.
    """

    report: ReportFile
    kind: str
    host: str
    pid: int
    rank: int
    on_utc: bool
    events: int
    damaged: int
    truncated: str
    seconds: float
    start: int
    end: int
    details: dict[str, str]
    steps: tuple[StepTime, ...]
    phases: tuple[PhaseTime, ...]
    drawn: tuple[Segment, ...]  # for pictures; sums are taken of `PhaseTime.when`
    devices: tuple[DeviceTimes, ...]
    kernels: tuple[NameTotal, ...]
    ops: tuple[NameTotal, ...]
    collectives: tuple[CollectiveTotal, ...]
    memory: tuple[MemoryPeak, ...]
    collective_events: tuple[CollectiveEvents, ...]
    collectives_seen: bool
    world_rank: int = -1  # as torch.distributed counts in the world of this process; -1: untold
    world_size: int = -1  # of that world; -1: untold
    visible_gpus: int = 0  # to its process; 0: untold
    told_apart: bool = False
    copies: tuple[CopyTotal, ...] = ()
    serving: tuple[ServingTotal, ...] = ()
    pipeline: tuple[PipelineTime, ...] = ()
    counters: tuple[CounterSeries, ...] = ()  # of every GPU that the report sampled
    class_counters: tuple[ClassCounter, ...] = ()
    stalls: tuple[Stall, ...] = ()
    longest: LongKernels = field(default_factory=no_kernels)
    launches: tuple[LaunchTotal, ...] = ()
    queues: tuple[QueueLength, ...] = ()
    durations: tuple[NameDurations, ...] = ()
    operators: tuple[OperatorTotal, ...] = ()
    paths: tuple[NameTotal, ...] = ()

    def as_step(self, number: int) -> Summary:
        """The same, its one step without a mark numbered so."""
        return replace(
            self,
            steps=tuple(replace(step, step=number) for step in self.steps),
            phases=tuple(replace(phase, step=number) for phase in self.phases),
            drawn=tuple(replace(segment, step=number) for segment in self.drawn),
            stalls=tuple(stall._replace(step=number) for stall in self.stalls),
        )


class Unread(Struct, frozen=True):
    """A report that could not be read: one line in the answer, not its end."""

    report: ReportFile
    reason: str
    seconds: float


Result = Summary | Unread
