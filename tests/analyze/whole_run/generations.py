"""A run whose generation is known to the second: what two engines say while 200 requests a step are done."""

from __future__ import annotations

from pathlib import Path

from tests.recorder.recorded import SECOND, write_record

from rlprof_ops.recorder.samples.step_marks import Phase, ToldStep

BEGIN_S, STEP_S, PHASE_S = 1_760_000_000, 50, 40
STEPS = (1, 2, 3)
SLOTS = 64  # requests that one engine runs at a time
TOKENS = 10  # a second and running request
PREEMPTED = 12  # a step, on one engine


def in_flight(second: int) -> int:
    """200 requests: half of them done after 10 s, 90 % after 20, 95 % after 26, 99 % after 30."""
    return next(
        (left for end, left in ((10, 200), (20, 100), (26, 20), (30, 10), (40, 2)) if second < end), 0
    )


def two_engines(run: Path) -> None:
    """Two nodes, each with an engine that has half of the requests; the second one preempts."""
    phases = {
        "generation": Phase(1, 0.0, float(PHASE_S), float(PHASE_S)),
        "train": Phase(1, float(PHASE_S), 10.0, 10.0),
    }
    for node, preempts in (("n1", 0), ("n2", 1)):
        told, says = [], {}
        for step in STEPS:
            begin = BEGIN_S + STEP_S * step
            leads = node == "n1"
            who = ("driver", 0, 1) if leads else ("policy_worker", 0, 2)
            told.append([ToldStep(*who, leads, step, begin * SECOND, float(STEP_S), phases if leads else {})])
            for second in range(STEP_S):
                mine = in_flight(second) // 2
                running = min(mine, SLOTS)
                lost = preempts * PREEMPTED * (step - 1 + (second >= 5))
                rate = TOKENS * min(in_flight(second - 1) // 2, SLOTS) if 0 < second <= PHASE_S else 0
                prompts = 500.0 if 0 < second <= 2 else 0.0
                says[begin + second] = (running, mine - running, 10 * running, lost, float(rate), prompts)
        write_record(run, node, told, engine=says)


def tokens_a_step() -> int:
    """What both engines generate."""
    return sum(2 * TOKENS * min(in_flight(second) // 2, SLOTS) for second in range(PHASE_S))
