"""Engines whose truth is known, pass by pass: each pass makes one token of every request that runs, and takes
as long as the requests and the prompts in it make it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.analyze.whole_run.dealt_requests import STEP_NS, ZERO_NS, deal_rows, steps
from tests.recorder.recorded import SECOND

from rlprof_ops.runtime.request_log import EngineRequest


@dataclass(frozen=True)
class Asked:
    """One request: its turn of a sample comes `wait_s` after the one before, the first at that time."""

    sample: str
    turn: int
    wait_s: float
    prompt: int
    tokens: int


@dataclass(frozen=True)
class Engine:
    """Seconds of a pass: of itself, of each request in it, and of each token of a prompt."""

    slots: int = 64
    a_pass: float = 0.010
    a_request: float = 0.0002
    a_prompt_token: float = 0.00001


def served(engine: Engine, samples: Sequence[Sequence[Asked]]) -> list[tuple[Asked, list[float]]]:
    """Every request with the seconds of its arrival, its scheduling, its first token and its last one."""
    coming = [(sample[0].wait_s, n, 0) for n, sample in enumerate(samples)]
    waiting: list[tuple[float, int, int]] = []
    running: list[list[float]] = []  # sample, turn, tokens made, arrival, scheduled, first
    now, done = 0.0, []
    while coming or waiting or running:
        if not running and not waiting:
            now = max(now, min(coming)[0])
        waiting += sorted(each for each in coming if each[0] <= now)
        coming = [each for each in coming if each[0] > now]
        seconds = engine.a_pass
        while waiting and len(running) < engine.slots:
            came, sample, turn = waiting.pop(0)
            seconds += engine.a_prompt_token * samples[sample][turn].prompt
            running.append([sample, turn, 0, came, now, 0.0])
        now += seconds + engine.a_request * len(running)
        for each in list(running):
            sample, turn = int(each[0]), int(each[1])
            each[2] += 1
            if each[2] == 1:
                each[5] = now
            if each[2] >= samples[sample][turn].tokens:
                running.remove(each)
                done.append((samples[sample][turn], [*each[3:], now]))
                if turn + 1 < len(samples[sample]):
                    coming.append((now + samples[sample][turn + 1].wait_s, sample, turn + 1))
    return done


def drawn(seed: int, samples: int, turns: int = 1, most: int = 600) -> list[list[Asked]]:
    """Lengths with a long tail, all of one step at once."""
    draw = np.random.default_rng(seed)
    return [
        [
            Asked(f"{seed}-{n}", turn, float(draw.uniform(0.2, 1.5)) if turn > 1 else 0.0, 50 * turn,
                  int(min(most, 1 + draw.lognormal(4.0, 1.0))))
            for turn in range(1, turns + 1)
        ]
        for n in range(samples)
    ]  # fmt: skip


def limited(samples: Sequence[Sequence[Asked]], limit: int) -> list[list[Asked]]:
    return [[replace(each, tokens=min(each.tokens, limit)) for each in sample] for sample in samples]


def write_run(run: Path, asked: Sequence[Sequence[Sequence[Sequence[Asked]]]], engines: Sequence[Engine],
              stats: bool = True) -> list[float]:  # fmt: skip
    """A run of several steps: `asked[step][replica]`. How long each took, to the last token."""
    rows: list[list[EngineRequest]] = [[] for _ in engines]
    lengths = []
    for step, parts in enumerate(asked, 1):
        begin, longest = ZERO_NS + step * STEP_NS, 0.0
        for replica, (engine, samples) in enumerate(zip(engines, parts, strict=True)):
            for each, seconds in served(engine, samples):
                came, scheduled, first, done = (begin + round(at * SECOND) for at in seconds)
                name = f"{step}-{replica}-{each.sample}"
                later = each.turn > 1
                rows[replica].append(
                    EngineRequest(
                        f"{name}t{each.turn}" if later else name, each.prompt, each.tokens, came,
                        came if stats else None, scheduled if stats else None, first, done,
                        0 if stats else None, "stop", None, each.turn, name if later else None,
                    )
                )  # fmt: skip
                longest = max(longest, seconds[-1])
        lengths.append(longest)
    assert max(lengths) < 18.5, "the step is too short"
    steps(run, len(asked), 18.5, 19.0)
    for replica, of in enumerate(rows):
        deal_rows(run, replica, of)
    return lengths
