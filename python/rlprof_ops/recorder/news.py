"""What a node's recorder tells the head's: one JSON line every few seconds, read with care."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlprof_ops.host import foreign
from rlprof_ops.recorder.samples.engines import EngineSample
from rlprof_ops.recorder.samples.gpu import GpuSample
from rlprof_ops.recorder.samples.host_samples import HostSample
from rlprof_ops.recorder.samples.rank_states import RankState
from rlprof_ops.recorder.samples.step_marks import ToldStep, WindowMark
from rlprof_ops.runtime.marks import Now
from rlprof_ops.runtime.on_demand.arrivals import Arrivals
from rlprof_ops.runtime.ranges.phase_times import Phase

MOST_STEPS, MOST_ARRIVALS = 400, 2  # of one line; the others come with the next


@dataclass(frozen=True)
class News:
    """One line. `throttled` is GPU -> (seconds, reasons) since the line before. `by`: who tells the job's
    steps, where that is on this node; `not_seen`: what adapters could not follow.
    """

    node: str
    t_ns: int
    host: HostSample | None
    gpus: tuple[GpuSample, ...]
    engines: tuple[EngineSample, ...]
    now: tuple[Now, ...]
    steps: tuple[ToldStep, ...]
    windows: tuple[WindowMark, ...]
    throttled: Mapping[int, tuple[float, int]]
    ranks: tuple[RankState, ...] = ()
    by: str = ""
    not_seen: tuple[str, ...] = ()
    arrivals: tuple[Arrivals, ...] = ()

    def to_json(self) -> str:
        return json.dumps(
            {
                "node": self.node,
                "t_ns": self.t_ns,
                "host": None if self.host is None else _values(self.host),
                "gpus": [_values(gpu) for gpu in self.gpus],
                "engines": [_values(engine) for engine in self.engines],
                "now": [_values(now) for now in self.now],
                "steps": [_step_row(step) for step in self.steps],
                "windows": [_values(event) for event in self.windows],
                "throttled": [[gpu, *what] for gpu, what in self.throttled.items()],
                "ranks": [asdict(rank) for rank in self.ranks],
                "by": self.by,
                "not_seen": self.not_seen,
                "arrivals": [asdict(each) for each in self.arrivals],
            },
            separators=(",", ":"),
        )


def _values(value: Any) -> list[Any]:
    return list(value.__dict__.values())


def _step_row(step: ToldStep) -> list[Any]:
    phases = {
        name: [phase.count, round(phase.begin_s, 5), round(phase.seconds, 6), round(phase.own_s, 6)]
        for name, phase in step.phases.items()
    }
    head = [step.worker, step.rank, step.pid, step.leads, step.step, step.begin_ns, round(step.seconds, 6)]
    return [*head, phases, step.trainer]


def read(text: str | bytes) -> News | None:
    """The news of a line; None for what is none."""
    try:
        data = foreign.parse(text)
        return News(
            str(data["node"]),
            int(data["t_ns"]),
            None if data["host"] is None else HostSample(*_numbers(data["host"])),
            tuple(GpuSample(*_numbers(row)) for row in data["gpus"]),
            tuple(EngineSample(str(row[0]), *_numbers(row[1:])) for row in data["engines"]),
            tuple(_now(row) for row in data["now"]),
            tuple(_step(row) for row in data["steps"]),
            tuple(_window(row) for row in data["windows"]),
            {int(gpu): (float(seconds), int(bits)) for gpu, seconds, bits in data["throttled"]},
            tuple(foreign.typed(row, RankState) for row in data["ranks"]),
            str(data["by"]),
            tuple(map(str, data["not_seen"])),
            tuple(foreign.typed(row, Arrivals) for row in data["arrivals"]),
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError):
        return None


def unmet(line: bytes) -> str | None:
    """Of a line {"unmet": sentence}, what the job waits for; None for another line."""
    found = next(foreign.rows(line), {}).get("unmet")
    return found if isinstance(found, str) else None


def _numbers(row: Iterable[Any]) -> list[int]:
    found = list(row)
    if not all(isinstance(value, (int, float)) for value in found):
        raise ValueError("no numbers")
    return found


def _now(row: list[Any]) -> Now:
    step, begin_ns, phase_ns, rank, world, pid, leads, phase, worker = row
    _numbers((step, begin_ns, phase_ns, rank, world, pid))
    return Now(step, begin_ns, phase_ns, rank, world, pid, bool(leads), str(phase), str(worker))


def _step(row: list[Any]) -> ToldStep:
    worker, rank, pid, leads, step, begin_ns, seconds, phases, trainer = row
    _numbers((rank, pid, step, begin_ns, seconds, trainer))
    told = {str(name): Phase(*_numbers(values)) for name, values in phases.items()}
    return ToldStep(str(worker), rank, pid, bool(leads), step, begin_ns, seconds, told, trainer)


def _window(row: list[Any]) -> WindowMark:
    event, t_ns, worker, rank, backend, start, asked_by, pid = row
    _numbers((t_ns, rank, start, pid))
    return WindowMark(str(event), t_ns, str(worker), rank, str(backend), start, str(asked_by), pid)
