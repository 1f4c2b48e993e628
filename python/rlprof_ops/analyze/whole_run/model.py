"""The whole run as plain data, one part of `report.json`."""

from __future__ import annotations

from typing import TypedDict


class Mark(TypedDict):
    """Something that happened in a step: `kind` is window, finding, checkpoint or restart."""

    kind: str
    step: int
    text: str


class PhaseColumn(TypedDict):
    """Milliseconds of a step that went to a phase, without those inside it; a row a step or group."""

    name: str
    own_ms: list[float]


class Heat(TypedDict):
    """One worker's map. A row stands for the ranks from `ranks[row]` on, a column for the steps from
    `steps[column]` on; where it stands for several, the one that is farthest out shows. `cells`: a byte each,
    row by row, in base64: 0 nothing told, else 1 + 100 times the factor against the median of the peers.
    """

    worker: str
    count: int
    ranks: list[int]
    steps: list[int]
    cells: str


class Curve(TypedDict):
    """Samples of one GPU or engine in captured steps: times since `t0_ns` in ms, and four figures: of a GPU
    busy %, memory MiB, power W, SM MHz; of an engine running, waiting, cache per mille, tokens/s.
    """

    node: str
    of: str
    t_ms: list[int]
    figures: list[list[int]]


class Tail(TypedDict):
    """`of`: "requests" or "ranks". `steps` and `shares` of the phase's length, one a step that tells it."""

    of: str
    share: float
    steps: list[int]
    shares: list[float]


class Done(TypedDict):
    """When `share` of a phase's requests was done: `left` is the share of the phase that came after,
    `saves_ms` its length, `requests` how many were left then; means over `steps`.
    """

    share: float
    left: float
    saves_ms: float
    requests: float
    steps: int


class Rollout(TypedDict):
    """Generation by the engines' own numbers, means over `steps`. Tokens and preempted requests are those of
    a step; `*_at` are curves over the phase, from its begin to its end.
    """

    steps: int
    phase_ms: float
    step_ms: float
    done: list[Done]
    batch_mean: float
    batch_peak: float
    tokens: int
    prompt_tokens: int
    tokens_s: float
    preempted: float
    steps_preempted: int
    cache_peak: float
    running_at: list[float]
    waiting_at: list[float]
    tokens_s_at: list[float]
    prompt_tokens_s_at: list[float]
    cache_at: list[float]


class _WholeRun(TypedDict):
    worker: str
    count: int
    median_ms: float
    steps: list[int]
    counts: list[int]
    begin_ms: list[int]
    least_ms: list[float]
    middle_ms: list[float]
    most_ms: list[float]
    phases: list[PhaseColumn]
    marks: list[Mark]
    heat: list[Heat]
    curves: list[Curve]
    tail: Tail | None


class WholeRun(_WholeRun, total=False):
    """`steps` to `phases` are columns, a row a step, or a group of `counts` steps. Milliseconds; `begin_ms`
    since the run's first step. What follows is absent in a report of an earlier version.
    """

    rollout: Rollout | None
