"""The whole run, one part of `report.json`: its steps, marks, maps and curves. Times in milliseconds."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

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


class PhaseColumn(msgspec.Struct, frozen=True):
    """Time of a step that went to a phase, without those inside it."""

    name: str
    own_ms: Annotated[list[float], Meta(description="a row a step or group")]


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
