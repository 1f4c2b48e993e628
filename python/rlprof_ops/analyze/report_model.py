"""The rows of the report: what `report.json` holds, what terminal and page read, and its JSON Schema.

Built by `output.answer`, written and read back by `answer_file`. Times are integer nanoseconds, `start_ns`
counts from `t0_ns` (UTC); ranks and phases are indices into `ranks` and `phase_names`. A field with a default
is absent in a report of an earlier version.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rlprof_ops.analyze.whole_run.run_data import WholeRun

SCHEMA: Literal[1] = 1

ClockMethod = Literal["reference", "collectives", "probe", "unaligned"]
ChangeKind = Literal["faster", "like_peers", "even", "overlapped", "one_more", "no_pauses"]

Ns = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
RankIndex = Annotated[int, Meta(ge=0, description="index into ranks")]
Segment = Annotated[list[int], Meta(min_length=5, max_length=5)]
Three = Annotated[list[int], Meta(min_length=3, max_length=3)]
StepsHeld = Annotated[
    Annotated[int, Meta(ge=1)] | None,
    Meta(
        description="steps it holds: more than one in a window that no mark divides, null where nothing tells"
        " how many"
    ),
]


class Finding(msgspec.Struct, frozen=True):
    """A sentence of the report, the time of a step on one rank that it is about, and where to look."""

    kind: str
    text: str
    cost_ns: Ns
    worker: Annotated[str, Meta(description='whom it is about, "" if nobody')] = ""
    rank: Annotated[RankIndex | None, Meta(description="index into ranks")] = None
    phase: str = ""
    advice: Annotated[str, Meta(description="what to try")] = ""
    saves_ns: Annotated[
        Ns | None,
        Meta(
            description="what a step would lose if it were mended, by a replay of the measured graph; null"
            " where nothing tells"
        ),
    ] = None
    step: Annotated[int | None, Meta(description="the step that shows it best")] = None
    link: Annotated[
        str, Meta(description="its place in report.html, as #step=5&rank=3&worker=policy_worker")
    ] = ""


class MissingRow(msgspec.Struct, frozen=True):
    """A planned capture of which no report could be read."""

    capture: str
    state: str
    reason: str


class ReportRow(msgspec.Struct, frozen=True):
    """A report that was read."""

    path: str
    backend: str
    worker: str
    rank: int
    host: str
    steps: list[int]
    size_bytes: Count
    events: Count
    seconds: float
    truncated: str
    damaged: Count
    processes: Annotated[int, Meta(ge=1, description="processes in it that are ranks of their own")]


class UnreadRow(msgspec.Struct, frozen=True):
    """A report that could not be read."""

    path: str
    reason: str


class ListedRow(msgspec.Struct, frozen=True):
    """A report of a kind that is only listed."""

    path: str
    backend: str
    worker: str
    size_bytes: Count
    modified_ns: Ns


class WorkerRanks(msgspec.Struct, frozen=True):
    """How many ranks of a worker were read, of how many in the job."""

    worker: str
    ranks: Annotated[int, Meta(ge=1, description="that were read")]
    world: Annotated[int, Meta(ge=1, description="in the whole job")]
    missing: Annotated[
        list[int],
        Meta(
            description="the first 1,000 ranks without a report that was read; with a manifest, of those that"
            " were asked for"
        ),
    ]
    missing_more: Annotated[int, Meta(ge=0, description="missing ranks that are not listed")] = 0


class Coverage(msgspec.Struct, frozen=True):
    """What was planned and what arrived; null where no manifest tells it."""

    planned: int | None
    arrived: int | None
    missing: list[MissingRow]
    reports: list[ReportRow]
    unread: list[UnreadRow]
    listed: list[ListedRow]
    ranks: Annotated[
        list[WorkerRanks], Meta(description="of the workers whose number of ranks in the job is known")
    ] = []

    @property
    def not_read(self) -> int:
        """How many ranks more there are of the workers that were read, as far as is known."""
        return sum(row.world - row.ranks for row in self.ranks)


class HostClockRow(msgspec.Struct, frozen=True):
    """How a host's clock was put on that of the run."""

    host: str
    offset_ns: int
    drift_ppm: float
    residual_ns: Ns | None
    matches: Count
    method: ClockMethod


class ClocksAnswer(msgspec.Struct, frozen=True):
    """The clocks of all hosts; `residual_ns` null: some host could not be aligned."""

    residual_ns: Ns | None
    hosts: list[HostClockRow]


class RankRow(msgspec.Struct, frozen=True):
    """One process."""

    worker: str
    rank: int
    host: str
    pid: int
    told_apart: Annotated[
        bool,
        Meta(description="another process has the same worker, rank and host: it is named with its pid"),
    ]
    controller: bool
    backends: list[str]
    device: str

    @property
    def label(self) -> str:
        return f"{self.worker} {self.rank}" + (f" (pid {self.pid})" if self.told_apart else "")


class StepRow(msgspec.Struct, frozen=True):
    """A step, or a window that no mark divides."""

    step: int
    start_ns: int
    duration_ns: Ns
    mean_rank_ns: Ns
    ranks: Count
    marked: bool
    count: StepsHeld


class GpuTimes(msgspec.Struct, frozen=True):
    """Nanoseconds of one window of one GPU. `communication_ns` and `memcpy_ns` are whole unions, hidden parts
    included.
    """

    window_ns: Ns
    compute_ns: Ns
    communication_ns: Ns
    exposed_communication_ns: Ns
    memcpy_ns: Ns
    exposed_memcpy_ns: Ns
    busy_ns: Ns
    idle_ns: Ns


class IdleSplit(msgspec.Struct, frozen=True):
    """Why a GPU was idle in a window; the four parts add up to its idle time.

    queued: the work that ended the gap had been launched, its call had returned (launch latency, waiting for
    another stream or for a graph's edges). Of the rest: synchronising is while the host stood in a
    synchronise call; waiting is while the process was in no phase of its step (another role had the turn);
    host is everything else: the process was in a phase and had not launched the next work yet.
    """

    queued_ns: Ns
    synchronising_ns: Ns
    waiting_ns: Ns
    host_ns: Ns


class PhasePart(msgspec.Struct, frozen=True):
    """A phase of one rank's step; the GPU's times where its work was recorded."""

    phase: Annotated[int, Meta(ge=0, description="index into phase_names")]
    duration_ns: Ns
    communication_ns: Ns
    gpu: GpuTimes | UnsetType = UNSET
    gpu_idle: IdleSplit | UnsetType | None = UNSET


class AnatomyRow(msgspec.Struct, frozen=True):
    """One rank's step: phases + idle = duration, and waiting + unexplained + uncaptured = idle."""

    rank: RankIndex
    step: int
    start_ns: int
    duration_ns: Ns
    marked: bool
    count: StepsHeld
    opening_ns: Ns
    thinned: Annotated[
        bool,
        Meta(
            description="more stretches of phases than segments are drawn: a segment stands for what takes"
            " most of its time"
        ),
    ]
    phases: list[PhasePart]
    idle_ns: Ns
    waiting_ns: dict[str, Ns]
    unexplained_ns: Annotated[
        Ns, Meta(description="in no phase, and neither was any other rank; all workers were recorded")
    ]
    uncaptured_ns: Annotated[
        Ns, Meta(description="in no phase, no recorded worker was in one, and some worker was not recorded")
    ]
    gpu: GpuTimes | None
    gpu_idle: IdleSplit | None


class PhaseRow(msgspec.Struct, frozen=True):
    """A phase of a worker over its ranks and steps."""

    worker: str
    phase: str
    ranks: int
    steps: int
    mean_ns: Ns
    median_ns: Ns
    min_ns: Ns
    max_ns: Ns
    own_mean_ns: Ns
    communication_ns: Ns
    imbalance: float
    slowest: RankIndex | None
    share_of_step: float
    by_rank: Annotated[list[Three], Meta(description="[rank, mean_ns, own_mean_ns]")]


class LinkRow(msgspec.Struct, frozen=True):
    """One phase on the critical path of a step."""

    worker: str
    rank: Annotated[RankIndex, Meta(description="index into ranks: the rank that had the most of it")]
    phase: str
    start_ns: int
    duration_ns: Ns
    after_ns: Annotated[int, Meta(description="from the end of what it waited for to its begin")]
    by_rank: Annotated[list[list[int]], Meta(description="[rank, nanoseconds on it]")]


class ChainRow(msgspec.Struct, frozen=True):
    """The chain of work that decided the length of a step."""

    step: int
    start_ns: int
    length_ns: Ns
    rest_ns: Annotated[
        int,
        Meta(description="of the step, what is in no link: scheduling, transfers, work that no report shows"),
    ]
    links: Annotated[list[LinkRow], Meta(description="first to last: which chain of work decided the length")]
    stretches: Annotated[list[list[int]], Meta(description="[rank, start_ns, length_ns]")]


class SlackRow(msgspec.Struct, frozen=True):
    """How much longer a phase could have taken."""

    worker: str
    phase: str
    steps: Count
    on_path: Annotated[Count, Meta(description="in how many of the steps it was a link")]
    tightest_ns: Annotated[
        Ns,
        Meta(description="how much longer it could have taken on its tightest rank, mean of the steps"),
    ]
    by_rank: Annotated[list[list[int]], Meta(description="[rank, mean slack]")]


class CriticalPath(msgspec.Struct, frozen=True):
    """One chain a step, and the slack of the rest."""

    steps: Annotated[
        list[ChainRow],
        Meta(description="one chain a step; none where hosts have clocks that nothing aligned"),
    ] = []
    slack: list[SlackRow] = []
    untold: Annotated[
        str,
        Meta(
            description="why there is no chain, as where clocks of hosts are not aligned; empty where there"
            " is one"
        ),
    ] = ""


class WhatIfRow(msgspec.Struct, frozen=True):
    """What one change would save."""

    kind: ChangeKind
    change: str
    worker: Annotated[str, Meta(description='"" of a node in which several are slow')]
    phase: Annotated[str, Meta(description='"" of a node that is slow in several')]
    rank: RankIndex | None
    saves_ns: Annotated[Ns, Meta(description="nanoseconds a step, by a replay of the measured graph")]
    share: float
    node: Annotated[str | None, Meta(description="the node whose ranks are changed together")] = None
    members: Annotated[
        list[RankIndex],
        Meta(description="indices into ranks: the group whose links are changed, or who pauses; else empty"),
    ] = []


class StragglerRow(msgspec.Struct, frozen=True):
    """A node or a rank that is slower than the others in a phase; in a pipeline, than others of its stage."""

    rank: Annotated[RankIndex, Meta(description="index into ranks; of a node, its first")]
    phase: str
    excess_ns: Annotated[
        Ns,
        Meta(
            description="what it is slower by than the median of the others, a step, and so what they may"
            " wait"
        ),
    ]
    share_of_phase: float
    steps: int
    steps_slower: int
    noise_ns: Annotated[Ns, Meta(description="standard error of the excess")]
    others: int
    cost_ns: Annotated[Ns, Meta(description="rank time: excess_ns times others")]
    ranks: Annotated[list[RankIndex], Meta(description="indices into ranks: all that are slow with it")] = []
    node: Annotated[str | None, Meta(description="the node that is slow; null where it is one rank")] = None
    stage: Annotated[
        int | None, Meta(description="of a pipeline: the rank is slower than the others of that stage")
    ] = None


class Bubble(msgspec.Struct, frozen=True):
    """How long, in one step or window, the ranks of `worker` stood idle on average because `because` was in
    `phase`.
    """

    step: int
    worker: str
    because: str
    phase: str
    mean_ns: Ns
    share: Annotated[float, Meta(description="of the worker's mean step, or window")]
    count: Annotated[int, Meta(ge=1, description="steps that the step or window holds")]
    steps: Annotated[int, Meta(ge=1, description="steps of the run in which both workers were recorded")]


class GpuRow(GpuTimes, frozen=True):
    """One GPU in one report."""

    rank: RankIndex
    report: str
    device: int
    uuid: Annotated[str, Meta(description="of the physical GPU; empty where untold")]
    name: str
    start_ns: int
    kernels: Count
    idle: IdleSplit


class SharedGpuRow(msgspec.Struct, frozen=True):
    """A GPU that several processes used, once: idle is when none of them worked."""

    uuid: str
    name: str
    host: str
    ranks: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=2, description="indices into ranks")]
    start_ns: int
    window_ns: Ns
    busy_ns: Ns
    idle_ns: Ns
    doubt_ns: Annotated[
        Ns, Meta(description="what busy and idle may be wrong by: only above 8,000 stretches of work")
    ]


class NameRow(msgspec.Struct, frozen=True):
    """A kernel or an operator over all ranks of a worker."""

    worker: str
    phase: str
    name: str
    count: Count
    total_ns: Ns
    max_ns: Ns
    share: Annotated[
        float,
        Meta(
            description="of all kernels' time; of an operator, of the time of the worker's steps, all ranks:"
            " operators inside of others count in both"
        ),
    ]


class DurationSpread(msgspec.Struct, frozen=True):
    """How durations are spread. Quantiles are the smallest that so many of them do not exceed: exact for one
    report, for several within 2.5 % of the calls.
    """

    total_ns: Ns
    min_ns: Ns
    median_ns: Ns
    p90_ns: Ns
    p99_ns: Ns
    max_ns: Ns
    std_ns: Annotated[Ns, Meta(description="standard deviation of a sample")]


class KernelDurationRow(msgspec.Struct, frozen=True):
    """How the durations of a kernel or copy are spread, over all ranks of a worker."""

    worker: str
    phase: str
    name: str
    count: Count
    durations: DurationSpread


class LaunchRow(msgspec.Struct, frozen=True):
    """Calls of one name that launched GPU work, in a phase of a worker."""

    worker: str
    phase: str
    call: str
    count: Count
    pieces: Annotated[Count, Meta(description="kernels and copies that they launched: a graph's are many")]
    shorter: Annotated[
        Count, Meta(description="calls that took longer than all the work which they launched")
    ]
    calls: DurationSpread
    delays: Annotated[
        DurationSpread, Meta(description="from the end of a call to the start of its first work, from 0 on")
    ]
    work: Annotated[DurationSpread, Meta(description="GPU time of what a call launched")]


class LaunchQueueRow(msgspec.Struct, frozen=True):
    """How many launches waited on a stream, a launch from the begin of its call to the start of its work."""

    rank: RankIndex
    report: str
    device: int
    stream: int
    launches: Count
    window_ns: Annotated[Ns, Meta(description="first call to last start")]
    mean: Annotated[float, Meta(description="by time")]
    longest: Count
    empty: Annotated[float, Meta(description="share of the window in which none waited")]
    full: Annotated[float, Meta(description="share of the window in which 1,024 waited, CUDA's most")]


class OperatorRow(msgspec.Struct, frozen=True):
    """Calls of one operator with equal inputs in a phase of a worker, by the GPU work that they launched."""

    worker: str
    phase: str
    name: str
    inputs: Annotated[str, Meta(description="dimensions of the two that are multiplied")]
    dtype: str
    count: Count
    total_ns: Annotated[Ns, Meta(description="of the GPU")]
    flops: Annotated[Count, Meta(description="of a call, by its shapes")]
    size_bytes: Annotated[Count | None, Meta(description="of a call: its inputs and results, once each")]
    tflops: Annotated[float, Meta(description="reached, a second")]
    gb_per_s: float | None
    gpu: Annotated[str, Meta(description='"" where the trace does not name one')]
    peak_tflops: Annotated[float | None, Meta(description="of the GPU, dense, of 16-bit floats; else null")]
    share: Annotated[float | None, Meta(description="of the peak")]
    bound: Annotated[
        Literal["compute", "memory"] | None,
        Meta(description="what so many FLOPs a byte wait for on that GPU"),
    ]
    roof_tflops: Annotated[
        float | None, Meta(description="the most by the peak and the GPU's memory: the roofline")
    ]


class KernelClassRow(msgspec.Struct, frozen=True):
    """GPU work of one class in a phase of a worker."""

    worker: str
    phase: str
    kernel_class: Annotated[
        str,
        Meta(
            description="attention, gemm, moe, norm, optimizer, sampling, communication, ...; other where no"
            " rule knows the name"
        ),
    ]
    count: int
    total_ns: Ns
    share: Annotated[float, Meta(description="of all GPU work in that phase")]


class CopyRow(msgspec.Struct, frozen=True):
    """Copies of one direction in a phase of a worker."""

    worker: str
    phase: str
    direction: Annotated[str, Meta(description="HtoD, DtoH, DtoD, PtoP or unknown")]
    count: int
    total_ns: Ns
    size_bytes: int | None
    gb_per_s: Annotated[float | None, Meta(description="of the copies whose size is known, one at a time")]


class ServingRow(msgspec.Struct, frozen=True):
    """GPU work of an engine of one kind in a phase of a worker."""

    worker: str
    phase: str
    kind: Annotated[str, Meta(description="prefill, decode, mixed or CUDA graphs")]
    told_by: Annotated[str, Meta(description="passes, attention kernels or launches")]
    count: Annotated[int, Meta(description="of what tells it")]
    total_ns: Annotated[Ns, Meta(description="time in which any of that work ran")]
    share: Annotated[float, Meta(description="of all GPU work launched in the phase")]
    prompt_tokens: int
    batch_mean: Annotated[float | None, Meta(description="requests decoded a pass")]
    batch: Annotated[list[float], Meta(description="the same over the phase")]


class CounterRow(msgspec.Struct, frozen=True):
    """The mean of one of the GPUs' own counters over a phase of a worker, or while kernels of a class ran."""

    worker: str
    phase: Annotated[str, Meta(description='"": all of its steps, or by class of kernels')]
    kernel_class: Annotated[str, Meta(description='"": by phase')]
    metric: str
    share: Annotated[float, Meta(description="of its peak, mean by time")]
    gpus: int
    sampled_ns: Annotated[int, Meta(description="time of all GPUs that it is a mean of")]


class KernelSpans(msgspec.Struct, frozen=True):
    """The longest kernels and copies of every rank."""

    a_report: Annotated[int, Meta(description="most of one report")] = 0
    names: list[str] = []
    spans: Annotated[
        list[list[int]], Meta(description="[rank, index into names, start_ns, duration_ns]")
    ] = []


class MfuRow(msgspec.Struct, frozen=True):
    """The model's work in a phase."""

    worker: str
    phase: str
    flops_a_token: Annotated[int, Meta(description="times met")]
    gpus: Annotated[int, Meta(description="of the worker in the whole job")]
    mean_ns: int
    tflops: Annotated[float, Meta(description="a GPU and second")]
    peak_tflops: float
    share: Annotated[float, Meta(description="of the peak")]


class MfuAnswer(msgspec.Struct, frozen=True):
    """The model's work against the GPUs' peak, where its size is told."""

    parameters: int
    met: Annotated[int, Meta(description="parameters that one token is multiplied with")]
    model: Annotated[str, Meta(description="what told them")]
    tokens_per_step: int | None
    tokens_from: Annotated[str, Meta(description="what told the tokens, or why nothing did")]
    rows: list[MfuRow]
    untold: Annotated[list[str], Meta(description="why a row is missing")]


class PipelineRow(msgspec.Struct, frozen=True):
    """A stage of a pipeline-parallel model in one phase."""

    worker: str
    phase: str
    stage: Annotated[
        int | None,
        Meta(description="place of the ranks in their pipeline, null where no trace tells"),
    ]
    stages: int
    ranks: int
    window_ns: Annotated[
        int, Meta(description="of the phase; this and what follows: means of a step on a rank")
    ]
    compute_ns: int
    waiting_ns: Annotated[int, Meta(description="nothing ran but transfers between stages")]
    idle_ns: Annotated[int, Meta(description="nothing ran")]
    share: Annotated[float, Meta(description="of the phase, waiting and idle")]


class CollectiveRow(msgspec.Struct, frozen=True):
    """A kind of collective of a worker."""

    worker: str
    op: str
    group: str
    group_size: int
    dtype: str
    count: Count
    total_ns: Ns
    min_ns: Ns
    transfer_ns: Annotated[
        Ns, Meta(description="mean of a call without waiting, which the bandwidths are of")
    ]
    message_bytes: Count | None
    algorithm_gb_per_s: float | None
    bus_gb_per_s: float | None
    waiting_ns: Annotated[Ns, Meta(description="mean of a call, until the last rank has come")] = 0
    members: Annotated[
        list[RankIndex], Meta(description="indices into ranks, of one group with slow links; else empty")
    ] = []


class SkewRow(msgspec.Struct, frozen=True):
    """How far apart the ranks of a collective came to it."""

    worker: str
    key: str
    ranks: int
    calls: int
    steps: Annotated[int, Meta(description="in which these calls were: those of one window")]
    transfer_ns: Annotated[Ns, Meta(description="mean of a call")]
    waiting_ns: Annotated[Ns, Meta(description="mean of a rank and call")]
    skew_ns: Annotated[Ns, Meta(description="mean of the last start less the first")]
    last: Annotated[RankIndex | None, Meta(description="index into ranks: who came last most often")]
    last_share: float
    members: Annotated[list[RankIndex], Meta(description="indices into ranks: who was matched")] = []


class WeightSyncRow(msgspec.Struct, frozen=True):
    """The weight sync of a step, from the first rank's begin to the last one's end."""

    step: int
    total_ns: Ns
    by_worker_ns: dict[str, Ns]
    between_ns: Ns


class MemoryPeak(msgspec.Struct, frozen=True):
    """The most that was allocated, and reserved from the device, during one phase.

    Of nsys at least so much: it tells only what is allocated and freed while it records.
    """

    device: Annotated[int, Meta(description="-1 is host memory")]
    phase: Annotated[str, Meta(description='"": outside all')]
    allocated_bytes: Annotated[int, Meta(description="-1 is unknown")]
    reserved_bytes: Annotated[int, Meta(description="-1 is unknown")]


class MemoryRow(MemoryPeak, frozen=True):
    """The peak of a device's memory in a phase of one rank."""

    rank: RankIndex


class HungRanks(msgspec.Struct, frozen=True):
    """Ranks that stand alike in a hang."""

    ranks: list[int]
    is_missing: bool
    last: Annotated[list[int], Meta(description="of each group, the collective begun last; 0 for none")]
    open_in: Annotated[int | None, Meta(description="index of the group in whose collective they wait")]
    now: Annotated[str, Meta(description="what they wait in or ended last, and where in the code")]
    frames: Annotated[list[str], Meta(description="the stack of it, innermost first")]


class HangRow(msgspec.Struct, frozen=True):
    """A hang, by the dumps of PyTorch's flight recorder that came home from one world of ranks; without
    groups and ranks where only the job's recorder told of it.
    """

    kind: str
    text: str
    sure: bool = True
    step: Annotated[int | None, Meta(description="in which the recorder found it")] = None
    hung: Annotated[
        bool, Meta(description="false: these dumps were asked for, and nothing else says that the job hung")
    ] = True
    groups: list[str] = []
    ranks: list[HungRanks] = []
    notes: list[str] = []


class Answer(msgspec.Struct, frozen=True):
    """All times are integer nanoseconds; start_ns counts from t0_ns (UTC); ranks and phases are indices into
    ranks and phase_names. Definitions stand in the page and in the docstrings of rlprof_ops.analyze.metrics
    and causes.
    """

    schema: Literal[1]
    made_by: str
    made_ns: int
    run: Annotated[dict[str, Any], Meta(extra_json_schema={"required": ["path"]})]
    t0_ns: int
    findings: list[Finding]
    coverage: Coverage
    clocks: ClocksAnswer
    ranks: list[RankRow]
    phase_names: list[str]
    steps: list[StepRow]
    anatomy: list[AnatomyRow]
    segments: Annotated[list[Segment], Meta(description="[rank, step, phase, start_ns, duration_ns]")]
    phases: list[PhaseRow]
    stragglers: list[StragglerRow]
    bubbles: list[Bubble]
    gpu: list[GpuRow]
    shared_gpus: Annotated[
        list[SharedGpuRow],
        Meta(description="GPUs that several processes used, each once: idle is when none of them worked"),
    ]
    kernels: list[NameRow]
    ops: list[NameRow]
    collectives: list[CollectiveRow]
    skews: list[SkewRow]
    weight_sync: list[WeightSyncRow]
    memory: list[MemoryRow]
    critical_path: CriticalPath = CriticalPath()
    what_if: list[WhatIfRow] = []
    whole_run: Annotated[
        WholeRun | None, Meta(description="every step of the run, as the flight recorder kept them")
    ] = None
    kernel_classes: list[KernelClassRow] = []
    copies: list[CopyRow] = []
    serving: Annotated[
        list[ServingRow], Meta(description="prefill and decode apart, as far as traces tell")
    ] = []
    pipeline: Annotated[list[PipelineRow], Meta(description="stages of pipeline-parallel models")] = []
    mfu: MfuAnswer | None = None
    counters: Annotated[
        list[CounterRow], Meta(description="the GPUs' own counters, where nsys sampled them")
    ] = []
    kernel_spans: Annotated[KernelSpans, Meta(description="the longest kernels and copies, one by one")] = (
        KernelSpans()
    )
    hangs: Annotated[list[HangRow], Meta(description="whom a collective, or the driver, waited for")] = []
    launches: Annotated[
        list[LaunchRow], Meta(description="calls that launched GPU work, those that took longest first")
    ] = []
    launch_queues: Annotated[
        list[LaunchQueueRow], Meta(description="launches that waited on a stream, the most launches first")
    ] = []
    kernel_durations: Annotated[
        list[KernelDurationRow], Meta(description="of the kernels that take longest in all")
    ] = []
    operators: Annotated[list[OperatorRow], Meta(description="FLOPs by shapes, the most GPU time first")] = []
    call_paths: Annotated[
        list[NameRow], Meta(description="operators inside of others, from the outermost on: linear → addmm")
    ] = []
    made_of: Annotated[
        str,
        Meta(
            description="SHA-256 of run.json and manifest.json before the reports were looked for; where"
            " there was neither, of the names, sizes and times of the reports; empty where there was none"
        ),
    ] = ""


def json_schema() -> dict[str, object]:
    """The JSON Schema (draft 2020-12) of report.json as it is written: what an earlier version lacks is
    required.
    """
    found = msgspec.json.schema(Answer)
    for part in found["$defs"].values():
        part["description"] = " ".join(part["description"].split())
        if part["title"] != PhasePart.__name__:
            part["required"] = list(part["properties"])
        for said in part["properties"].values():
            said.pop("default", None)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    about = found["$defs"][Answer.__name__]["description"]
    return {"$schema": dialect, "title": "report.json of rlprof report", "description": about, **found}
