"""What an adapter could not follow stands in the manifest's notes, once for the whole job."""

from __future__ import annotations

import json
from pathlib import Path

from rlprof_ops.collect.harvest.expected import planned
from rlprof_ops.collect.harvest.missing_reason import why_missing
from rlprof_ops.collect.harvest.run_state import observe
from rlprof_ops.host.contained_dir import ContainedDir


def test_a_renamed_function_is_a_note(tmp_path: Path):
    (tmp_path / "run.json").write_text(json.dumps({"job": "7", "nodes": ["n1", "n2"]}))
    row = {"event": "adapter_unknown", "trainer": "verl", "module": "verl.utils", "reason": "no _timer"}
    for node, pid in (("n1", 1), ("n1", 2), ("n2", 3)):
        folder = tmp_path / "nodes" / node / "events"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"notes_{pid}.jsonl").write_text(json.dumps(row) + "\nhalf a li")
    with ContainedDir(tmp_path) as run:
        assert list(observe(run).notes) == ["not seen of the trainer: verl: verl.utils: no _timer"]


def test_a_job_whose_steps_nobody_told_says_what_to_do(tmp_path: Path):
    request = {"captures": [{"backend": "nsight", "workers": ["policy"], "steps": "2"}]}
    run = {"job": "7", "nodes": ["n1"], "request": request, "end": {"cause": "driver_exit"}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    folder = tmp_path / "nodes" / "n1" / "events"
    folder.mkdir(parents=True)
    row = {"event": "registered", "worker": "policy", "rank": 0, "pid": 5, "host": "n1", "t_ns": 1}
    (folder / "policy_rank0_n1_5.session.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "nodes" / "n1.json").write_text(json.dumps({"plugin_loaded": True}))
    with ContainedDir(tmp_path) as opened:
        observed = observe(opened)
    [item] = planned(observed)
    assert why_missing(item, observed) == (
        "training ended before step 2 (no step was seen); no process of the job told its steps: that does an"
        " adapter of the trainer, or prof.step(n) of rlprof_ops.runtime in its driver (docs/unmodified.md)"
    )
