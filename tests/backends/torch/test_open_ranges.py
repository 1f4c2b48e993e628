"""Ranges of the program's that are open when a torch window ends, and end in the next one, in a profiler of
its own, or in none: the program lives, and our trace has them until its end. Real torch.profiler, each case
in a process of its own, which torch 2.13 itself ends.
"""

import gzip
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

PROGRAM = r"""
import gc, json, sys, threading
from pathlib import Path
import torch
from rlprof_ops.backends.torch.torch_recorder import TorchRecorder
from rlprof_ops.request import request_from_dict

FOLDER, ORDER, THREAD, OPTIONS = Path(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
CAPTURE = {"backend": "torch", "workers": "*", "steps": "1", "options": OPTIONS}
[SPEC] = request_from_dict({"captures": [CAPTURE]}).captures
X = torch.randn(64, 64)

def elsewhere(action):
    if THREAD == "same":
        return action()
    thread = threading.Thread(target=action)
    thread.start(); thread.join()

class Ours:
    def start(self):
        self.recorder = TorchRecorder(SPEC)
        self.recorder.open(FOLDER / "ours.pt.trace.json.gz")
        self.recorder.entered(1)
    def next(self):
        self.recorder.entered(2)
    def stop(self):
        self.recorder.close()

class Theirs:
    def start(self):
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self.profile.start()
    def stop(self):
        self.profile.stop()

def ranges():
    found = [torch.profiler.record_function(f"epoch {number}") for number in range(200)]
    elsewhere(lambda: [each.__enter__() for each in found])
    return found

def leave(found):
    elsewhere(lambda: [each.__exit__(None, None, None) for each in reversed(found)])

def work():
    for _ in range(30):
        X @ X

print("begins", flush=True)
for time in range(3):
    for word in ORDER.split():
        if word in ("ours", "theirs"):
            one = Ours() if word == "ours" else Theirs()
            one.start()
        elif word == "open":
            opened = ranges()
        elif word == "leave":
            leave(opened)
        elif word == "next":
            one.next()
        elif word == "end":
            one.stop()
            del one
            gc.collect()
            junk = [torch.empty(1000 + size) for size in range(200)]
        work()
print("lives", flush=True)
"""


def run(tmp_path, order, thread="same", **options):
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, "program.py", str(tmp_path), order, thread, json.dumps(options)]
    return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    ("order", "thread", "options"),
    [
        ("ours open end ours leave end", "same", {}),
        ("ours open end ours leave end", "other", {}),
        ("ours open end ours leave end", "same", {"all_threads": "false"}),
        ("ours open end theirs leave end", "same", {}),
        ("theirs open end ours leave end", "same", {}),
        ("ours open next leave end", "same", {"schedule_wait": "0", "schedule_active": "1"}),
    ],
)
def test_a_range_that_is_open_around_two_profilers_ends_no_program(tmp_path, order, thread, options):
    done = run(tmp_path, order, thread, **options)

    assert (done.returncode, done.stdout[-6:]) == (0, "lives\n"), done.stderr[-2000:]


def test_what_is_open_ends_with_the_window(tmp_path):
    done = run(tmp_path, "ours open end leave")

    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(gzip.decompress((tmp_path / "ours.pt.trace.json.gz").read_bytes()))["traceEvents"]
    work = [row["ts"] + row["dur"] for row in rows if row.get("name") == "aten::mm"]
    epochs = [row for row in rows if row.get("name", "").startswith("epoch ") and row.get("ph") == "X"]
    assert len({row["name"] for row in epochs if row["cat"] == "user_annotation"}) == 200
    assert all(row["ts"] + row["dur"] > max(work) for row in epochs)


COMPILED = r"""
import sys
from pathlib import Path
import torch
from rlprof_ops.backends.torch.torch_recorder import TorchRecorder
from rlprof_ops.request import request_from_dict

def plain(x):
    with torch.profiler.record_function("inside"):
        return x @ x + 1

def script(x):
    with torch.autograd.profiler.record_function("inside"):
        y = x + 1
    return y

def told():
    x = torch.ones(8, 8)
    torch._dynamo.reset()
    whole = torch.compile(plain, backend="eager", fullgraph=True)
    twice = [whole(x), whole(x)]
    scripted = torch.jit.script(script)
    decorated = torch.profiler.record_function("all of it")(plain)
    return [float(each.sum()) for each in (*twice, scripted(x), decorated(x))], str(scripted.graph)

before = told()
[spec] = request_from_dict({"captures": [{"backend": "torch", "workers": "*", "steps": "1"}]}).captures
recorder = TorchRecorder(spec)
recorder.open(Path(sys.argv[1]) / "ours.pt.trace.json.gz")
assert told() == before, (told(), before)
recorder.close()
assert told() == before
print("as before")
"""


def test_what_torch_compiles_is_as_without_us(tmp_path):
    (tmp_path / "program.py").write_text(COMPILED)
    words = [sys.executable, "-W", "ignore", "program.py", str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    assert done.stdout.endswith("as before\n"), done.stderr[-3000:]
