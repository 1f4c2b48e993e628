"""`rlprof wrap`: a process outside Ray under real nsys, under the rocprof-sys stand-in, or as it is."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.backends.rocprof_sys import rocprof_stand_in
from tests.rayenv.stand_ins import own_environment
from tests.real_nsys import nvtx_ranges

from rlprof_ops.backends import report_names
from rlprof_ops.backends.nsight.nsys_wrap import SCRIPT
from rlprof_ops.backends.rocprof_sys.rocprof_wrap import split_python
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.rayenv.wrap import standalone
from rlprof_ops.request import request_from_dict

TRAINING = """
import sys, time
from rlprof_ops.runtime import profiler
prof = profiler.from_env()
for step in range(1, 6):
    with prof.step(step), prof.range("train"):
        time.sleep(0.01)
print(sys.argv[1:], flush=True)
if "--wait" in sys.argv: time.sleep(600)
prof.close()
sys.exit(7)
"""


def request(**capture):
    return request_from_dict({"captures": [{"workers": "*policy*", "steps": "3:5", **capture}]})


def environment(tmp_path, **more):
    return own_environment(RLPROF_NODE_DIR=str(tmp_path / "node dir"), RLPROF_NODE="n1", **more)


def start(tmp_path, asked, *words, env=None, **options):
    script = tmp_path / "my train.py"
    script.write_text(TRAINING)
    env = {**environment(tmp_path, RLPROF_REQUEST_JSON=asked.to_json()), **(env or {})}
    command = [
        sys.executable,
        "-m",
        "rlprof_ops",
        "wrap",
        "--worker",
        "policy_worker",
        "--",
        sys.executable,
        str(script),
        *words,
    ]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.nsys
def test_two_ranks_under_nsys_give_their_windows_and_their_exit_codes(tmp_path):
    pytest.importorskip("nvtx")
    processes = [
        start(tmp_path, request(options={"t": "nvtx"}), "--x=a b|c $(d)", env={"SLURM_PROCID": str(rank)})
        for rank in (0, 1)
    ]

    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 7, err
        assert "['--x=a b|c $(d)']" in out

    reports = sorted(
        path.name.rpartition("_")[0]
        for path in (tmp_path / "node dir").glob("profiles/nsight/policy_worker/*/*.nsys-rep")
    )
    assert reports == ["policy_worker_rank0_step3-4_n1", "policy_worker_rank1_step3-4_n1"]


@pytest.mark.nsys
def test_a_capture_range_gives_one_report_a_window_when_the_process_ends(tmp_path):
    pytest.importorskip("nvtx")
    process = start(
        tmp_path, request(steps="1:3,4", options={"t": "nvtx", "capture-range": "nvtx"}), env={"RANK": "0"}
    )
    out, err = process.communicate(timeout=120)

    assert process.returncode == 7, out + err
    reports = sorted((tmp_path / "node dir").glob("inplace/nsight/policy_worker/rank0/*.nsys-rep"))
    assert [report_names.parse(path.name).ordinal for path in reports] == [1, 2]
    found = [nvtx_ranges(path, tmp_path) for path in reports]
    assert found == [["capture", "step 1", "step 2", "train", "train"], ["capture", "step 4", "train"]]
    (events,) = (tmp_path / "node dir" / "events").glob("policy_worker_*.jsonl")
    assert [json.loads(line)["steps"] for line in events.read_text().splitlines() if '"opened"' in line] == [
        [1, 3],
        [4, 5],
    ]


@pytest.mark.parametrize(
    ("capture", "stem", "words"),
    [
        ({"options": {"c": "cudaProfilerApi"}}, "policy_worker_rank1_step3-4_n1_%p", ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]),
        ({"options": {"capture-range": "none"}}, "policy_worker_rank1_step3-4_n1_%p", []),
        ({"options": {"c": "nvtx", "nvtx-capture": "x@y"}, "steps": "3,5,7"}, "policy_worker_rank1_n1_%p",
         ["--capture-range=nvtx", "--capture-range-end=repeat:3", "--nvtx-capture=x@y"]),
        ({"options": {"c": "nvtx"}, "each": "phase"}, "policy_worker_rank1_n1_%p",
         ["--capture-range=nvtx", "--capture-range-end=repeat", "--nvtx-capture=capture@rlprof-window"]),
        ({"options": {"c": "cudaProfilerApi", "capture-range-end": "repeat-shutdown:2", "sample": "cpu"}, "flags": ["python-backtrace"]},
         "policy_worker_rank1_step3-4_n1_%p", ["--capture-range=cudaProfilerApi", "--capture-range-end=repeat-shutdown:2", "--sample=cpu", "--python-backtrace"]),
    ],
)  # fmt: skip
def test_a_capture_ranges_options_follow_from_the_plan(tmp_path, capture, stem, words):
    env = environment(tmp_path, RLPROF_NSYS=sys.executable)

    made = standalone.wrapped_command("policy_worker", 1, ["python", "x"], request(**capture), env)

    bash, script, command, nsys, patience, session, on_error, count, *options, o, output, program, _ = (
        made.argv
    )
    assert (bash, script, command, nsys) == ("bash", str(SCRIPT), "profile", sys.executable)
    assert (patience, session, on_error, count) == ("20", "", "continue", str(len(options) + 2))
    assert (o, os.path.basename(output), program) == ("-o", stem, "python")
    defaults = [
        "-t",
        options[1],
        *(["--sample=none"] if "--sample=cpu" not in words else []),
        "--cpuctxsw=none",
    ]
    assert options == [*defaults, *words]
    assert made.env["RLPROF_NSYS_RANGE"] in ("cudaProfilerApi", "nvtx", "none")


def test_an_unknown_capture_range_is_named(tmp_path):
    env = environment(tmp_path, RLPROF_NSYS=sys.executable)

    with pytest.raises(
        UsageError,
        match=(
            "capture-range 'hotkey': allowed are cudaProfilerApi, nvtx, none; without it windows are sessions"
        ),
    ):
        standalone.wrapped_command("policy_worker", 1, ["python"], request(options={"c": "hotkey"}), env)


def test_an_unselected_rank_runs_as_it_is(tmp_path):
    made = standalone.wrapped_command(
        "policy_worker", 3, ["python", "train.py"], request(ranks=[0]), {"A": "1", "RLPROF_ADAPTERS": "0"}
    )

    assert made.argv == ("python", "train.py")
    named = {"RLPROF_WORKER": "policy_worker", "RLPROF_RANK": "3"}
    assert made.env == {"A": "1", "RLPROF_ADAPTERS": "0", **named}


def test_torch_windows_need_no_wrap_but_a_name(tmp_path):
    made = standalone.wrapped_command(
        "policy_worker", 1, ["python", "train.py"], request(backend="torch", env={"B": "2"}), {}
    )

    assert made.argv == ("python", "train.py")
    assert (made.env["RLPROF_WORKER"], made.env["RLPROF_RANK"], made.env["B"]) == ("policy_worker", "1", "2")


def test_a_missing_nsys_fails_or_not_as_the_request_says(tmp_path):
    env = environment(tmp_path, RLPROF_NSYS="/nowhere/nsys")

    with pytest.raises(
        RlprofError, match="worker 'policy_worker' rank 0 cannot be profiled: no nsys on node n1 for worker"
    ):
        standalone.wrapped_command("policy_worker", 0, ["python", "x"], request(on_error="fail"), env)
    made = standalone.wrapped_command("policy_worker", 0, ["python", "x"], request(on_error="continue"), env)

    assert made.argv == ("python", "x")
    assert "no nsys" in made.env["RLPROF_NOT_WRAPPED"]


@pytest.mark.nsys
def test_a_signal_reaches_the_program_under_nsys(tmp_path):
    pytest.importorskip("nvtx")
    process = start(tmp_path, request(options={"t": "nvtx"}), "--wait", env={"RANK": "0"})
    assert "--wait" in next(line for line in process.stdout if "--wait" in line and line.startswith("["))
    begun = time.monotonic()

    process.send_signal(signal.SIGTERM)
    # Until the program has closed its output; the exit code is nsys's own, 0.
    process.communicate(timeout=200)

    assert time.monotonic() - begun < 120


@pytest.fixture
def rocm(tmp_path):
    script = rocprof_stand_in.install(tmp_path / "opt rocm")
    return {"PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}"}


def test_rocprof_sys_records_the_window_and_the_exit_code_is_the_programs(tmp_path, rocm):
    process = start(tmp_path, request(backend="rocprof_sys"), "a b", env={"RANK": "4", **rocm})
    out, err = process.communicate(timeout=120)

    assert process.returncode == 7, err
    assert "['a b']" in out
    (trace,) = (tmp_path / "node dir").glob(
        "inplace/rocprof_sys/policy_worker/rank4/policy_worker_rank4_step3-4_n1_*_perfetto-trace.proto"
    )
    ((begin, end),) = json.loads(trace.read_text())["sections"]
    assert 0.015e9 < end - begin < 60e9


def test_a_signal_reaches_the_program_under_rocprof_sys(tmp_path, rocm):
    process = start(tmp_path, request(backend="rocprof_sys"), "--wait", env=rocm)
    assert "--wait" in next(line for line in process.stdout if "--wait" in line and line.startswith("["))
    begun = time.monotonic()

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=200)

    assert process.returncode != 0
    assert time.monotonic() - begun < 120


@pytest.mark.parametrize(
    ("argv", "split"),
    [
        (
            ["python3", "-u", "-W", "ignore", "train.py", "-x"],
            (["python3", "-u", "-W", "ignore"], ["train.py", "-x"]),
        ),
        (["/a b/python3.11", "-m", "pkg.train", "1"], (["/a b/python3.11"], ["-m", "pkg.train", "1"])),
    ],
)
def test_an_interpreter_and_its_script_are_told_apart(argv, split):
    assert split_python(argv) == split


@pytest.mark.parametrize("argv", [["torchrun", "train.py"], ["python3", "-c", "pass"], ["python3"]])
def test_what_is_no_python_script_is_refused_for_rocprof_sys(argv):
    with pytest.raises(UsageError, match="rocprof-sys starts Python scripts"):
        split_python(argv)


def test_show_prints_the_command(tmp_path):
    env = environment(tmp_path, RLPROF_STEPS="3", RLPROF_WORKERS="*", RLPROF_NSYS=sys.executable)
    command = [
        sys.executable,
        "-m",
        "rlprof_ops",
        "wrap",
        "--worker",
        "w",
        "--rank",
        "1",
        "--show",
        "--",
        "python",
        "a b.py",
    ]

    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    assert done.stdout.startswith(f"bash {SCRIPT} launch {sys.executable} 20 rlprof-local-w-r1- continue "), (
        done.stderr
    )
    assert done.stdout.endswith(" python 'a b.py'\n")


def test_a_program_that_does_not_exist_is_one_message(tmp_path):
    command = [sys.executable, "-m", "rlprof_ops", "wrap", "--worker", "w", "--", "/no/such program"]

    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (
        127,
        "rlprof: cannot run '/no/such program': No such file or directory\n",
    )
