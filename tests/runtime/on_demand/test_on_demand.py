"""Captures asked for while a job runs, as a training process answers them."""

import asyncio
import json
import time

import pytest
from tests.waits import wait_until

from rlprof_ops.runtime import profiler
from rlprof_ops.runtime.on_demand import watcher
from rlprof_ops.runtime.on_demand.watcher import CaptureRequest
from rlprof_ops.supervisor import capture_relay
from rlprof_ops.window.gate import TimedGate


@pytest.fixture
def running(monkeypatch, tmp_path):
    """A process with nothing planned that listens; the recorder stands in for nsys unless the backend is
    torch.
    """
    for name in profiler._ASKING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(watcher, "POLL_S", 0.02)
    monkeypatch.setenv("RLPROF_ON_DEMAND", "1")
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path / "node"))
    monkeypatch.setenv("RLPROF_NODE", "n1")
    prof = profiler.from_env(worker="policy_worker", rank=1)
    yield prof
    prof.close()


def demand(**changes):
    values = {
        "id": "d1",
        "workers": ("*policy*",),
        "ranks": None,
        "backend": "torch",
        "options": {},
        "next_steps": 2,
        "seconds": None,
    }
    return CaptureRequest(**{**values, **changes})


def work():
    import torch

    torch.ones(8, 8) @ torch.ones(8, 8)


@pytest.mark.torch
def test_the_next_steps_are_taken_and_named_by_their_numbers(running, events, tmp_path):
    for step in range(1, 4):
        with running.step(step):
            work()
    watcher.leave(tmp_path / "node/control", demand())
    wait_until(lambda: running._pending)

    for step in range(4, 9):
        with running.step(step), running.range("train"):
            work()

    (closed,) = events("closed")
    assert closed["steps"] == [4, 6] and closed["asked_by"] == "d1" and closed["partial"] is False
    assert closed["report"].startswith("policy_worker_rank1_step4-5_n1_")
    assert (tmp_path / "node" / closed["path"]).is_file()
    assert running.active is False and running._quiet != (0, 0)


@pytest.mark.torch
def test_seconds_begin_at_once_and_are_named_by_the_steps_they_saw(running, events, tmp_path):
    with running.step(1):
        work()
    watcher.leave(tmp_path / "node/control", demand(next_steps=None, seconds=0.2))

    step = 1
    deadline = time.monotonic() + 120
    while not events("closed") and time.monotonic() < deadline:
        step += 1
        with running.step(step), running.range("train"):
            work()
            time.sleep(0.005)

    (opened,), (closed,) = events("opened"), events("closed")
    first, stop = closed["steps"]
    assert 1 <= first < stop <= step + 1 and closed["seen"] == list(range(first, stop))
    assert f"_step{first}-{stop - 1}_n1_" in closed["report"] and opened["asked_by"] == "d1"
    assert 0.2e9 < closed["t_ns"] - opened["t_ns"] < 30e9


@pytest.mark.torch
def test_a_step_that_begins_while_the_window_is_being_opened_is_seen(running, events, monkeypatch, tmp_path):
    begin = TimedGate.begin

    def slowly(gate, window, step):
        begin(gate, window, step)
        running.start_step(step + 1)

    monkeypatch.setattr(TimedGate, "begin", slowly)
    running.start_step(4)
    watcher.leave(tmp_path / "node/control", demand(next_steps=None, seconds=0.2))
    wait_until(lambda: events("closed"))
    assert events("closed")[0]["seen"] == [4, 5]


@pytest.mark.torch
def test_a_worker_that_is_not_meant_does_nothing(running, events, tmp_path):
    watcher.leave(tmp_path / "node/control", demand(ranks=(0,)))
    watcher.leave(tmp_path / "node/control", demand(id="d2", workers=("*generation*",)))
    watcher.leave(tmp_path / "node/control", demand(id="d3", backend="torch", next_steps=1))
    wait_until(lambda: running._pending)

    for step in range(1, 4):
        with running.step(step):
            work()

    assert [event["asked_by"] for event in events("closed")] == ["d3"]


def test_nsys_of_a_process_that_was_not_wrapped_says_so(running, events, tmp_path):
    watcher.leave(tmp_path / "node/control", demand(backend="nsight"))
    wait_until(lambda: running._pending)

    with running.step(1):
        pass

    (failed,) = events("failed")
    assert "was not started by `nsys launch`" in failed["reason"] and failed["asked_by"] == "d1"


def test_garbage_in_the_control_folder_is_survived(running, events, tmp_path, capsys):
    folder = tmp_path / "node/control"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("not json")
    (folder / "b.json").write_text(
        '{"id": "b", "workers": ["*"], "ranks": null, "backend": "torch", "options": {}, "next_steps": 0,'
        ' "seconds": null}'
    )
    (folder / "c.json").symlink_to("/etc/passwd")
    watcher.leave(folder, demand(id="good", backend="nsight"))

    wait_until(lambda: running._pending)


def test_what_was_asked_before_a_process_began_is_not_for_it(running, events, tmp_path, monkeypatch):
    watcher.leave(tmp_path / "node/control", demand(backend="nsight"))
    wait_until(lambda: running._pending)

    late = profiler.from_env(worker="policy_worker", rank=2)
    watcher.leave(tmp_path / "node/control", demand(id="d2", backend="nsight"))
    wait_until(lambda: late._pending)
    with late.step(1):
        pass
    late.close()

    assert [event["asked_by"] for event in events("failed")] == ["d2"]


def test_off_means_off(monkeypatch, tmp_path):
    for name in (*profiler._ASKING, *profiler._LISTENING):
        monkeypatch.delenv(name, raising=False)
    for value in ("0", "", "off"):
        monkeypatch.setenv("RLPROF_ON_DEMAND", value)
        assert profiler.from_env("policy_worker", 0).annotate(work) is work


def test_each_demand_is_read_once(tmp_path):
    watcher.leave(tmp_path / "run", demand())
    (tmp_path / "run" / "bad.json").write_text("{}")
    known = set()

    assert watcher.new_requests(tmp_path / "run", known) == [demand()]
    assert watcher.new_requests(tmp_path / "run", known) == []


NUMBERS = ["Infinity", "-Infinity", "NaN", "1e30", "1e400", "-1", "0", '"inf"', "9" * 5000, "[]", "1" * 30]


@pytest.mark.parametrize("field", ["seconds", "next_steps"])
@pytest.mark.parametrize("number", NUMBERS, ids=lambda text: text[:12])
def test_a_number_that_no_capture_can_have_is_no_request(field, number):
    other = "next_steps" if field == "seconds" else "seconds"
    text = json.dumps({**json.loads(demand().to_json()), field: "HERE", other: None}).replace(
        '"HERE"', number
    )
    with pytest.raises(ValueError, match="no capture request"):
        CaptureRequest.from_json(text)


@pytest.mark.parametrize("text", ["[" * 60_000, '{"a":' * 10_000, "\x00", "", "[]", "null", '{"id": {}}'])
def test_what_is_no_request_does_not_end_the_heads_watch(tmp_path, monkeypatch, text):
    monkeypatch.setattr(capture_relay, "LOOK_S", 0.05)
    told, looks = [], []
    new_requests = watcher.new_requests

    def look(*where):
        found = new_requests(*where)
        looks.append(where)
        return found

    monkeypatch.setattr(watcher, "new_requests", look)

    async def tell(asked):
        told.append(asked)

    async def looked(watching):
        """Twice: the first look may have begun before."""
        until = len(looks) + 2
        await asyncio.to_thread(wait_until, lambda: len(looks) >= until or watching.done())

    async def scene():
        watching = asyncio.create_task(capture_relay.watch(tmp_path, tell))
        await looked(watching)
        (tmp_path / "control").mkdir()
        (tmp_path / "control/bad.json").write_text(text)
        await looked(watching)
        watcher.leave(tmp_path / "control", demand())
        await asyncio.to_thread(wait_until, lambda: told or watching.done())
        watching.cancel()

    asyncio.run(scene())
    assert [CaptureRequest.from_json(asked.request) for asked in told] == [demand()]
