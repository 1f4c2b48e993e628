"""Which captures open by themselves: the `when` of a request against what was found, within its budget."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rlprof_ops.backends import report_names
from rlprof_ops.recorder.detect.anomaly import HANG, SLOW_PHASE, SLOW_RANK, SLOW_STEP, THROTTLE, Anomaly
from rlprof_ops.request import CaptureSpec, When
from rlprof_ops.runtime.on_demand.watcher import CaptureRequest

PEERS = 2


@dataclass(frozen=True)
class StepFact:
    """A step that has ended, as triggers see it."""

    step: int
    seconds: float
    median_s: float
    phases: dict[str, tuple[float, float]]  # name -> seconds, median
    end_ns: int = 0


class Trigger:
    """One capture of a request that has a `when`."""

    def __init__(self, number: int, spec: CaptureSpec, when: When) -> None:
        self._number, self._spec, self.when = number, spec, when
        self._taken = 0
        self._steps: set[int] = set()
        self._turn = 0

    @property
    def left(self) -> int:
        return self.when.at_most - self._taken

    def resume(self, taken: Sequence[tuple[str, int]]) -> None:
        """Captures that a recorder before this one has opened, as (id, step), count towards the budget."""
        for identity, step in taken:
            if identity == report_names.triggered_id(
                report_names.trigger_of(identity) or "", step, self._number
            ):
                self._taken += 1
                self._steps.add(step)
                self._turn += report_names.trigger_of(identity) == "every"

    def on_step(
        self, fact: StepFact, ranks: Sequence[int], used_bytes: Callable[[], int]
    ) -> CaptureRequest | None:
        """A step has ended: open for the next one? `ranks` are all of the workers that are meant;
        `used_bytes` is asked only where it decides.
        """
        when = self.when
        if when.every and fact.step % when.every == 0:
            self._turn += 1
            chosen = (ranks[(self._turn - 1) % len(ranks)],) if ranks else ()
            return self._take("every", fact.step, chosen, ranks, used_bytes, peers=0)
        if when.step_time is not None:
            seconds, middle = fact.seconds, fact.median_s
            if when.phase:
                seconds, middle = fact.phases.get(when.phase, (0.0, 0.0))
            if when.step_time.holds(seconds, middle):
                name = f"slow_{when.phase or 'step'}"
                return self._take(name, fact.step, (), ranks, used_bytes)
        return None

    def on_finding(
        self,
        finding: Anomaly,
        ranks: Sequence[int],
        used_bytes: Callable[[], int],
        here: Collection[int] = (),
    ) -> CaptureRequest | None:
        """Something was found: open for the next step? `here` are the ranks on the finding's node."""
        when = self.when
        if finding.kind == SLOW_RANK and when.rank == "slow":
            if not self._spec.matches(finding.worker):
                return None
            return self._take(SLOW_RANK, finding.step, finding.ranks, ranks, used_bytes)
        if finding.kind == THROTTLE and when.throttle:
            return self._take(THROTTLE, finding.step, tuple(here), ranks, used_bytes)
        if (
            finding.kind == HANG
            and when.hang_s
            and finding.evidence.get("still_s", when.hang_s) >= when.hang_s
        ):
            return self._take(HANG, finding.step, (), ranks, used_bytes, seconds=5.0)
        alone = when.phase is not None and when.step_time is None
        if finding.kind in (SLOW_STEP, SLOW_PHASE) and alone and finding.phase == when.phase:
            return self._take(f"slow_{when.phase}", finding.step, (), ranks, used_bytes)
        return None

    def _take(
        self,
        why: str,
        step: int,
        concerned: Sequence[int],
        ranks: Sequence[int],
        used_bytes: Callable[[], int],
        peers: int = PEERS,
        seconds: float | None = None,
    ) -> CaptureRequest | None:
        when = self.when
        if self.left <= 0 or step in self._steps:
            return None
        if when.disk_bytes and used_bytes() >= when.disk_bytes:
            return None
        self._taken += 1
        self._steps.add(step)
        return CaptureRequest(
            id=report_names.triggered_id(why, step, self._number),
            workers=self._spec.workers,
            ranks=_with_peers(concerned, ranks, peers) if concerned else self._spec.ranks,
            backend=self._spec.backend,
            options=dict(self._spec.options),
            next_steps=None if seconds else 1,
            seconds=seconds,
            flags=self._spec.flags,
        )


def _with_peers(concerned: Sequence[int], ranks: Sequence[int], peers: int) -> tuple[int, ...]:
    """Those concerned, and as many others to compare them with."""
    others = [rank for rank in ranks if rank not in concerned]
    return tuple(sorted({*concerned, *others[:peers]}))
