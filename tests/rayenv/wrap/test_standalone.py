"""`rlprof wrap`: a process outside Ray under real nsys, under the rocprof-sys stand-in, or as it is."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from tests.rayenv import rocprof_stand_in

from rlprof_ops.backends import names
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
if "--wait" in sys.argv: time.sleep(60)
prof.close()
sys.exit(7)
"""


def request(**capture):
    return request_from_dict({"captures": [{"workers": "*policy*", "steps": "3:5", **capture}]})


def environment(tmp_path, **more):
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("RLPROF_", "NRL_", "SLURM_")) and k not in standalone.RANK_VARIABLES
    }
    return {
        **env,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RLPROF_NODE_DIR": str(tmp_path / "node dir"),
        "RLPROF_NODE": "n1",
        **more,
    }


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
    assert [names.parse(path.name).ordinal for path in reports] == [1, 2]
    found = [ranges(path, tmp_path / f"{number}.sqlite") for number, path in enumerate(reports)]
    assert found == [["capture", "step 1", "step 2", "train", "train"], ["capture", "step 4", "train"]]
    (events,) = (tmp_path / "node dir" / "events").glob("*.jsonl")
    assert [json.loads(line)["steps"] for line in events.read_text().splitlines() if '"opened"' in line] == [
        [1, 3],
        [4, 5],
    ]


def ranges(report, output):
    subprocess.run(
        ["nsys", "export", "--type", "sqlite", "-o", output, report],
        check=True,
        capture_output=True,
        timeout=60,
    )
    with sqlite3.connect(output) as database:
        query = (
            "select coalesce(e.text, s.value) from NVTX_EVENTS e left join StringIds s on s.id = e.textId"
            " where e.eventType in (59, 60)"
        )
        return sorted(name for (name,) in database.execute(query))


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

    *options, o, output, program, _ = made.argv[2:]
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
        "policy_worker", 3, ["python", "train.py"], request(ranks=[0]), {"A": "1"}
    )

    assert (made.argv, made.env) == (("python", "train.py"), {"A": "1"})


def test_torch_windows_need_no_wrap_but_a_name(tmp_path):
    made = standalone.wrapped_command(
        "policy_worker", 1, ["python", "train.py"], request(backend="torch", env={"B": "2"}), {}
    )

    assert made.argv == ("python", "train.py")
    assert (made.env["RLPROF_WORKER"], made.env["RLPROF_RANK"], made.env["B"]) == ("policy_worker", "1", "2")


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({"RANK": "2", "SLURM_PROCID": "5"}, 2),
        ({"SLURM_PROCID": "5"}, 5),
        ({"PMI_RANK": "1"}, 1),
        ({"RANK": "x"}, None),
        ({}, None),
    ],
)
def test_the_rank_is_the_launchers(env, rank):
    assert standalone.rank_from(env) == rank


def test_a_missing_nsys_fails_or_not_as_the_request_says(tmp_path):
    env = environment(tmp_path, RLPROF_NSYS="/nowhere/nsys")

    with pytest.raises(
        RlprofError, match="worker 'policy_worker' rank 0 cannot be profiled: no nsys on PATH"
    ):
        standalone.wrapped_command("policy_worker", 0, ["python", "x"], request(on_error="fail"), env)
    made = standalone.wrapped_command("policy_worker", 0, ["python", "x"], request(on_error="continue"), env)

    assert made.argv == ("python", "x")
    assert "no nsys" in made.env["RLPROF_NOT_WRAPPED"]


# Stands in for nsys: ends that often before the program, then runs it as nsys would.
BAD_LUCK = """#!/bin/bash
left=$(cat "$0.fails"); [ "$left" = 0 ] || { echo $((left - 1)) > "$0.fails"; echo "End of file" >&2; exit 3; }
until [ "$1" = /bin/sh ]; do shift; done; exec "$@"
"""


@pytest.mark.parametrize(("fails", "on_error", "code", "said"), [
    (0, "continue", 7, "-in-session"), (2, "continue", 7, "-in-session"), (3, "continue", 7, "unprofiled"), (3, "fail", 3, ""),
])  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"capture-range": "none"}], ids=["launch", "profile"])
def test_an_nsys_that_ends_before_the_program_is_tried_again(tmp_path, fails, on_error, code, said, options):
    """No training ends of it: without this the rank would be gone before it began."""
    nsys = tmp_path / "nsys"
    nsys.write_text(BAD_LUCK)
    nsys.chmod(0o755)
    nsys.with_name("nsys.fails").write_text(str(fails))
    program = (
        "import os, sys; e = os.environ; print('unprofiled' if 'RLPROF_NOT_WRAPPED' in e else"
        " e.get('RLPROF_NSYS_SESSION', 'range') + '-in-session'); sys.exit(7)"
    )
    env = environment(
        tmp_path,
        RLPROF_NSYS=str(nsys),
        RLPROF_REQUEST_JSON=request(on_error=on_error, options=options).to_json(),
    )
    command = [
        sys.executable,
        "-m",
        "rlprof_ops",
        "wrap",
        "--worker",
        "policy_worker",
        "--rank",
        "0",
        "--",
        sys.executable,
        "-c",
        program,
    ]

    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    assert done.returncode == code, done.stderr
    assert done.stdout.strip().endswith(said)
    assert done.stderr.count("before the program began (try") == fails


def test_who_is_told_to_end_before_the_program_began_starts_nothing(tmp_path):
    nsys = tmp_path / "nsys"
    nsys.write_text("#!/bin/sh\necho waits\nexec sleep 15\n")
    nsys.chmod(0o755)
    process = start(tmp_path, request(), env={"RANK": "0", "RLPROF_NSYS": str(nsys)})
    assert process.stdout.readline() == "waits\n"

    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (128 + signal.SIGTERM, "", "")


def test_an_nsys_that_hangs_before_the_program_is_ended_and_tried_again(tmp_path):
    """What it starts after its time ends at once."""
    nsys, ran = tmp_path / "nsys", tmp_path / "ran"
    nsys.write_text(
        BAD_LUCK.replace(
            "echo $((left - 1))",
            'until [ $1 = /bin/sh ]; do shift; done; (sleep 3; "$@") & echo $((left - 1))',
        ).replace("exit 3", "exec sleep 600")
    )
    nsys.chmod(0o755)
    nsys.with_name("nsys.fails").write_text("1")
    env = environment(tmp_path, RLPROF_NSYS=str(nsys))
    program = [sys.executable, "-c", f"open({str(ran)!r}, 'a').write('x'); import sys; sys.exit(7)"]
    code = (
        "import os\nfrom rlprof_ops.runtime.process import nsys_launcher\nnsys_launcher._PATIENCE_S ="
        f" 1.0\nnsys_launcher.run({[str(nsys), 'launch']!r}, {program!r}, os.environ)"
    )

    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    time.sleep(4)

    assert done.returncode == 7, done.stderr
    assert "`nsys launch` hung for 1 s before the program began (try 1 of 3)" in done.stderr
    assert ran.read_text() == "x"


@pytest.mark.nsys
def test_a_signal_reaches_the_program_under_nsys(tmp_path):
    pytest.importorskip("nvtx")
    process = start(tmp_path, request(options={"t": "nvtx"}), "--wait", env={"RANK": "0"})
    assert "--wait" in next(line for line in process.stdout if "--wait" in line and line.startswith("["))
    begun = time.monotonic()

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)  # until the program has closed its output; the exit code is nsys's own, 0

    assert time.monotonic() - begun < 20


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
    assert 0.015e9 < end - begin < 2e9


def test_a_signal_reaches_the_program_under_rocprof_sys(tmp_path, rocm):
    process = start(tmp_path, request(backend="rocprof_sys"), "--wait", env=rocm)
    assert "--wait" in next(line for line in process.stdout if "--wait" in line and line.startswith("["))
    begun = time.monotonic()

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)

    assert process.returncode != 0
    assert time.monotonic() - begun < 20


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
    assert standalone.split_python(argv) == split


@pytest.mark.parametrize("argv", [["torchrun", "train.py"], ["python3", "-c", "pass"], ["python3"]])
def test_what_is_no_python_script_is_refused_for_rocprof_sys(argv):
    with pytest.raises(UsageError, match="rocprof-sys starts Python scripts"):
        standalone.split_python(argv)


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

    assert done.stdout.startswith(f"{sys.executable} launch --session-new=rlprof-local-w-r1-"), done.stderr
    assert done.stdout.endswith(" python 'a b.py'\n")


def test_a_program_that_does_not_exist_is_one_message(tmp_path):
    command = [sys.executable, "-m", "rlprof_ops", "wrap", "--worker", "w", "--", "/no/such program"]

    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (
        1,
        "rlprof: cannot run '/no/such program': No such file or directory\n",
    )
