"""The memory backend: host memory for real, CUDA's history through a stand-in (this machine has none)."""

import gzip
import json
import os
import pickle
import sys
import tracemalloc
from types import SimpleNamespace

import pytest

from rlprof_ops.backends import Where
from rlprof_ops.backends.memory.memory_options import MemoryOptions, parse
from rlprof_ops.request import RequestError, request_from_json
from rlprof_ops.request.check import check_request
from rlprof_ops.runtime import active_profiler, profiler
from rlprof_ops.runtime.null_profiler import NullProfiler


def train(prof, steps=range(1, 7), work=None):
    for step in steps:
        with prof.step(step):
            if work:
                work(step)
    prof.close()


def test_host_memory_of_a_window(asked, events):
    node_dir = asked(backend="memory", options={"host": "true", "tracemalloc": "5", "interval_ms": "5"})
    kept = []

    train(
        profiler.from_env("policy_worker", 0),
        work=lambda step: kept.append(bytearray(30_000_000)) if step == 4 else None,
    )

    (closed,) = events("closed")
    assert closed["report"] == f"policy_worker_rank0_step3-4_n1_{os.getpid()}.host-memory.json.gz"
    report = json.loads(gzip.decompress((node_dir / closed["path"]).read_bytes()))
    assert report["peak_bytes"] - report["start_bytes"] > 25_000_000
    assert [entry["step"] for entry in report["steps"]] == [3, 4]
    assert report["grown"][0]["file"] == __file__ and report["grown"][0]["grown_bytes"] > 29_000_000
    assert len(report["samples"]) >= 2 and report["samples"] == sorted(report["samples"])


def start_if_off():
    if not tracemalloc.is_tracing():
        tracemalloc.start(7)


def start():
    tracemalloc.start(7)


# What a program does in which step, beside windows of ours in steps 1 and 3 to 5.
PROGRAMS = {
    "start at 4": {4: start},
    "start if off at 4": {4: start_if_off},
    "stop at 4": {2: start, 4: tracemalloc.stop},
    "stop what is off at 4": {4: tracemalloc.stop},
    "all the time": {2: start},
    "in the window": {3: start, 4: tracemalloc.stop},
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_programs_own_tracemalloc_is_as_without_us(asked, events, program):
    """In a window of step 1, and one of steps 3 and 4."""
    functions = {name: getattr(tracemalloc, name) for name in ("start", "stop", "is_tracing")}

    def seen(prof):
        found = []

        def work(step):
            program.get(step, lambda: None)()
            kept = bytearray(1 << 20)
            try:
                snapshot = tracemalloc.take_snapshot()
                sizes = [trace.size for trace in snapshot.traces if trace.size == len(kept) + 1]
                found.append((len(sizes), snapshot.traceback_limit))
            except RuntimeError as error:
                found.append(str(error))
            found.append(tracemalloc.is_tracing() and tracemalloc.get_traceback_limit())

        try:
            train(prof, work=work)
            return [*found, tracemalloc.is_tracing()]
        finally:
            tracemalloc.stop()

    expected = seen(NullProfiler())
    asked(backend="memory", steps="1,3:5", options={"host": "true", "tracemalloc": "5", "interval_ms": "5"})

    assert seen(profiler.from_env("policy_worker", 0)) == expected
    assert len(events("closed")) == 2
    assert {name: getattr(tracemalloc, name) for name in functions} == functions


def test_lines_until_the_program_traces_itself(asked, events):
    node_dir = asked(backend="memory", options={"host": "true", "tracemalloc": "5"})
    kept = []

    def work(step):
        kept.append(bytearray(1_000_000))
        if step == 4:
            tracemalloc.start()

    try:
        train(profiler.from_env("policy_worker", 0), work=work)
    finally:
        tracemalloc.stop()

    (closed,) = events("closed")
    assert closed["partial"] is True and closed["seen"] == [3, 4]
    reason = "the program began its own tracing of memory: the lines that grew are those until there"
    assert closed["reason"] == reason
    grown = json.loads(gzip.decompress((node_dir / closed["path"]).read_bytes()))["grown"]
    assert 2_000_000 <= grown[0]["grown_bytes"] < 2_100_000


def test_a_process_forked_in_the_window_is_not_traced(asked, events):
    asked(backend="memory", options={"host": "true", "tracemalloc": "5"})
    codes = []

    def work(step):
        if (child := os.fork()) == 0:
            before = tracemalloc.is_tracing()
            tracemalloc.start()
            os._exit(before or not tracemalloc.is_tracing())
        codes.append(os.waitpid(child, 0)[1])

    train(profiler.from_env("policy_worker", 0), work=work)

    assert codes and not any(codes)
    (closed,) = events("closed")
    assert not closed["partial"] and "reason" not in closed


def test_without_cuda_the_reason_is_clear_before_and_in_the_job(asked, events, monkeypatch):
    monkeypatch.setattr(active_profiler, "has_gpu", lambda: False)
    asked(backend="memory")
    request = request_from_json(os.environ["RLPROF_REQUEST_JSON"])

    train(profiler.from_env("policy_worker", 0))

    with pytest.raises(RequestError) as refused:
        check_request(request, Where(gpu=False))
    assert (
        str(refused.value)
        == "RLPROF_REQUEST_JSON: capture 1: the memory backend records CUDA allocations and needs CUDA, which"
        " this machine lacks;"
        " for the memory of the host set `host: true` in the capture's options"
    )
    assert [event["reason"] for event in events("failed")] == [
        str(refused.value).removeprefix("RLPROF_REQUEST_JSON: capture 1: ")
    ]
    assert check_request(request, Where(gpu=True)) == check_request(request) == ()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, MemoryOptions()),
        ({"trace_alloc_max_entries": "500", "stack_depth": "32"}, MemoryOptions(max_entries=500)),
        ({"host": "yes", "tracemalloc": "true"}, MemoryOptions(host=True, tracemalloc=25)),
    ],
)
def test_options_also_in_verls_words(options, expected):
    assert parse(options) == expected


@pytest.mark.parametrize(
    "options", [{"host": "maybe"}, {"stacks": "c"}, {"interval_ms": "0"}, {"max_entries": "many"}]
)
def test_wrong_values_are_refused(options):
    with pytest.raises(ValueError, match="memory option"):
        parse(options)


class FakeCuda:
    """torch with CUDA as far as the history goes: what was called, in order."""

    def __init__(self):
        self.log = []
        self.attached = []
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            memory=SimpleNamespace(_record_memory_history=self.record, _dump_snapshot=self.dump),
        )
        self._C = SimpleNamespace(_cuda_attach_out_of_memory_observer=self.attached.append)

    def record(self, enabled, **options):
        self.log.append(("history", enabled, options))

    def dump(self, path):
        self.log.append(("dump", path))
        with open(path, "wb") as file:
            pickle.dump({}, file)


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(active_profiler, "has_gpu", lambda: True)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_cudas_history_is_on_inside_windows_only(asked, events, cuda):
    asked(backend="memory", steps="3:5,6", options={"max_entries": "7"})

    train(profiler.from_env("policy_worker", 0))

    kinds = [entry[:2] if entry[0] == "history" else entry[0] for entry in cuda.log]
    assert kinds == [("history", "all"), "dump", ("history", None)] * 2
    assert cuda.log[0][2] == {"context": "all", "stacks": "python", "max_entries": 7}
    assert [event["report"].rsplit("_n1_")[0] for event in events("closed")] == [
        "policy_worker_rank0_step3-4",
        "policy_worker_rank0_step6-6",
    ]


def test_a_history_of_the_programs_own_stays_on(asked, events, cuda):
    asked(backend="memory", steps="3:5")
    cuda._C._cuda_isHistoryEnabled = lambda: True

    train(profiler.from_env("policy_worker", 0))

    assert [entry[0] for entry in cuda.log] == ["dump"]
    (closed,) = events("closed")
    assert closed["partial"] is False


@pytest.mark.parametrize(("enabled", "what"), [("all", "began its own"), (None, "ended the")])
def test_a_call_of_the_programs_own_ends_our_window_first(asked, events, cuda, enabled, what):
    asked(backend="memory", steps="3:6")

    def work(step):
        if step == 4:
            cuda.cuda.memory._record_memory_history(enabled=enabled)

    train(profiler.from_env("policy_worker", 0), work=work)

    kinds = [entry[:2] if entry[0] == "history" else entry[0] for entry in cuda.log]
    assert kinds == [("history", "all"), "dump", ("history", enabled)]
    (closed,) = events("closed")
    assert closed["partial"] is True and closed["seen"] == [3, 4] and what in closed["reason"]


def test_a_program_that_runs_out_of_memory_leaves_its_window(asked, events, cuda):
    """With nothing of ours in the allocator's way when it fails: see `tests/gpu/test_windows.py`."""
    node_dir = asked(backend="memory", steps="3:5")

    def work(step):
        if step == 4:
            raise MemoryError("CUDA out of memory")

    prof = profiler.from_env("policy_worker", 0)
    with pytest.raises(MemoryError):
        train(prof, work=work)

    (closed,) = events("closed")
    assert (closed["steps"], closed["phase"], closed["partial"]) == ([3, 5], None, True)
    assert (node_dir / closed["path"]).is_file()
    assert not cuda.attached


def test_a_first_snapshot_that_fails_leaves_no_tracing_on(asked, monkeypatch):
    """It takes as much memory again as there is to be seen."""

    def fails() -> None:
        raise MemoryError

    monkeypatch.setattr(tracemalloc, "take_snapshot", fails)
    asked(backend="memory", options={"host": "true", "tracemalloc": "5"})
    with profiler.from_env("policy_worker", 0) as prof:
        for step in range(1, 5):
            with prof.step(step):
                pass
    assert not tracemalloc.is_tracing()
