"""The profiler of a process: what it writes, and that training never notices it."""

import _thread
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from rlprof_ops.request import request_from_dict
from rlprof_ops.runtime import profiler


def train(prof, steps=6):
    result = []
    for step in range(1, steps + 1):
        with prof.step(step), prof.range("train"):
            result.append(step * step)
    prof.close()
    return result


def test_nothing_asked_imports_nothing_to_speak_of():
    """typing and what it imports are ten of fourteen milliseconds in an empty interpreter."""
    code = (
        "import sys; from rlprof_ops.runtime import profiler; profiler.from_env('w', 0);"
        " print({'typing', 're', 'json', 'dataclasses', 'torch'} & set(sys.modules))"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"


def test_nothing_asked_costs_nothing(monkeypatch):
    for name in (*profiler._ASKING, *profiler._LISTENING):
        monkeypatch.delenv(name, raising=False)

    prof = profiler.from_env(worker="policy_worker", rank=0)

    assert prof.annotate("x")(train) is train
    assert prof.annotate(train) is train
    assert train(prof) == [1, 4, 9, 16, 25, 36]
    assert profiler.runtime_env("policy_worker", 0) == {}


def test_an_actor_is_named_for_the_plugin(asked):
    asked()

    assert profiler.runtime_env("policy_worker", 3) == {"rlprof": {"worker": "policy_worker", "rank": 3}}


def test_a_process_that_was_not_wrapped_says_so_once(asked, events, capsys):
    asked(backend="nsight", steps="3:5,6")

    assert train(profiler.from_env(worker="policy_worker", rank=1)) == [1, 4, 9, 16, 25, 36]

    failed = [event for event in events() if event["event"] == "failed"]
    assert [event["steps"] for event in failed] == [[3, 5], [6, 7]]
    assert "was not started by `nsys launch`" in failed[0]["reason"]
    assert capsys.readouterr().err.count("failed, training goes on") == 1


def test_the_last_step_survives_a_kill(asked, events):
    node_dir = asked(backend="nsight")
    code = (
        "import os, signal; from rlprof_ops.runtime import profiler\n"
        "prof = profiler.from_env('policy_worker', 0)\n"
        "for n in range(1, 7):\n  with prof.step(n):\n    n == 6 and os.kill(os.getpid(), signal.SIGKILL)"
    )

    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=60
    )

    (step_file,) = node_dir.glob("events/*.step")
    assert int.from_bytes(step_file.read_bytes(), "little", signed=True) == 6
    assert [event["event"] for event in events()] == ["registered", "failed"]


def test_a_request_that_does_not_parse_leaves_training_alone(monkeypatch, capsys):
    monkeypatch.setenv("RLPROF_REQUEST_JSON", '{"captures": [{"backend": "nsigth"}]}')

    assert train(profiler.from_env("policy_worker", 0)) == [1, 4, 9, 16, 25, 36]
    assert "nothing is profiled in this process" in capsys.readouterr().err


def no_thread(*_):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("lacks", ["folder", "thread"])
def test_what_the_machine_lacks_leaves_training_alone(lacks, tmp_path, monkeypatch, capsys):
    """A working folder that was removed, and a limit of threads that is reached."""
    monkeypatch.delenv("RLPROF_NODE_DIR", raising=False)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    if lacks == "folder":
        (tmp_path / "gone").rmdir()
    else:
        monkeypatch.setenv("RLPROF_ON_DEMAND", "1")
        monkeypatch.setattr(_thread, "start_new_thread", no_thread)
    request = request_from_dict({"captures": [{"workers": ["*"], "steps": "3:5", "backend": "memory"}]})

    assert train(profiler.from_request(request, "policy_worker", 0)) == [1, 4, 9, 16, 25, 36]
    assert "nothing is profiled in this process" in capsys.readouterr().err


def test_the_node_folder_may_vanish(asked, tmp_path):
    node_dir = asked(backend="torch")
    (tmp_path / "node").write_text("a file where the folder should be")

    assert train(profiler.from_env("policy_worker", 0)) == [1, 4, 9, 16, 25, 36]
    assert node_dir.is_file()


@pytest.mark.torch
def test_torch_windows_end_as_named_traces(asked, events):
    import gzip

    import torch

    node_dir = asked(backend="torch", steps="3:5,6")
    prof = profiler.from_env("policy_worker", 2, world_size=4)
    for step in range(1, 8):
        with prof.step(step), prof.range("train"):
            torch.ones(4, 4) @ torch.ones(4, 4)
    prof.close()

    paths = sorted((node_dir / "profiles/torch/policy_worker/rank2").iterdir())
    assert [path.name for path in paths] == [
        f"policy_worker_rank2_step{steps}_n1_{os.getpid()}.pt.trace.json.gz" for steps in ("3-4", "6-6")
    ]
    trace = json.loads(gzip.decompress(paths[0].read_bytes()))
    spans = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    assert sorted(name for name in spans if not name.startswith("PyTorch")) == [
        "step 3",
        "step 4",
        "train",
        "train",
    ]
    kinds = [(event["event"], event.get("steps")) for event in events()]
    assert kinds == [
        ("registered", None),
        ("opened", [3, 5]),
        ("closed", [3, 5]),
        ("opened", [6, 7]),
        ("closed", [6, 7]),
        ("ended", None),
    ]
    ended = events()[-1]
    assert ended["last_step"] == 7 and sorted(ended["step_times_ns"]) == ["3", "4", "6"]
    assert not list((node_dir / "tmp").iterdir())


@pytest.mark.torch
def test_an_exception_ends_the_window_and_comes_out_unchanged(asked, events):
    node_dir = asked(backend="torch")
    prof = profiler.from_env("policy_worker", 0)
    error = RuntimeError("mine")

    with pytest.raises(RuntimeError) as caught:
        for step in range(1, 6):
            with prof.step(step), prof.range("train"):
                if step == 4:
                    raise error
    prof.close()

    assert caught.value is error
    (closed,) = [event for event in events() if event["event"] == "closed"]
    assert closed["partial"] is True and closed["seen"] == [3, 4]
    assert (node_dir / closed["path"]).is_file()


@pytest.mark.parametrize("gets_on", [False, True])
def test_the_end_waits_for_a_report_as_long_as_it_gets_on(
    recorder, events, asked, monkeypatch, tmp_path, gets_on
):
    """An importer that hangs would hold the job's nodes, one that works may take minutes."""
    monkeypatch.setenv("RLPROF_CLOSE_WAIT_SECONDS", "3")  # a machine may put the writer aside for a second
    prof, fake = recorder(steps="2")
    done = threading.Event()

    class Stopping:
        def wait(self):
            for number in range(1, 100):
                if done.wait(0.2):
                    break
                if gets_on and number > 32:  # twice the patience
                    break
                if gets_on:
                    (tmp_path / "node/tmp/raw.qdstrm").write_bytes(bytes(number))
            fake.target.write_bytes(b"NVIDIA Tegra Profiler Report ... [END]")
            return fake.target

    monkeypatch.setattr(fake, "close", Stopping)
    began = time.monotonic()
    train(prof)
    took_s = time.monotonic() - began
    assert (len(events("closed")) == 1) == gets_on
    done.set()
    assert took_s < 60 and (took_s > 6 or not gets_on)
