"""Finds steps and phases that took longer than their own history allows."""

from __future__ import annotations

from collections import deque

from rlprof_ops.recorder.detect.anomaly import SLOW_PHASE, SLOW_STEP, Anomaly
from rlprof_ops.recorder.detect.history import LEAST_FACTOR, History, Judged
from rlprof_ops.recorder.detect.phase_words import SEASONAL
from rlprof_ops.recorder.samples.step_marks import ToldStep
from rlprof_ops.words import duration

_LEAST_SHARE = 0.1  # of the step: what a phase must have lost to be worth a word
_LATEST_OUT = 64


def seasonal_s(step: ToldStep) -> float:
    """Seconds of a step that went to work which is not of every step."""
    return sum(phase.own_s for name, phase in step.phases.items() if SEASONAL.search(name))


class StepDetector:
    """One process's steps; the driver's where there is one."""

    def __init__(self) -> None:
        self.steps = History()
        self._phases: dict[str, History] = {}
        self._out: deque[int] = deque(maxlen=_LATEST_OUT)
        self._was_out = False

    def add(self, step: ToldStep, exempt: bool = False) -> Anomaly | None:
        """A step has ended; what stands out in it. `exempt`: a window was open, so that it proves nothing."""
        if exempt:
            return None
        seconds = step.seconds - seasonal_s(step)
        whole = self.steps.judge(seconds)
        slow = self._slow_phases(step, whole)
        self.steps.add(seconds)
        for name, phase in step.phases.items():
            if not SEASONAL.search(name):
                self._phases.setdefault(name, History()).add(phase.own_s)
        out = whole is not None and whole.is_out
        if not out and not slow:
            self._was_out = False
            return None
        again, self._was_out = self._was_out, True
        seasonal = self._is_seasonal(step.step)
        self._out.append(step.step)
        if again or seasonal:
            return None
        return _found(step, whole if out else None, slow)

    def phase_median_s(self, name: str) -> float:
        """0.0 for a phase that is not known well enough."""
        history = self._phases.get(name)
        return history.median_s if history is not None and len(history) >= 5 else 0.0

    def _slow_phases(self, step: ToldStep, whole: Judged | None) -> list[tuple[float, str, Judged]]:
        """Phases that are out of their history and cost the step something: most first."""
        if whole is None:
            return []
        found = []
        for name, phase in step.phases.items():
            history = self._phases.get(name)
            judged = history.judge(phase.own_s) if history is not None else None
            if judged is not None and judged.is_out:
                lost = judged.seconds - judged.median_s
                if lost > _LEAST_SHARE * whole.median_s and whole.factor > 1 + _LEAST_SHARE:
                    found.append((lost, name, judged))
        return sorted(found, reverse=True)

    def _is_seasonal(self, step: int) -> bool:
        """Whether steps that far apart have been out twice before: a rhythm that nobody has named."""
        return any(
            step - before > 1 and 2 * before - step in self._out for before in self._out if before != step
        )


def _found(step: ToldStep, whole: Judged | None, slow: list[tuple[float, str, Judged]]) -> Anomaly:
    phase, words = "", ""
    evidence: dict[str, object] = {}
    if slow:
        lost, phase, judged = slow[0]
        times = f"{judged.factor:.2f} times its median {duration(judged.median_s * 1e9)}"
        words = f"{phase} took {duration(judged.seconds * 1e9)}, {times}"
        evidence = {"phase_s": judged.seconds, "phase_median_s": judged.median_s, "lost_s": lost}
    if whole is None:
        text = f"step {step.step}: {words}"
        kind = SLOW_PHASE
    else:
        text = (
            f"step {step.step} took {duration(step.seconds * 1e9)}, {whole.factor:.2f} times the median"
            f" {duration(whole.median_s * 1e9)}" + (f"; {words}" if words else "")
        )
        kind = SLOW_STEP
        evidence |= {
            "seconds": step.seconds,
            "median_s": whole.median_s,
            "factor": whole.factor,
            "sigmas": whole.sigmas,
            "least_factor": LEAST_FACTOR,
        }
    key = f"{kind}:{step.step}"
    return Anomaly(kind, text, key, step.end_ns, step.step, step.worker, (step.rank,), "", phase, evidence)
