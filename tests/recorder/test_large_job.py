"""512 nodes of 8 ranks: the head keeps up with its news, and `rlprof top` reads its summary in a second."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlprof_ops.commands import top
from rlprof_ops.recorder import __main__ as recorder
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.news import News, read
from rlprof_ops.recorder.samples.gpu import GpuSample
from rlprof_ops.recorder.samples.host_samples import HostSample
from rlprof_ops.recorder.samples.step_marks import ToldStep
from rlprof_ops.runtime.marks import Now
from rlprof_ops.runtime.ranges.phase_times import Phase
from tests.recorder.simulated import BEGIN_NS, PHASES, healthy

NODES, RANKS = 512, 8


def line(node: int, step: int, rng: random.Random) -> str:
    """One node's news, as it goes over the wire: eight GPUs, eight ranks, a step of each."""
    gpus = tuple(GpuSample(i, 90, 60, 600, 1900, 70_000, 81_000, 4, 100, 9000) for i in range(RANKS))
    ranks = range(node * RANKS, (node + 1) * RANKS)
    at = BEGIN_NS + step * 10**10
    now = tuple(Now(step, at, at, rank, 4096, 100 + rank, False, "train", "policy_worker") for rank in ranks)
    steps = tuple(
        ToldStep(
            "policy_worker", rank, 100 + rank, False, step, at, 10.0,
            {name: Phase(1, 0.0, s, s * rng.uniform(0.95, 1.05)) for name, s in PHASES.items()},
        )
        for rank in ranks
    )  # fmt: skip
    host = HostSample(300, 500_000, 2_000_000, 1, 2, 3, 4, 5)
    return News(f"node{node:04}", at, host, gpus, (), now, steps, (), {}).to_json()


@pytest.mark.timed
def test_the_head_keeps_up_and_top_is_quick(tmp_path: Path) -> None:
    rng = random.Random(0)
    view = JobView("4711", [f"node{node:04}" for node in range(NODES)])
    for told in healthy(1, 2000, ranks=1):
        view.take(News("node0000", BEGIN_NS, None, (), (), (), (told[0],), (), {}))
    lines = [[line(node, step, rng) for node in range(NODES)] for step in (2001, 2002)]
    began = time.process_time()
    for told_lines in lines:
        for text in told_lines:
            news = read(text)
            assert news is not None
            view.take(news)
    seconds = (time.process_time() - began) / len(lines)
    every_s = recorder.news_every_s(NODES)
    assert seconds < 0.5 * every_s, f"{seconds:.2f} s of CPU for the news of {every_s:.0f} s"

    run = tmp_path / "4711-logs"
    (run / "recorder").mkdir(parents=True)
    (run / "run.json").write_text('{"job": "4711"}')
    data = json.dumps(view.summary())
    assert len(data) < 3_000_000
    (run / "recorder" / "summary.json").write_text(data)
    began = time.process_time()
    shown = CliRunner().invoke(top.command, [str(run), "--once"])
    assert time.process_time() - began < 1
    assert shown.exit_code == 0 and "496 more nodes" in shown.output and "4096" in shown.output


def test_top_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"job": "4711"}')
    with pytest.raises(Exception, match=r"summary.json does not exist: the job has not begun, or it runs"):
        CliRunner().invoke(top.command, [str(tmp_path), "--once"], catch_exceptions=False)
