"""The whole run, one part of `report.json`: its steps, marks, maps and curves. Times in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

OTHER_PHASES = "(other phases)"
_OVER_PHASE = Meta(description="over the phase, from its begin to its end")


class Mark(msgspec.Struct, frozen=True):
    """Something that happened in a step."""

    kind: Annotated[str, Meta(description="window, finding, checkpoint or restart")]
    step: int
    text: str


class RecordedFinding(msgspec.Struct, frozen=True):
    """What the recorder has found while the job ran, by every step."""

    kind: str
    text: str
    step: int
    worker: str = ""
    rank: Annotated[int | None, Meta(description="of a slow rank, as its worker counts")] = None
    phase: str = ""
    since: Annotated[int | None, Meta(description="the step from which on a rank is slow")] = None
    seconds: Annotated[float, Meta(description="what a slow rank took when it was found")] = 0.0
    peers_s: float = 0.0
    waited_s: Annotated[float, Meta(description="what others wait for it in collectives, a step")] = 0.0


class PhaseColumn(msgspec.Struct, frozen=True):
    """Time of a step that went to a phase, without those inside it; the last one may be of all the others."""

    name: str
    own_ms: Annotated[list[float], Meta(description="a row a step or group")]


def longest_phases(phases: Sequence[PhaseColumn], counts: Sequence[int], most: int) -> list[PhaseColumn]:
    """The phases that took most, in the order of the step, and the others together. `counts`: steps a row."""

    def total_ms(phase: PhaseColumn) -> float:
        return sum(own_ms * count for own_ms, count in zip(phase.own_ms, counts, strict=True))

    named = sorted((phase for phase in phases if phase.name != OTHER_PHASES), key=total_ms)[-most:]
    others = [phase.own_ms for phase in phases if phase not in named]
    kept = [phase for phase in phases if phase in named]
    if not others:
        return kept
    together = [round(sum(row), 1) for row in zip(*others, strict=True)]
    return [*kept, PhaseColumn(OTHER_PHASES, together)]


class Heat(msgspec.Struct, frozen=True):
    """One worker's map. A row stands for the ranks from `ranks[row]` on, a column for the steps from
    `steps[column]` on; where it stands for several, the one that is farthest out shows.
    """

    worker: str
    count: int
    ranks: list[int]
    steps: list[int]
    cells: Annotated[
        str,
        Meta(
            description="base64, a byte a cell, row by row: 0 nothing told, else 1 + 100 x the rank's time"
            " against the median of its peers"
        ),
    ]


class Curve(msgspec.Struct, frozen=True):
    """Samples of one GPU or engine in captured steps."""

    node: str
    of: Annotated[str, Meta(description="GPU 0, or an engine's address")]
    t_ms: Annotated[list[int], Meta(description="since t0_ns")]
    figures: Annotated[
        list[list[int]],
        Meta(
            description="of a GPU: busy %, memory MiB, power W, SM MHz; of an engine: running, waiting, cache"
            " per mille, tokens a second"
        ),
    ]


class Tail(msgspec.Struct, frozen=True):
    """What share of generation its last twentieth cost."""

    of: Annotated[str, Meta(description="requests or ranks")]
    share: Annotated[float, Meta(description="of the phase's length, mean of the steps")]
    steps: list[int]
    shares: Annotated[list[float], Meta(description="of the phase's length, one a step that tells it")]


class Done(msgspec.Struct, frozen=True):
    """When a share of a phase's requests was done; means over the steps."""

    share: Annotated[float, Meta(description="of the most requests that were in flight at once")]
    left: Annotated[float, Meta(description="share of the phase that came after")]
    saves_ms: Annotated[float, Meta(description="its length, a step")]
    requests: Annotated[float, Meta(description="left then")]
    steps: int


class Rollout(msgspec.Struct, frozen=True):
    """Generation by the engines' own numbers, means over the steps."""

    steps: Annotated[int, Meta(description="steps in whose generation an engine was looked at")]
    phase_ms: float
    step_ms: float
    done: list[Done]
    batch_mean: Annotated[float, Meta(description="requests that run at a time")]
    batch_peak: float
    tokens: Annotated[int, Meta(description="generated a step")]
    prompt_tokens: Annotated[int, Meta(description="a step")]
    tokens_s: Annotated[float, Meta(description="generated, over the phase")]
    preempted: Annotated[float, Meta(description="requests a step")]
    steps_preempted: int
    cache_peak: Annotated[float, Meta(description="share of the KV cache of the fullest engine")]
    running_at: Annotated[list[float], _OVER_PHASE]
    waiting_at: Annotated[list[float], _OVER_PHASE]
    tokens_s_at: Annotated[list[float], _OVER_PHASE]
    prompt_tokens_s_at: Annotated[list[float], _OVER_PHASE]
    cache_at: Annotated[list[float], _OVER_PHASE]


class LateRequest(msgspec.Struct, frozen=True):
    """A request that was among the last of its step."""

    id: str
    worker: str
    rank: int
    prompt_tokens: int
    tokens: int
    queued_ms: Annotated[float | None, Meta(description="null where the engine does not tell")]
    ms: Annotated[float, Meta(description="from its arrival to its last token")]
    preemptions: Annotated[int | None, Meta(description="null where the engine does not tell")]
    reason: Annotated[str, Meta(description="stop, length, abort and the like")]
    turn: Annotated[int, Meta(description="of its sample; 1 where it has no other")] = 1
    between_ms: Annotated[float, Meta(description="between the turns of its sample: tools and the like")] = (
        0.0
    )
    answers: Annotated[int | None, Meta(description="to its prompt; null where only one is known")] = None
    alone_ms: Annotated[float, Meta(description="its sample went on when the other answers were done")] = 0.0


class LateGroup(msgspec.Struct, frozen=True):
    """Answers to one prompt that wait for the last of them; `id` to `rank` are of its last request."""

    id: str
    worker: str
    rank: int
    answers: int
    alone_ms: Annotated[float, Meta(description="from when all but one were done to the last")]
    spread_ms: Annotated[float, Meta(description="from when the first was done to the last")]
    tokens: Annotated[int, Meta(description="of the last answer, all its turns")]
    median_tokens: Annotated[float, Meta(description="of the others")]
    turns: int
    between_ms: Annotated[float, Meta(description="between the turns of the last answer")]


class CallRow(msgspec.Struct, frozen=True):
    """Calls of a reward or a tool, as a trainer's timers or the turns of samples tell them."""

    worker: str
    name: str
    ranks: int
    steps: Annotated[int, Meta(description="of the run, that have any")]
    calls: Annotated[float, Meta(description="a step, all ranks together")]
    call_ms: Annotated[float, Meta(description="one call, mean")]
    step_ms: Annotated[float, Meta(description="a step, mean of the ranks")]
    longest_ms: Annotated[float, Meta(description="a step of one rank; of turns a sample's time between two")]


class StepGroups(msgspec.Struct, frozen=True):
    """The prompts of one step that have several answers."""

    count: int
    answers: Annotated[float, Meta(description="to a prompt, median")]
    alone_ms: Annotated[float, Meta(description="mean of the groups")]
    spread_ms: Annotated[float, Meta(description="mean of the groups")]
    last: Annotated[list[LateGroup], Meta(description="those that waited longest for one answer")]


class StepRequests(msgspec.Struct, frozen=True):
    """The requests that were done in the generation of one step; in a step that marks none, in all of it."""

    step: int
    phase_ms: float
    requests: int
    prompt_tokens: int
    tokens: int
    median_tokens: Annotated[float, Meta(description="of a request")]
    left: Annotated[
        list[float | None],
        Meta(
            description="share of the phase from when 50, 90, 95, 99 % were done to the last; null where less"
            " than one request is left then"
        ),
    ]
    longest: Annotated[
        float,
        Meta(description="share of the phase that one request took, without its time in the queue"),
    ]
    imbalance: Annotated[
        float | None, Meta(description="when the last replica was done, over their mean; null: one replica")
    ]
    last: Annotated[list[LateRequest], Meta(description="the very last first")]
    groups: StepGroups | None = None


class ReplicaRow(msgspec.Struct, frozen=True):
    """One engine, means over the steps; times are shares of the phase."""

    worker: str
    rank: int
    node: str
    pid: int
    requests: Annotated[float, Meta(description="a step")]
    tokens: Annotated[float, Meta(description="generated, a step")]
    idle: Annotated[float, Meta(description="without any request")]
    end: Annotated[float, Meta(description="when its last request was done")]
    steps: int


class RequestTracks(msgspec.Struct, frozen=True):
    """Every request of one step. Times are microseconds from the begin of its generation; -1: not told."""

    step: int
    phase_us: int
    left_out: Annotated[int, Meta(description="requests that are too many, the shortest")]
    tail_us: Annotated[int, Meta(description="when 95 % were done")]
    replicas: list[str]
    reasons: list[str]
    ids: list[str]
    rows: Annotated[
        list[list[int]],
        Meta(
            description="[index into replicas, arrival, scheduled, first token, last token, prompt tokens,"
            " tokens, number of its prompt, turn, preemptions, index into reasons]"
        ),
    ]


class StepLengths(msgspec.Struct, frozen=True):
    """Lengths of answers step by step, in tokens: a row a step; of a long run a part of the steps."""

    step: list[int]
    median: list[float]
    long: Annotated[list[float], Meta(description="95 % are shorter")]
    longest: list[int]
    mean: list[float]
    at_limit: Annotated[list[float], Meta(description="share of answers that a limit ended")]
    carried: Annotated[list[float], Meta(description="share that was begun in an earlier step")]
    preempted: Annotated[list[int] | None, Meta(description="requests; null where no engine tells")]


class Lengths(msgspec.Struct, frozen=True):
    """How long answers are, in tokens; a turn is an answer of its own."""

    edges: Annotated[list[int], Meta(description="of the bins: one more than `counts`")]
    counts: Annotated[list[int], Meta(description="answers from an edge to the next")]
    cut: Annotated[list[int], Meta(description="those of them that a limit ended")]
    quantiles: Annotated[list[float], Meta(description="50, 90, 99, 100 % are not longer")]
    at_limit: Annotated[float, Meta(description="share of answers that a limit ended")]
    carried: Annotated[
        float, Meta(description="share that came before the generation of an earlier step was over")
    ]
    mean_carried: Annotated[float | None, Meta(description="of those; null where there are none")]
    mean_others: float | None
    preemptions: Annotated[int | None, Meta(description="null where no engine tells")]
    preempted: Annotated[int | None, Meta(description="requests that were preempted at least once")]
    steps: StepLengths


class QueueChange(msgspec.Struct, frozen=True):
    """What generation would have been with one thing changed."""

    kind: Annotated[str, Meta(description="length_limit, balance or replicas")]
    value: Annotated[int, Meta(description="tokens of an answer at most, or replicas")]
    saves_ms: Annotated[float, Meta(description="a step, against the replay of what was")]
    share: Annotated[float, Meta(description="the same, of the phase")]
    error_ms: Annotated[float, Meta(description="of `saves_ms`: of the replay, and of chance in dealing out")]
    cut: Annotated[float, Meta(description="share of answers that the limit would have ended")] = 0.0
    tokens_lost: Annotated[float, Meta(description="share of the tokens that would not have been made")] = 0.0


class QueueReplay(msgspec.Struct, frozen=True):
    """The requests of some steps replayed with the rates that their replicas had in others."""

    worker: str
    replicas: int
    steps: int
    requests: Annotated[int, Meta(description="replayed, all steps together")]
    measured_ms: Annotated[float, Meta(description="to the last request's end, mean of the steps")]
    replayed_ms: float
    error_ms: Annotated[float, Meta(description="mean difference of the two, whichever is longer")]
    at_a_time: Annotated[int | None, Meta(description="requests on a replica; null: none waited for a place")]
    changes: Annotated[list[QueueChange], Meta(description="whose error is at most a fifth of the step")]


class RolloutRequests(msgspec.Struct, frozen=True):
    """Generation request by request, as its engines told them."""

    requests: Annotated[int, Meta(description="done in steps")]
    outside: Annotated[int, Meta(description="done in no step's generation, as in an evaluation")]
    cut: Annotated[bool, Meta(description="some are missing: a process told too many")]
    told: Annotated[int, Meta(description="steps with requests; `steps` has those with the longest tails")]
    phase_ms: float
    step_ms: float
    done: list[Done]
    replicas: list[ReplicaRow]
    steps: list[StepRequests]
    lengths: Lengths | None = None
    tracks: Annotated[
        list[RequestTracks], Meta(description="the steps with the longest tails, that one first")
    ] = []
    replay: QueueReplay | None = None
    turns: Annotated[list[CallRow], Meta(description="time between the turns of a sample")] = []


class StaleStep(msgspec.Struct, frozen=True):
    """How many versions of the weights the samples of one step were behind those that it trained."""

    step: int
    samples: int
    mean: Annotated[float, Meta(description="versions behind, by the last token of each")]
    least: int
    most: int
    mixed: Annotated[int, Meta(description="samples that several versions made")]


class Staleness(msgspec.Struct, frozen=True):
    """The same of the run, as the trainer counts versions; of a long run a part of the steps."""

    unit: Annotated[str, Meta(description="what is counted: samples, or prompt groups")]
    samples: int
    mean: float
    most: int
    mixed: Annotated[float, Meta(description="share that several versions made")]
    behind: Annotated[list[tuple[int, int]], Meta(description="versions behind, and how many samples")]
    steps: list[StaleStep]


class WholeRun(msgspec.Struct, frozen=True):
    """Every step of the run, as the flight recorder kept them: `steps` to `phases` are columns, a row a step,
    or a group of `counts` steps.
    """

    worker: Annotated[str, Meta(description="the process whose steps these are: the one that leads")]
    count: Annotated[int, Meta(ge=0, description="steps of the run")]
    median_ms: float
    steps: list[int]
    counts: Annotated[list[int], Meta(description="steps that a row stands for")]
    begin_ms: Annotated[list[int], Meta(description="since the run's first step")]
    least_ms: list[float]
    middle_ms: list[float]
    most_ms: list[float]
    phases: list[PhaseColumn]
    marks: list[Mark]
    heat: list[Heat]
    curves: list[Curve]
    tail: Tail | None
    rollout: Rollout | None = None
    requests: RolloutRequests | None = None
    found: Annotated[list[RecordedFinding], Meta(description="by the recorder, while the job ran")] = []
    calls: Annotated[list[CallRow], Meta(description="rewards and tools, by the trainer's timers")] = []
    staleness: Annotated[Staleness | None, Meta(description="null where no adapter tells")] = None
