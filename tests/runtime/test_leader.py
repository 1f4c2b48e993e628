"""The process that leads a job's steps: what it writes down of each."""

import os
import sys
from types import SimpleNamespace

import pytest

from rlprof_ops.runtime import step_clock
from rlprof_ops.runtime.clock_file import ClockFile, ClockState
from rlprof_ops.runtime.leader import Leader
from rlprof_ops.runtime.process.event_log import EventLog


def lead_step(leader, step, phases):
    leader.begin(step)
    for _ in range(phases):
        leader.phase_ends(leader.phase_begins("micro_batch"))
    leader.end(step)


def test_phases_of_an_inner_loop_are_counted_and_said_once(tmp_path, asked, events, capsys):
    asked()
    leader = Leader(EventLog(tmp_path / "node/events/driver.jsonl"), None)
    lead_step(leader, 1, 1003)
    lead_step(leader, 2, 1002)
    lead_step(leader, 3, 2)

    first, second, third = events("step")
    assert [len(step["phases"]) for step in (first, second, third)] == [1000, 1000, 2]
    assert (first["dropped_phases"], second["dropped_phases"]) == (3, 2)
    assert "dropped_phases" not in third
    said = capsys.readouterr().err
    assert said.count("step 1 had 1003 phases: its first 1000 are written down") == 1
    assert "step 2" not in said


class Now:
    """What `top` shows, in memory."""

    def __init__(self):
        self.name = ""

    def phase(self, name, at_ns):
        self.name = name


class Looked(dict):
    """Open phases, and how many of them were looked at."""

    looks = 0

    def values(self):
        return self

    def __iter__(self):
        return self._each(super().values())

    def __reversed__(self):
        return self._each(reversed(super().values()))

    def _each(self, phases):
        for phase in phases:
            self.looks += 1
            yield phase


def test_the_end_of_a_phase_shows_the_innermost_that_is_open(tmp_path):
    now = Now()
    leader = Leader(EventLog(tmp_path / "driver.jsonl"), None, now)
    first, second, third = map(leader.phase_begins, ("rollout", "reward", "train"))
    for phase, shown in ((second, "train"), (third, "rollout"), (first, "")):
        leader.phase_ends(phase)
        assert now.name == shown


def test_the_end_of_a_phase_looks_at_one_of_those_that_are_open(tmp_path):
    """Thousands of coroutines may each have one."""
    leader = Leader(EventLog(tmp_path / "driver.jsonl"), None, Now())
    leader._open = Looked()
    for phase in [leader.phase_begins("rollout") for _ in range(100)]:
        leader.phase_ends(phase)
    assert not leader._open and leader._open.looks < 100


def test_one_task_of_a_job_leads_and_another_after_it(tmp_path, monkeypatch, asked):
    """Many tasks of a script may tell steps: the windows go by one of them."""
    node = asked()
    node.mkdir()
    clock = ClockFile(node, write=True)
    led = []
    monkeypatch.setattr(step_clock, "_led", led)
    assert step_clock.take_lead_in_task() and step_clock.take_lead_in_task()

    monkeypatch.setattr(step_clock, "_led", [])  # as in the process of another task
    clock.store(ClockState(step=3))
    assert not step_clock.take_lead_in_task()
    os.close(led.pop())  # as when the first one's process ends
    assert step_clock.take_lead_in_task()
    os.close(step_clock._led.pop())


def test_no_task_leads_where_another_process_tells_steps(tmp_path, monkeypatch, asked):
    node = asked()
    monkeypatch.setattr(step_clock, "_led", [])
    assert not step_clock.take_lead_in_task()  # no job
    node.mkdir()
    ClockFile(node, write=True).store(ClockState(step=1))
    assert not step_clock.take_lead_in_task()


@pytest.mark.parametrize("asked_for", [True, False])
def test_the_trainers_own_trackers_get_steps_where_they_are_asked_for(
    tmp_path, monkeypatch, asked, capsys, asked_for
):
    """One fails at each step, one has no run: training and the other one go on."""
    asked()
    monkeypatch.setenv("RLPROF_TRACKERS", str(int(asked_for)))

    def fails(*_, **__):
        raise RuntimeError("no server")

    sent = []
    run = SimpleNamespace(log=lambda row, commit: sent.append((row, commit)))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    monkeypatch.setitem(
        sys.modules, "mlflow", SimpleNamespace(active_run=lambda: object(), log_metrics=fails)
    )
    leader = Leader(EventLog(tmp_path / "node/events/driver.jsonl"), None)
    lead_step(leader, 1, 2)
    lead_step(leader, 2, 0)
    leader.begin(3)
    leader.close()  # cut: no step that took so long
    follower = Leader(EventLog(tmp_path / "node/events/rank1.jsonl"), None, leads=False)
    lead_step(follower, 1, 1)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))
    lead_step(leader, 4, 0)

    keys = [set(row) for row, commit in sent if commit is False]
    figures = {"rlprof/step", "rlprof/step_s"}
    assert keys == ([figures | {"rlprof/phase/micro_batch_s"}, figures] if asked_for else [])
    said = capsys.readouterr().err
    assert said.count("mlflow takes no step times: RuntimeError: no server") == int(asked_for)


def test_a_phase_is_written_with_its_times_and_depth(tmp_path, asked, events):
    asked()
    leader = Leader(EventLog(tmp_path / "node/events/driver.jsonl"), None)
    leader.begin(4)
    outer = leader.phase_begins("rollout")
    leader.phase_ends(leader.phase_begins("generation"))
    leader.phase_ends(outer)
    leader.close()

    (step,) = events("step")
    (inner_name, inner_begin, inner_end, inner_depth), (name, begin, end, depth) = step["phases"]
    assert (inner_name, inner_depth, name, depth) == ("generation", 1, "rollout", 0)
    assert step["begin_ns"] <= begin <= inner_begin <= inner_end <= end <= step["end_ns"]


def test_what_ends_between_two_steps_is_in_neither(tmp_path, asked, events, capsys):
    """A checkpoint, an evaluation with a range in its inner loop. What is open at a begin counts from it."""
    asked()
    leader = Leader(EventLog(tmp_path / "node/events/driver.jsonl"), None)
    lead_step(leader, 1, 1)
    for _ in range(1500):
        leader.phase_ends(leader.phase_begins("save_checkpoint"))
    outer = leader.phase_begins("epoch")
    leader.begin(2)
    leader.phase_ends(leader.phase_begins("train"))
    leader.phase_ends(outer)
    leader.end(2)

    _, step = events("step")
    assert [(name, depth) for name, _, _, depth in step["phases"]] == [("train", 1), ("epoch", 0)]
    assert step["phases"][1][1] == step["begin_ns"] and "dropped_phases" not in step
    assert "phases" not in capsys.readouterr().err


def test_phases_that_overlap_are_open_until_each_has_ended(tmp_path, asked, events):
    """As of two coroutines; what a status shows is one that runs."""
    asked()
    shown = []
    now = SimpleNamespace(step=lambda *_: None, phase=lambda name, _: shown.append(name))
    leader = Leader(EventLog(tmp_path / "node/events/driver.jsonl"), None, now)
    leader.begin(1)
    generation, train = leader.phase_begins("generation"), leader.phase_begins("train")
    leader.phase_ends(generation)
    leader.phase_ends(leader.phase_begins("logprob"))
    leader.phase_ends(train)
    leader.phase_ends(leader.phase_begins("weight_sync"))
    leader.end(1)

    assert shown == ["generation", "train", "train", "logprob", "train", "", "weight_sync", ""]
    (step,) = events("step")
    depths = {name: depth for name, _, _, depth in step["phases"]}
    assert depths == {"generation": 0, "train": 1, "logprob": 1, "weight_sync": 0}


def test_a_leading_process_parses_its_request_once(monkeypatch, asked):
    from rlprof_ops import request
    from rlprof_ops.request import build
    from rlprof_ops.runtime import profiler
    from rlprof_ops.runtime.trainer_request import request_of

    asked(backend="torch", steps="3")
    parsed = []
    read = build.build_from_json
    monkeypatch.setattr(build, "build_from_json", lambda *given: parsed.append(given) or read(*given))
    request._from_json.cache_clear()
    prof = profiler.lead("controller")
    try:
        assert prof is not None and prof.leads
        assert request_of(os.environ) == profiler.request_from_env({"RLPROF_REQUEST_JSON": parsed[0][0]})
        assert len(parsed) == 1
    finally:
        request._from_json.cache_clear()
        if prof is not None:
            prof.close()
