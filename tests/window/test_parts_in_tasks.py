"""Windows of torch inside a task: they begin and end at the tasks in it and between its pieces, on a program
that has `record_function`s of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tests.needs import need

from rlprof_ops.collect.event_logs import WindowEvent, read_node
from rlprof_ops.job.knobs import python_path
from rlprof_ops.request import request_from_dict
from rlprof_ops.runtime import follower
from rlprof_ops.trainers import verl
from rlprof_ops.trainers.verl import adapter

PIECE_S, PIECES = 0.1, 60
# `sys.argv[2]`: what divides the update of 6 s, or that another task runs meanwhile.
TRAINER = f"""
import sys, threading, time
import torch
from rlprof_ops.runtime import follower, profiler
from rlprof_ops.runtime.clock_file import ClockFile, ClockState

clock, how = ClockFile(sys.argv[1], write=True), sys.argv[2]
other_began, other_ends = threading.Event(), threading.Event()
began_ns = time.monotonic_ns()

def tell(**phases):
    clock.store(ClockState(1, time.time_ns(), True, 0, began_ns, phases))

def other_task():
    with follower.task("beside"):
        other_began.set()
        other_ends.wait(60)

def update(pieces, rest_s):
    model, losses = torch.linspace(-0.1, 0.1, 64).reshape(8, 8).requires_grad_(), []
    for number in range(pieces):
        with torch.profiler.record_function(f"micro-batch {{number}}"):
            visit()
            loss = torch.mm(model, model).sub(1).pow(2).sum()
            gradient, = torch.autograd.grad(loss, model)
            losses.append(float(loss))
            model.data -= 0.01 * gradient
            time.sleep(rest_s)
            visit()
    return losses

def visit():
    if how == "pieces":
        follower.follow().visit()
    else:
        with follower.task("train_batch"):
            pass

tell()
with follower.task("compute_log_prob"):  # torch's first start
    without = update({PIECES}, 0)
other = threading.Thread(target=other_task, daemon=True)
if how == "beside another task":
    other.start()
    assert other_began.wait(60)
with follower.task("update_actor"):
    tell(update_actor=time.monotonic_ns())
    time.sleep(0.2)  # the clock is read 20 times a second
    within = update({PIECES}, {PIECE_S})
assert within == without and within[-1] < within[0], (within, without)
other_ends.set()
if other.is_alive():
    other.join(60)  # a thread that is in torch when Python ends takes the process with it
clock.store(ClockState(1, time.time_ns(), False, 0, began_ns))
profiler.current().close()
print("ended well")
"""


def train(folder: Path, how: str) -> WindowEvent:
    """What became of a window of two seconds in such a trainer's update."""
    need("torch")
    part = {"at": "update_actor+500ms", "for": "2s"}
    asked = [{"backend": "torch", "workers": ["actor"], "steps": "1", **part}]
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": python_path(None),
        "RLPROF_NODE_DIR": str(folder),
        "RLPROF_WORKER": "actor",
        "RLPROF_RANK": "0",
        "RLPROF_REQUEST_JSON": request_from_dict({"captures": asked}).to_json(),
        "MALLOC_CHECK_": "3",
    }
    argv = [sys.executable, "-c", TRAINER, str(folder), how]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and done.stdout.endswith("ended well\n"), (done.returncode, done.stderr)
    [log] = read_node(folder / "events")
    [event] = [event for event in log.windows if event.event != "opened"]
    return event


@pytest.mark.parametrize("how", ["pieces", "tasks in tasks"])
def test_a_window_is_as_long_as_asked_in_a_task_that_takes_longer(tmp_path: Path, how: str) -> None:
    event = train(tmp_path, how)
    assert event.event == "closed" and not event.partial, event
    begin_s, end_s = event.taken_s
    assert 0.5 <= begin_s < 2.4 and 2.5 <= end_s < 5  # a busy machine is late
    with gzip.open(tmp_path / event.path, "rt") as packed:
        rows = [row for row in json.load(packed)["traceEvents"] if row.get("name") == "aten::mm"]
    assert 1 <= len(rows) < 3 * PIECES / 2  # three a piece


def test_torch_begins_in_no_task_while_another_thread_has_one(tmp_path: Path) -> None:
    event = train(tmp_path, "beside another task")
    assert event.event == "failed"
    assert (
        ", and no range of the thread that trains began or ended between update_actor+500ms" in event.reason
    )


def test_the_forward_passes_of_verls_engines_are_such_places(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(follower, "follow", lambda: SimpleNamespace(visit=lambda: told.append("visit")))
    name = "verl.workers.engine.fsdp.transformer_impl"
    assert name in verl.FOLLOWS

    class FSDPEngineWithLMHead:
        def forward_step(self, micro_batch: int) -> int:
            told.append(micro_batch)
            return 2 * micro_batch

    class FSDPEngineWithValueHead(FSDPEngineWithLMHead):
        pass

    module = ModuleType(name)
    vars(module)["FSDPEngineWithLMHead"] = FSDPEngineWithLMHead
    adapter.install(name, module)
    assert FSDPEngineWithValueHead().forward_step(4) == 8
    assert told == ["visit", 4, "visit"]
