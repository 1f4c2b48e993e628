"""What belongs to which nsys command, and what a broken report looks like."""

import gzip
import json
from types import SimpleNamespace

import pytest

from rlprof_ops import backends
from rlprof_ops.backends.nsight import nsys_cli, nsys_options
from rlprof_ops.errors import UsageError


def spec(options=None, flags=()):
    return SimpleNamespace(options=options or {}, flags=tuple(flags))


def test_an_unknown_backend_is_answered_with_the_nearest_name():
    with pytest.raises(
        UsageError,
        match=(
            r"unknown backend 'nsigth': allowed are memory, nsight, rocprof_sys, torch. Did you mean"
            r" 'nsight'\?"
        ),
    ):
        backends.get("nsigth")


def test_options_of_one_line_are_dealt_to_launch_and_start():
    split = nsys_options.split_options(
        spec(
            {"t": "cuda,nvtx", "cuda-graph-trace": "node", "sample": "process-tree", "backtrace": "fp"},
            ["python-backtrace"],
        )
    )

    assert split.launch == ("-t", "cuda,nvtx", "--cuda-graph-trace=node", "--python-backtrace")
    assert split.start == (
        "--cpuctxsw=none",
        "--force-overwrite=true",
        "--sample=process-tree",
        "--backtrace=fp",
    )


def test_what_a_session_decides_itself_is_left_out_and_named():
    split = nsys_options.split_options(
        spec({"o": "/tmp/x", "capture-range": "cudaProfilerApi", "capture-range-end": "stop", "kill": "none"})
    )

    assert split.left_out == ("o", "capture-range", "capture-range-end", "kill")
    assert not any("capture-range" in token or "/tmp/x" in token for token in split.launch + split.start)


@pytest.mark.parametrize(
    ("options", "uses"),
    [({"t": "nvtx"}, False), ({"trace": "nvtx,cuda"}, True), ({"t": "osrt,cuda-sw"}, True)],
)
def test_a_capture_that_needs_cupti_is_told(options, uses):
    assert nsys_cli.traces_cuda(spec(options)) is uses


def test_nsys_commands_of_a_worker_are_not_recorded_with_it():
    env = {
        "LD_PRELOAD": "/x/libToolsInjectionProxy64.so:/mine/libjemalloc.so",
        "NVTX_INJECTION64_PATH": "/x",
        "QUADD_AGENT_PID": "1",
        "HOME": "/root",
    }

    assert nsys_cli.client_env(env) == {"LD_PRELOAD": "/mine/libjemalloc.so", "HOME": "/root"}


def test_the_report_that_stop_names_is_found():
    assert (
        nsys_cli.generated_path("Generating 'x.qdstrm'\n[1/1] [100%] a\nGenerated:\n    /tmp/a b.nsys-rep\n")
        == "/tmp/a b.nsys-rep"
    )
    assert nsys_cli.generated_path("nothing") is None


def trace_bytes(events=({"ph": "X", "ts": 1},)):
    return json.dumps({"schemaVersion": 1, "traceEvents": list(events)}).encode()


@pytest.mark.parametrize(
    ("backend", "suffix", "content", "state"),
    [
        ("nsight", ".nsys-rep", b"", "empty"),
        ("nsight", ".nsys-rep", b"NVIDIA Tegra Profiler Report 2023 ... [END]", "ok"),
        ("nsight", ".nsys-rep", b"NVIDIA Tegra Profiler Report 2023 ...", "truncated"),
        ("nsight", ".qdstrm", b"anything", "truncated"),
        ("torch", ".pt.trace.json.gz", gzip.compress(trace_bytes(), mtime=0), "ok"),
        ("torch", ".pt.trace.json.gz", gzip.compress(trace_bytes(), mtime=0)[:-9], "truncated"),
        ("torch", ".pt.trace.json.gz", gzip.compress(trace_bytes()[:-3], mtime=0), "truncated"),
        ("torch", ".pt.trace.json.gz", gzip.compress(trace_bytes(()), mtime=0), "empty"),
        ("torch", ".pt.trace.json.gz", b"\x1f\x8b\x08garbage", "truncated"),
        ("torch", ".pt.trace.json", b'[{"ph": "X"}]', "ok"),
        ("memory", ".pickle", b"\x80\x04N.", "ok"),
        ("memory", ".pickle", b"\x80\x04", "truncated"),
        ("rocprof_sys", ".proto", b"\n", "ok"),
    ],
)
def test_a_report_is_whole_or_says_why_not(tmp_path, backend, suffix, content, state):
    path = tmp_path / f"report{suffix}"
    path.write_bytes(content)

    found = backends.get(backend).check(path)

    assert found.state == state
    assert (found.reason == "") == (state == "ok")


def test_a_missing_report_is_no_crash(tmp_path):
    assert backends.get("torch").check(tmp_path / "gone.pt.trace.json.gz").state == "truncated"
