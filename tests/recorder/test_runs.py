"""`rlprof ps FOLDER` on run folders of several kinds."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from rlprof_ops.commands import ps
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.news import News
from tests.recorder.simulated import BEGIN_NS, healthy


def test_runs_are_listed_the_latest_first(tmp_path: Path) -> None:
    for number, job in enumerate(("1", "2", "3")):
        run = tmp_path / f"{job}-logs"
        run.mkdir()
        record = {"job": job, "job_name": "grpo", "nodes": ["n1", "n2"], "started_ns": BEGIN_NS + number}
        record |= {"driver": {"exit_code": 7}, "end": {"cause": "driver-exit"}}
        (run / "run.json").write_text(json.dumps(record) if job != "3" else "{")
    view = JobView("2", ["n1"])
    for told in healthy(1, 20, ranks=2):
        view.take(News("n1", BEGIN_NS, None, (), (), (), tuple(told), (), {}))
    (tmp_path / "2-logs" / "recorder").mkdir()
    (tmp_path / "2-logs" / "recorder" / "summary.json").write_text(json.dumps(view.summary()))

    told_runs = json.loads(CliRunner().invoke(ps.command, [str(tmp_path), "--json"]).output)
    assert [(run["job"], run["steps"], run["exit_code"]) for run in told_runs] == [
        ("2", 20, 7),
        ("1", None, 7),
    ]
    assert told_runs[0]["median_s"] > 5
    text = CliRunner().invoke(ps.command, [str(tmp_path)]).output
    assert "median step" in text and "driver-exit" in text
    assert (
        "no run folder below"
        in CliRunner().invoke(ps.command, [str(tmp_path / "2-logs" / "recorder")]).output
    )
