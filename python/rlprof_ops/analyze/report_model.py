"""The report between readers, metrics and page: what `report.json` holds, typed.

Built by `output.answer`, read back by `reporting.load_answer`, shown by `output.terminal` and `page`. Values
are plain data, so that writing it is `json.dumps` and nothing else; `output/report.schema.json` says the same
to readers in other languages. Times are integer nanoseconds, `start_ns` counts from `t0_ns` (UTC); ranks and
phases are indices into `ranks` and `phase_names`.
"""

from __future__ import annotations

from typing import TypedDict

from rlprof_ops.analyze.whole_run.model import WholeRun


class _Finding(TypedDict):
    kind: str
    text: str
    cost_ns: int
    worker: str
    rank: int | None
    phase: str
    advice: str


class FindingRow(_Finding, total=False):
    """A sentence of the report; `worker` "" and `rank` None: about nobody in particular. What follows is
    absent in a report of an earlier version.
    """

    saves_ns: int | None
    step: int | None
    link: str


class MissingRow(TypedDict):
    """A planned capture of which no report could be read."""

    capture: str
    state: str
    reason: str


class ReportRow(TypedDict):
    """A report that was read; `processes`: those in it that are ranks of their own."""

    path: str
    backend: str
    worker: str
    rank: int
    host: str
    steps: list[int]
    size_bytes: int
    events: int
    seconds: float
    truncated: str
    damaged: int
    processes: int


class UnreadRow(TypedDict):
    """A report that could not be read."""

    path: str
    reason: str


class ListedRow(TypedDict):
    """A report of a kind that is only listed."""

    path: str
    backend: str
    worker: str
    size_bytes: int
    modified_ns: int


class Coverage(TypedDict):
    """What was planned and what arrived; None where no manifest tells it."""

    planned: int | None
    arrived: int | None
    missing: list[MissingRow]
    reports: list[ReportRow]
    unread: list[UnreadRow]
    listed: list[ListedRow]


class HostClockRow(TypedDict):
    """How a host's clock was put on that of the run."""

    host: str
    offset_ns: int
    drift_ppm: float
    residual_ns: int | None
    matches: int
    method: str


class ClocksAnswer(TypedDict):
    """The clocks of all hosts; `residual_ns` None: some host could not be aligned."""

    residual_ns: int | None
    hosts: list[HostClockRow]


class RankRow(TypedDict):
    """One process. `told_apart`: another one has the same worker, rank and host."""

    worker: str
    rank: int
    host: str
    pid: int
    told_apart: bool
    controller: bool
    backends: list[str]
    device: str


class StepRow(TypedDict):
    """A step, or a window that no mark divides; `count`: steps it holds, None where nothing tells."""

    step: int
    start_ns: int
    duration_ns: int
    mean_rank_ns: int
    ranks: int
    marked: bool
    count: int | None


class GpuTimesRow(TypedDict):
    """What a GPU did in a window."""

    window_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    memcpy_ns: int
    exposed_memcpy_ns: int
    busy_ns: int
    idle_ns: int


class IdleTimesRow(TypedDict):
    """Why a GPU was idle."""

    queued_ns: int
    synchronising_ns: int
    waiting_ns: int
    host_ns: int


class _PhaseTimes(TypedDict):
    phase: int
    duration_ns: int
    communication_ns: int


class PhasePart(_PhaseTimes, total=False):
    """A phase of one rank's step; the GPU's times where its work was recorded."""

    gpu: GpuTimesRow
    gpu_idle: IdleTimesRow | None


class AnatomyRow(TypedDict):
    """One rank's step: phases + idle = duration, and waiting + unexplained + uncaptured = idle."""

    rank: int
    step: int
    start_ns: int
    duration_ns: int
    marked: bool
    count: int | None
    opening_ns: int
    thinned: bool
    phases: list[PhasePart]
    idle_ns: int
    waiting_ns: dict[str, int]
    unexplained_ns: int
    uncaptured_ns: int
    gpu: GpuTimesRow | None
    gpu_idle: IdleTimesRow | None


class PhaseRow(TypedDict):
    """A phase of a worker over its ranks and steps; `by_rank`: [rank, mean_ns, own_mean_ns]."""

    worker: str
    phase: str
    ranks: int
    steps: int
    mean_ns: int
    median_ns: int
    min_ns: int
    max_ns: int
    own_mean_ns: int
    communication_ns: int
    imbalance: float
    slowest: int | None
    share_of_step: float
    by_rank: list[list[int]]


class LinkRow(TypedDict):
    """One phase on the critical path of a step; `rank` had the most of it."""

    worker: str
    rank: int
    phase: str
    start_ns: int
    duration_ns: int
    after_ns: int
    by_rank: list[list[int]]


class ChainRow(TypedDict):
    """The chain of work that decided the length of a step; `rest_ns`: what is in no link."""

    step: int
    start_ns: int
    length_ns: int
    rest_ns: int
    links: list[LinkRow]
    stretches: list[list[int]]


class SlackRow(TypedDict):
    """How much longer a phase could have taken; `on_path`: in how many steps it was a link."""

    worker: str
    phase: str
    steps: int
    on_path: int
    tightest_ns: int
    by_rank: list[list[int]]


class _CriticalPath(TypedDict):
    steps: list[ChainRow]
    slack: list[SlackRow]


class CriticalPath(_CriticalPath, total=False):
    """One chain a step, and the slack of the rest; `untold`: why there is none, "" where there is one."""

    untold: str


class WhatIfRow(TypedDict):
    """What one change would save a step, by a replay of the measured graph."""

    kind: str
    change: str
    worker: str
    phase: str
    rank: int | None
    saves_ns: int
    share: float


class StragglerRow(TypedDict):
    """A rank that is slower than the others in a phase; `cost_ns`: excess_ns times others."""

    rank: int
    phase: str
    excess_ns: int
    share_of_phase: float
    steps: int
    steps_slower: int
    noise_ns: int
    others: int
    cost_ns: int


class BubbleRow(TypedDict):
    """A worker that waited in a step, and for whom."""

    step: int
    worker: str
    because: str
    phase: str
    mean_ns: int
    share: float
    steps: int
    count: int


class GpuRow(GpuTimesRow):
    """One GPU in one report."""

    rank: int
    report: str
    device: int
    uuid: str
    name: str
    start_ns: int
    kernels: int
    idle: IdleTimesRow


class SharedGpuRow(TypedDict):
    """A GPU that several processes used, once; `doubt_ns`: what busy and idle may be wrong by."""

    uuid: str
    name: str
    host: str
    ranks: list[int]
    start_ns: int
    window_ns: int
    busy_ns: int
    idle_ns: int
    doubt_ns: int


class NameRow(TypedDict):
    """A kernel or an operator over all ranks of a worker."""

    worker: str
    phase: str
    name: str
    count: int
    total_ns: int
    max_ns: int
    share: float


class KernelClassRow(TypedDict):
    """GPU work of one class in a phase of a worker; `share` is of all GPU work in that phase."""

    worker: str
    phase: str
    kernel_class: str
    count: int
    total_ns: int
    share: float


class CopyRow(TypedDict):
    """Copies of one direction in a phase of a worker; the rate is of those whose size is known."""

    worker: str
    phase: str
    direction: str
    count: int
    total_ns: int
    size_bytes: int | None
    gb_per_s: float | None


class ServingRow(TypedDict):
    """GPU work of an engine of one kind (prefill, decode, mixed, CUDA graphs) in a phase of a worker;
    `told_by` is what tells it, and `count` counts. `batch_mean` (requests decoded a pass) and `batch` (the
    same over the phase) where passes tell them.
    """

    worker: str
    phase: str
    kind: str
    told_by: str
    count: int
    total_ns: int
    share: float
    prompt_tokens: int
    batch_mean: float | None
    batch: list[float]


class CounterRow(TypedDict):
    """The mean of one of the GPUs' own counters over a phase of a worker ("": its steps), or while kernels of
    one class ran (`phase` "" then); a share of its peak. `sampled_ns`: time of all GPUs that it is a mean of.
    """

    worker: str
    phase: str
    kernel_class: str
    metric: str
    share: float
    gpus: int
    sampled_ns: int


class KernelSpans(TypedDict):
    """The longest kernels and copies of every rank, at most `a_report` of a report; `spans` are [rank, index
    into `names`, start_ns, duration_ns].
    """

    a_report: int
    names: list[str]
    spans: list[list[int]]


class MfuRow(TypedDict):
    """The model's work in a phase: `tflops` a GPU and second, and its share of `peak_tflops`. `gpus` are
    those of the whole job's worker.
    """

    worker: str
    phase: str
    flops_a_token: int
    gpus: int
    mean_ns: int
    tflops: float
    peak_tflops: float
    share: float


class MfuAnswer(TypedDict):
    """`met`: parameters that one token is multiplied with; `flops_a_token` of a row are times these.
    `untold`: why a row is missing.
    """

    parameters: int
    met: int
    model: str
    tokens_per_step: int | None
    tokens_from: str
    rows: list[MfuRow]
    untold: list[str]


class PipelineRow(TypedDict):
    """A stage of a pipeline-parallel model in one phase: means of a step on a rank. `share`: what of the
    phase is waiting for another stage, or idle.
    """

    worker: str
    phase: str
    stage: int | None
    stages: int
    ranks: int
    window_ns: int
    compute_ns: int
    waiting_ns: int
    idle_ns: int
    share: float


class CollectiveRow(TypedDict):
    """A kind of collective of a worker; `transfer_ns`: mean of a call without waiting."""

    worker: str
    op: str
    group: str
    group_size: int
    dtype: str
    count: int
    total_ns: int
    min_ns: int
    transfer_ns: int
    message_bytes: int | None
    algorithm_gb_per_s: float | None
    bus_gb_per_s: float | None


class SkewRow(TypedDict):
    """How far apart the ranks of a collective came to it; `last` came last most often."""

    worker: str
    key: str
    ranks: int
    calls: int
    transfer_ns: int
    waiting_ns: int
    skew_ns: int
    last: int | None
    last_share: float


class WeightSyncRow(TypedDict):
    """The weight sync of a step, from the first rank's begin to the last one's end."""

    step: int
    total_ns: int
    by_worker_ns: dict[str, int]
    between_ns: int


class MemoryRow(TypedDict):
    """The peak of a device's memory in a phase."""

    rank: int
    device: int
    phase: str
    allocated_bytes: int
    reserved_bytes: int


class _Answer(TypedDict):
    schema: int
    made_by: str
    made_ns: int
    run: dict[str, object]
    t0_ns: int
    findings: list[FindingRow]
    coverage: Coverage
    clocks: ClocksAnswer
    ranks: list[RankRow]
    phase_names: list[str]
    steps: list[StepRow]
    anatomy: list[AnatomyRow]
    segments: list[list[int]]
    phases: list[PhaseRow]
    stragglers: list[StragglerRow]
    bubbles: list[BubbleRow]
    gpu: list[GpuRow]
    shared_gpus: list[SharedGpuRow]
    kernels: list[NameRow]
    ops: list[NameRow]
    collectives: list[CollectiveRow]
    skews: list[SkewRow]
    weight_sync: list[WeightSyncRow]
    memory: list[MemoryRow]


class Answer(_Answer, total=False):
    """The whole report; `segments` are [rank, step, phase, start_ns, duration_ns]. What follows is absent in
    a report of an earlier version.
    """

    critical_path: CriticalPath
    what_if: list[WhatIfRow]
    whole_run: WholeRun | None
    kernel_classes: list[KernelClassRow]
    copies: list[CopyRow]
    serving: list[ServingRow]
    pipeline: list[PipelineRow]
    mfu: MfuAnswer | None
    counters: list[CounterRow]
    kernel_spans: KernelSpans
