"""What one demo run is: sizes, seed and faults, made once from the command line and passed on whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PADDED = ("generation", "ref_logprob", "logprob", "train", "weight_sync")  # what `least_ms` knows


@dataclass(frozen=True)
class DemoSettings:
    """`prompts` and `group_size` are per policy worker and step; `slow_ms` is added to every `slow_phase`
    of `slow_rank`, `tail_ms` to the generation of one worker, another in each step. From step `slow_from` on
    alone; in `hang_at_step` worker 0 never comes back from `slow_phase`. `least_ms`: what a phase
    lasts at least, wherever it runs. `overlap_sync`: weights are loaded while the next step trains.
    """

    steps: int = 8
    policy_workers: int = 2
    generation_workers: int = 1
    seed: int = 0
    prompts: int = 32
    group_size: int = 8
    epochs: int = 4
    minibatches: int = 2
    learning_rate: float = 1e-2
    slow_rank: int | None = None
    slow_ms: int = 0
    slow_phase: str = "train"
    slow_from: int = 1
    hang_at_step: int | None = None
    tail_ms: int = 0
    least_ms: Mapping[str, int] = field(default_factory=dict)
    overlap_sync: bool = False
    fail_at_step: int | None = None
    exit_code: int = 7
    step_seconds: float = 0.0
    start_timeout_s: float = 180.0
    phase_timeout_s: float = 600.0
