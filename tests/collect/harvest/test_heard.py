"""The manifest's line about the trainer: who tells the steps, what is heard of it and what not."""

from __future__ import annotations

import json
from pathlib import Path

from rlprof_ops.collect.harvest.heard import heard, heard_line
from rlprof_ops.collect.harvest.run_harvest import harvest
from rlprof_ops.collect.harvest.run_state import observe
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.runtime.leader import Leader
from rlprof_ops.runtime.process.event_log import EventLog
from rlprof_ops.runtime.process.worker_identity import find_identity

RULE = r"no trainer recognised; a line of the driver's output with 'step (\d+)', which ends its step"


def run_folder(folder: Path) -> Path:
    """Of a job on n1; the folder of its events."""
    record = {"job": "7", "nodes": ["n1"], "request": None, "end": {"cause": "driver_exit"}}
    (folder / "run.json").write_text(json.dumps(record))
    events = folder / "nodes" / "n1" / "events"
    events.mkdir(parents=True)
    return events


def process(events: Path, worker: str, rank: int = 0, world: int = 1) -> EventLog:
    log = EventLog(events / f"{worker}_rank{rank}_n1_{5 + rank}.jsonl")
    log.registered(find_identity(worker, rank, world, {"RLPROF_NODE": "n1"}), ())
    return log


def led(log: EventLog, by: str = "", *, by_log: bool = False, phase: str = "") -> None:
    """Steps 2 and 3, and one that was cut, as a leading process writes them."""
    leader = Leader(log, None)
    leader.by, leader.by_log = by or leader.by, by_log
    for step in (2, 3, 4):
        leader.begin(step)
        if phase:
            leader.phase_ends(leader.phase_begins(phase))
        leader.end(step, cut=step == 4)


def told(folder: Path) -> str:
    with ContainedDir(folder) as opened:
        return heard(observe(opened))


def test_a_trainer_with_all_that_there_is(tmp_path: Path) -> None:
    events = run_folder(tmp_path)
    led(process(events, "controller"), "verl 0.9.1", phase="gen")
    for rank in range(2):
        process(events, "actor", rank, 2)
    assert told(tmp_path) == "verl 0.9.1: steps 2 to 3; phases gen; roles actor (2), controller"
    assert harvest(tmp_path).heard == told(tmp_path)


def test_what_was_not_heard(tmp_path: Path) -> None:
    events = run_folder(tmp_path)
    assert told(tmp_path) == "no trainer recognised: nothing heard"
    notes = EventLog(events / "notes_9.jsonl")
    notes.write("adapted", trainer="verl 0.9.1")
    notes.write("adapter_unknown", trainer="verl", module="verl.trainer", reason="no timer")
    process(events, "actor")
    assert told(tmp_path) == (
        "in the driver is verl 0.9.1: roles actor; not heard: steps, phases, 1 place that the adapter did not"
        " find"
    )


def test_a_process_goes_before_the_drivers_output(tmp_path: Path) -> None:
    events = run_folder(tmp_path)
    driver = process(events, "driver")
    led(driver, RULE, by_log=True)
    driver.write("ended", last_step=3, late_s=0.021)
    assert told(tmp_path) == (
        f"{RULE}: steps 2 to 3; roles driver; not heard: phases; a step was known at most 21.0 ms after its"
        " line"
    )
    led(process(events, "controller"))
    assert told(tmp_path).startswith("no trainer recognised; prof.step of the program: steps 2 to 3; roles")


def test_a_step_that_the_trainer_never_told_is_named_with_those_around_it(tmp_path: Path) -> None:
    """RLinf's offline runner counts gradient updates, many a step."""
    events = run_folder(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    record["request"] = {"captures": [{"workers": ["driver"], "steps": "3", "backend": "torch"}]}
    (tmp_path / "run.json").write_text(json.dumps(record))
    log = process(events, "driver")
    leader = Leader(log, None)
    for step in (1, 101, 201):
        leader.begin(step)
        leader.end(step)
    log.write("ended", last_step=201)
    (tmp_path / "nodes/n1.json").write_text(json.dumps({"schema": 1, "node": "n1", "plugin_loaded": True}))
    [capture] = harvest(tmp_path).captures
    assert capture.reason == (
        "the worker went through step 3 without opening the window (last step seen: 201); the trainer told"
        " step 1, then step 101, and none between"
    )


def test_many_names_are_counted() -> None:
    line = heard_line("x", (3, 3), [f"p{number}" for number in range(14)], {"a": 1})
    assert line.startswith("x: step 3; phases p0, ") and line.endswith("p11 and 2 more; roles a")
