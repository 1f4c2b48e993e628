"""What generation did inside: its long tail, its batch, its tokens and preemptions, from what the engines of
all nodes said of themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlprof_ops.analyze.whole_run.looks import EngineLooks, Integers
from rlprof_ops.analyze.whole_run.looks import Floats as Looked
from rlprof_ops.analyze.whole_run.records import Floats, ProcessSteps, RecordedNode
from rlprof_ops.analyze.whole_run.run_data import Done, Rollout
from rlprof_ops.analyze.whole_run.tail import generation_windows, in_flight, tail_share

DONE = (0.5, 0.9, 0.95, 0.99)
POINTS = 40  # of the curves over the phase
_MOST_PHASES = 200  # that the curves are means of
_HELD_NS = 30_000_000_000  # how long a look holds where no next one comes
_LEAST_LOOKS = 3  # in a phase
_REST_NS = 3_000_000_000  # a longer gap between two looks may hold a phase that is not counted

Window = tuple[int, int, int]  # step, begin, end


@dataclass(frozen=True)
class _Sums:
    """Over the looks of all nodes in the phases: what was done, and how many looks a phase had."""

    made: float
    prompt: float
    preempted: int
    phases_preempted: int
    full_permille: int


def rollout(driver: ProcessSteps, nodes: Sequence[RecordedNode]) -> Rollout | None:
    """None where no engine was looked at in any phase of generation."""
    engines = [node.engines for node in nodes if len(node.engines)]
    moments = np.unique(np.concatenate([e.t_ns for e in engines])) if engines else np.empty(0, np.int64)
    windows = [
        (step, begin, end)
        for step, begin, end in generation_windows(driver)
        if np.diff(np.searchsorted(moments, (begin, end)))[0] >= _LEAST_LOOKS
    ]
    if not windows:
        return None
    seconds = sum(end - begin for _, begin, end in windows) / 1e9
    looked = np.isin(driver.step, [step for step, _, _ in windows])
    whole = float(driver.seconds[looked].sum())
    sums, curves = _sums(engines, windows), _curves(engines, windows)
    return Rollout(
        steps=len(windows),
        phase_ms=round(1e3 * seconds / len(windows), 1),
        step_ms=round(1e3 * whole / len(windows), 1),
        done=_done(nodes, windows),
        batch_mean=round(float(curves["running"].mean()), 2),
        batch_peak=round(float(curves["running"].max()), 2),
        tokens=round(sums.made / len(windows)),
        prompt_tokens=round(sums.prompt / len(windows)),
        tokens_s=round(sums.made / max(seconds, 1e-9), 1),
        preempted=round(sums.preempted / len(windows), 3),
        steps_preempted=sums.phases_preempted,
        cache_peak=round(sums.full_permille / 1000, 3),
        running_at=_plain(curves["running"]),
        waiting_at=_plain(curves["waiting"]),
        tokens_s_at=_plain(curves["tokens_s"]),
        prompt_tokens_s_at=_plain(curves["prompt_tokens_s"]),
        cache_at=_plain(curves["cache"]),
    )


def _plain(values: Floats) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


def _done(nodes: Sequence[RecordedNode], windows: Sequence[Window]) -> list[Done]:
    """When so much of a phase's requests was done. A share that is less than one request is left out."""
    moments, requests = in_flight(nodes)
    found: list[Done] = []
    for share in DONE:
        lefts, saved, left_over = [], 0.0, 0.0
        for _, begin, end in windows:
            inside = slice(*np.searchsorted(moments, (begin, end)).tolist())
            peak = int(requests[inside].max())
            rest = round(1 - share, 6)
            if peak * rest < 1:
                continue
            left = tail_share(moments[inside], requests[inside], begin, end, rest)
            if left is not None:
                lefts.append(left)
                saved += left * (end - begin) / 1e6
                left_over += peak * rest
        if lefts:
            count = len(lefts)
            found.append(
                Done(
                    share=share,
                    left=round(float(np.mean(lefts)), 4),
                    saves_ms=round(saved / count, 1),
                    requests=round(left_over / count, 1),
                    steps=count,
                )
            )
    return found


def _sums(engines: Sequence[EngineLooks], windows: Sequence[Window]) -> _Sums:
    begins, ends = (np.array([w[i] for w in windows], np.int64) for i in (1, 2))
    made = prompt = 0.0
    preempted = np.zeros(len(windows), np.int64)
    full = 0
    for looks in engines:
        made += _within(looks, looks.made, begins, ends)
        prompt += _within(looks, looks.prompt, begins, ends)
        first, last = (np.searchsorted(looks.t_ns, edge, side="right") for edge in (begins, ends))
        counted = np.concatenate(([0], np.cumsum(looks.preempted, dtype=np.int64)))
        preempted += counted[last] - counted[first]
        for a, b in zip(first.tolist(), last.tolist(), strict=True):
            full = max(full, int(looks.cache_permille[a:b].max(initial=0)))
    return _Sums(made, prompt, int(preempted.sum()), int((preempted > 0).sum()), full)


def _within(looks: EngineLooks, done: Looked, begins: Integers, ends: Integers) -> float:
    """What was done in the phases. Between two looks evenly, for no more is known; but nothing between a
    phase and a look at which the engines had no request.
    """
    if not len(looks):
        return 0.0
    summed = np.cumsum(done, dtype=np.float64)
    before = np.searchsorted(looks.t_ns, begins, side="right") - 1
    after = np.searchsorted(looks.t_ns, ends)
    total: Floats = _so_far(looks, summed, ends, after) - _so_far(looks, summed, begins, before)
    return float(total.sum())


def _so_far(looks: EngineLooks, summed: Floats, at: Integers, beside: npt.NDArray[np.intp]) -> Floats:
    """Of `summed`, what was done until `at`; `beside`: the looks next to it, outside the phases."""
    known = np.clip(beside, 0, len(looks) - 1)
    rests = (known == beside) & (looks.in_flight[known] == 0)
    rests &= np.abs(looks.t_ns[known] - at) < _REST_NS
    even: Floats = np.interp(at, looks.t_ns, summed)
    return np.where(rests, summed[known], even)


def _curves(engines: Sequence[EngineLooks], windows: Sequence[Window]) -> dict[str, Floats]:
    """Requests, tokens a second and cache over the phase, from its begin to its end, means of the phases."""
    chosen = windows[:: -(-len(windows) // _MOST_PHASES)]
    begin, end = (np.array([w[i] for w in chosen], np.int64)[:, None] for i in (1, 2))
    places = (np.arange(POINTS) + 0.5) / POINTS
    at = (begin + (end - begin) * places).astype(np.int64)
    running, waiting, tokens, prompts, cache = (np.zeros(at.shape) for _ in range(5))
    for looks in engines:
        # requests and cache as at the last look; a rate is what the next look tells of the time before it
        before = np.searchsorted(looks.t_ns, at, side="right") - 1
        after = np.minimum(before + 1, len(looks) - 1)
        known = (before >= 0) & (at - looks.t_ns[np.maximum(before, 0)] < _HELD_NS)
        safe = np.maximum(before, 0)
        running += np.where(known, looks.running[safe], 0)
        waiting += np.where(known, looks.waiting[safe], 0)
        cache = np.maximum(cache, np.where(known, looks.cache_permille[safe] / 1000, 0.0))
        gap = (looks.t_ns[after] - looks.t_ns[safe]) / 1e9
        told = known & (gap > 0) & (gap < _HELD_NS / 1e9)
        tokens += np.where(told, looks.made[after] / np.maximum(gap, 1e-9), 0.0)
        prompts += np.where(told, looks.prompt[after] / np.maximum(gap, 1e-9), 0.0)
    columns = {
        "running": running,
        "waiting": waiting,
        "tokens_s": tokens,
        "prompt_tokens_s": prompts,
        "cache": cache,
    }
    return {name: values.mean(axis=0) for name, values in columns.items()}
