"""What the recorder has found: one thing that stands out, with its evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SLOW_STEP, SLOW_PHASE, SLOW_RANK = "slow_step", "slow_phase", "slow_rank"
THROTTLE, MEMORY, HANG, LONG_WAIT = "throttle", "memory", "hang", "long_wait"
KINDS = (SLOW_STEP, SLOW_PHASE, SLOW_RANK, THROTTLE, MEMORY, HANG, LONG_WAIT)


@dataclass(frozen=True)
class Anomaly:
    """One finding. `key` is what makes it the same one again; `ranks` are of `worker`; `step` 0: of none."""

    kind: str
    text: str
    key: str
    t_ns: int
    step: int = 0
    worker: str = ""
    ranks: tuple[int, ...] = ()
    node: str = ""
    phase: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ranks": list(self.ranks)}
