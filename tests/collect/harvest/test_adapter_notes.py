"""What an adapter could not follow stands in the manifest's notes, once for the whole job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlprof_ops.backends import report_names
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
        " adapter of the trainer, or prof.step(n) of rlprof_ops.runtime in its driver, or steps_from of the"
        " request (docs/unmodified.md)"
    )


@pytest.mark.parametrize(
    ("failures", "loaded", "reason"),
    [
        (
            ["nsys launch hung for 20 s before the program began (try 1 of 3)"],
            True,
            "nsys launch hung for 20 s before the program began (try 1 of 3)",
        ),
        ([], False, "node n1 did not load the runtime-env plugin"),
        (
            [],
            True,
            "its process told nothing, and the driver ended with exit code 1; Ray's logs of the worker say"
            " more, and its Python may not have the PYTHONPATH of the job",
        ),
    ],
)
def test_who_was_created_and_never_began_is_planned_and_missing(
    tmp_path: Path, failures: list[str], loaded: bool, reason: str
):
    request = {"captures": [{"backend": "nsight", "workers": ["*"], "steps": "2"}]}
    run = {"job": "7", "nodes": ["n1"], "request": request, "end": {"cause": "driver_exit"}}
    (tmp_path / "run.json").write_text(json.dumps({**run, "driver": {"exit_code": 1}}))
    (tmp_path / "nodes" / "n1" / "events").mkdir(parents=True)
    (tmp_path / "nodes" / "n1.json").write_text(json.dumps({"plugin_loaded": loaded}))
    rows = [{"event": "selected", "worker": "my actor", "rank": rank} for rank in (0, 1)]
    rows.append({"event": "begun", "worker": "my actor", "rank": 0})
    session = f"rlprof-7-{report_names.safe_worker('my actor')}-r1"
    rows += [{"event": "nsys_failed", "session": f"{session}-", "reason": text} for text in failures]
    rows.append({"event": "nsys_failed", "session": f"{session}1-", "reason": "another one's"})
    notes = tmp_path / "nodes" / "n1" / "events" / "notes_5.jsonl"
    notes.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with ContainedDir(tmp_path) as opened:
        observed = observe(opened)
    found = {item.capture.rank: why_missing(item, observed) for item in planned(observed)}
    assert found[1] == f"my actor rank 1 was created and never began under its profiler: {reason}"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (
            {"cause": "driver_exit"},
            "no worker registered before the job ended (driver_exit); a COMMAND that sets PYTHONPATH",
        ),
        ({"cause": "signal", "detail": "SIGTERM"}, "no worker registered before the job ended (SIGTERM)"),
        ({"cause": "running"}, "no worker registered"),
    ],
)
def test_where_nobody_registered_a_command_that_ended_may_have_lost_the_path(
    tmp_path: Path, end: dict[str, str], reason: str
):
    request = {"captures": [{"backend": "nsight", "workers": ["*"], "steps": "2"}]}
    (tmp_path / "run.json").write_text(json.dumps({"job": "7", "nodes": [], "request": request, "end": end}))
    with ContainedDir(tmp_path) as opened:
        observed = observe(opened)
    [found] = [why_missing(item, observed) for item in planned(observed)]
    assert found.startswith(reason) and ("PYTHONPATH" in found) == ("PYTHONPATH" in reason)
