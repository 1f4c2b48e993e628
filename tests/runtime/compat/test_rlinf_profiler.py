"""RLinf's PyTorchProfiler: the document's configuration, its results, its limits. Real torch.profiler."""

import json
import signal
import time
from pathlib import Path

import pytest

from rlprof_ops.runtime.compat.rlinf_profiler import PyTorchProfiler, PyTorchProfilerFunc

pytestmark = pytest.mark.torch


@pytest.fixture
def config(tmp_path):
    """The example of RLinf's document, word for word but for the folder."""
    return {
        "output_dir": str(tmp_path / "profiler"),
        "activities": ["cpu", "cuda"],
        "record_shapes": False,
        "profile_memory": False,
        "with_stack": False,
        "with_flops": False,
        "with_modules": True,
        "export_tensorboard": True,
        "export_chrome_trace": False,
        "chrome_filename_prefix": "chrome_trace",
        "schedule_warmup": 2,
        "schedule_active": 1,
        "schedule_repeat": 1,
    }


def run(prof, label, forward_only=False):
    import torch

    prof.start(forward_only)
    with torch.profiler.record_function(label):
        torch.ones(4, 4) @ torch.ones(4, 4)
    prof.stop(forward_only)


def labels(folder):
    """The record_function labels of each trace in a folder, in the order of the files' times."""
    found = []
    for path in sorted(Path(folder).iterdir(), key=lambda path: path.stat().st_mtime_ns):
        events = json.loads(path.read_text())["traceEvents"]
        found.append(
            [
                event["name"]
                for event in events
                if event.get("cat") == "user_annotation" and event["name"][:5] in ("train", "infer")
            ]
        )
    return found


def test_the_documents_example_gives_the_documents_results(config, tmp_path):
    prof = PyTorchProfiler.from_config(config)
    prof.init_fwd_bwd_schedule(5)
    assert prof.schedule_wait == 2

    for step in range(2):
        run(prof, f"infer {step}", forward_only=True)
        prof.init_fwd_bwd_schedule(5)
        for minibatch in range(5):
            run(prof, f"train {step}.{minibatch}")

    assert labels(tmp_path / "profiler/fwd_bwd") == [["train 0.4"]]
    assert labels(tmp_path / "profiler/fwd") == [["infer 0"]]
    assert all(path.name.endswith(".pt.trace.json") for path in (tmp_path / "profiler").rglob("*.json"))


def test_every_active_call_of_every_cycle_is_kept_in_both_exports(config, tmp_path):
    prof = PyTorchProfiler.from_config(
        {
            **config,
            "schedule_warmup": 1,
            "schedule_active": 2,
            "schedule_repeat": 2,
            "export_chrome_trace": True,
        },
        rank=3,
    )
    prof.init_fwd_bwd_schedule(4)

    for number in range(12):
        run(prof, f"train {number}")
        run(prof, f"infer {number}", forward_only=True)

    training = tmp_path / "profiler/fwd_bwd"
    assert sorted(path.name for path in training.glob("chrome*")) == [
        f"chrome_trace_rank3_fwd_bwd_{n}.json" for n in (2, 3, 6, 7)
    ]
    assert len(list(training.glob("*.pt.trace.json"))) == 4
    assert sorted(path.name for path in (tmp_path / "profiler/fwd").glob("chrome*")) == [
        "chrome_trace_rank3_fwd_0.json",
        "chrome_trace_rank3_fwd_1.json",
    ]
    kept = sorted(label for entry in labels(training) for label in entry)
    assert kept == sorted(2 * [f"train {n}" for n in (2, 3, 6, 7)])


def test_an_illegal_schedule_wait_says_the_numbers(config):
    prof = PyTorchProfiler.from_config(config)

    with pytest.raises(ValueError) as caught:
        prof.init_fwd_bwd_schedule(2)

    assert str(caught.value) == (
        "schedule_wait should be greater than or equal to 0, got -1: num_minibatches 2 - schedule_warmup 2 - "
        "schedule_active 1; use at least 3 minibatches or a shorter schedule"
    )


def test_another_number_of_minibatches_needs_another_profiler(config):
    prof = PyTorchProfiler.from_config(config)
    prof.init_fwd_bwd_schedule(5)
    prof.init_fwd_bwd_schedule(5)

    with pytest.raises(ValueError, match="num_minibatches changed from 5 to 8: make a new profiler"):
        prof.init_fwd_bwd_schedule(8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule_wait": 3}, "schedule_wait is computed at runtime"),
        ({"with_stacks": True}, "Unknown profiler parameter 'with_stacks'. Did you mean 'with_stack'?"),
        (
            {"activities": ["cpu", "cud"]},
            "activities has 'cud': allowed are cpu and cuda. Did you mean 'cuda'?",
        ),
        ({"schedule_warmup": -1}, "schedule_warmup is -1: expected a whole number from 0"),
        ({"schedule_active": 0}, "schedule_active is 0: expected a whole number from 1"),
        ({"with_flops": "yes"}, "with_flops is 'yes': expected true or false"),
        ({"chrome_filename_prefix": "../x"}, "chrome_filename_prefix is '../x'"),
    ],
)
def test_a_wrong_configuration_is_refused_with_what_is_allowed(config, change, message):
    with pytest.raises(ValueError) as caught:
        PyTorchProfiler.from_config({**config, **change})

    assert message in str(caught.value)


def test_missing_parameters_are_listed(config):
    del config["with_flops"], config["activities"]

    with pytest.raises(ValueError, match="Missing required profiler parameters: activities, with_flops"):
        PyTorchProfiler.from_config(config)


def test_training_before_its_schedule_is_refused(config):
    with pytest.raises(RuntimeError, match="call init_fwd_bwd_schedule"):
        PyTorchProfiler.from_config(config).start()


def test_an_exception_in_a_call_does_not_block_the_next(config, tmp_path, capsys):
    prof = PyTorchProfiler.from_config({**config, "schedule_repeat": 3})
    prof.start(forward_only=True)  # its call failed and nobody called stop()
    run(prof, "infer after", forward_only=True)

    with pytest.raises(ValueError), prof.call(forward_only=True):
        raise ValueError

    assert ["infer after"] in labels(tmp_path / "profiler/fwd")
    assert "was not stopped" in capsys.readouterr().err


def test_a_failing_export_does_not_stop_training(config, tmp_path, capsys):
    (tmp_path / "profiler").write_text("a file where the folder should be")
    prof = PyTorchProfiler.from_config({**config, "schedule_repeat": 2})

    run(prof, "infer", forward_only=True)
    run(prof, "infer", forward_only=True)

    assert capsys.readouterr().err.count("could not save a fwd call") == 1


def test_only_the_asked_ranks_profile(config, tmp_path):
    prof = PyTorchProfiler.from_config(config, ranks=[0], rank=1)

    run(prof, "infer", forward_only=True)

    assert not (tmp_path / "profiler").exists()


@pytest.mark.parametrize("where", ["start", "stop"])
def test_a_time_limit_of_the_programs_is_not_taken_for_a_fault(config, monkeypatch, capsys, where):
    """A verifier's handler of SIGALRM raises; torch works for longer than it allows."""
    import torch

    prof = PyTorchProfiler.from_config(config)
    work = getattr(torch.profiler.profile, where)

    def slow(self):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        time.sleep(0.3)
        return work(self)

    def given_up(number, frame):
        raise TimeoutError("the sample takes too long")

    monkeypatch.setattr(torch.profiler.profile, where, slow)
    before = signal.signal(signal.SIGALRM, given_up)
    try:
        with pytest.raises(TimeoutError, match="the sample"):
            run(prof, "infer", forward_only=True)
    finally:
        signal.signal(signal.SIGALRM, before)
        prof.stop(forward_only=True)
    assert "PyTorchProfiler" not in capsys.readouterr().err


def test_markers_need_no_if(monkeypatch):
    import torch

    def refuse(*_):
        raise AssertionError("off means off")

    off = PyTorchProfilerFunc("forward_only", enabled=False)
    monkeypatch.setattr(torch.profiler, "record_function", refuse)
    off.start()
    off.stop()
    off.stop()


def test_markers_nest_and_are_in_the_trace():
    import torch

    outer, inner = PyTorchProfilerFunc("outer marker"), PyTorchProfilerFunc("inner marker")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        outer.start()
        for _ in range(2):
            with inner:
                torch.ones(2)
        outer.stop()
        outer.stop()

    counts = {event.key: event.count for event in profile.key_averages() if event.key.endswith("marker")}
    assert counts == {"outer marker": 1, "inner marker": 2}
