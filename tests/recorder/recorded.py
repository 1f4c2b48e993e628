"""Node folders with a record of simulated steps, written by the real recorder's own parts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rlprof_ops.recorder import rows
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.news import News
from rlprof_ops.recorder.record_file import FOLDER, RecordFile
from rlprof_ops.recorder.samples.host_samples import HostSample
from rlprof_ops.recorder.samples.step_marks import ToldStep

SECOND = 1_000_000_000


def write_record(
    run: Path,
    node: str,
    told: Iterable[Sequence[ToldStep]],
    in_flight: Mapping[int, int] | None = None,
    engine: Mapping[int, tuple[float, ...]] | None = None,
) -> None:
    """The record of one node: these steps, GPU 0 at one look a second, and `in_flight` requests of an engine
    by Unix second, or all that an `engine` says: running, waiting, cache, preemptions, tokens and prompt
    tokens a second.
    """
    folder = run / "nodes" / node / FOLDER
    folder.parent.mkdir(parents=True)
    file, names = RecordFile(folder), rows.Names.new()
    for steps in told:
        base = steps[0].begin_ns
        file.begin(base)
        found: list[tuple[int, bytes]] = []
        for step in steps:
            who = names.number(rows.process_name(step.worker, step.rank, step.pid, step.leads))
            found.append((rows.STEP, rows.pack(rows.STEP, who, step.step, step.begin_ns, step.seconds)))
            for name, phase in step.phases.items():
                times = (phase.begin_s, phase.seconds, phase.own_s)
                row = rows.pack(rows.PHASE, who, step.step, names.number(name), phase.count, *times)
                found.append((rows.PHASE, row))
        lengths = [step.seconds for step in steps if math.isfinite(step.seconds)]
        for second in range(math.ceil(max(lengths, default=0.0))):
            t = second * 10
            found.append((rows.GPU, rows.pack(rows.GPU, t, 0, 80, 60, 0, 500, 1900, 70_000, 4, 10, 10)))
            requests = (in_flight or {}).get(base // SECOND + second)
            said = (requests, 0, 500, 0, 1000.0, 10.0) if requests is not None else None
            said = said or (engine or {}).get(base // SECOND + second)
            if said is not None:
                number = names.number("http://127.0.0.1:8000/metrics")
                found.append((rows.ENGINE, rows.pack(rows.ENGINE, t, number, *said)))
        file.add([*((rows.NAME, row) for row in names.fresh), *found])
        file.seal()
        names = rows.Names.new()
    record = {"schema": 1, "job": "4711", "nodes": [node], "request": {"captures": []}}
    (run / "run.json").write_text(json.dumps(record))


def write_summary(run: Path, job: str, told: Iterable[Sequence[ToldStep]]) -> None:
    """What the head's recorder of a job on one node tells those who watch."""
    view = JobView(job, ["n1"])
    for steps in told:
        host = HostSample(250, 1024, 4096, 1, 2, 3, 4, 5)
        view.take(News("n1", steps[0].begin_ns, host, (), (), (), tuple(steps), (), {}))
    (run / "recorder").mkdir()
    (run / "recorder" / "summary.json").write_text(json.dumps(view.summary()))
