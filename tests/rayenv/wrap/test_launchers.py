"""`rlprof wrap -- torchrun … train.py`: each rank of a launcher in a session of its own under real nsys."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.rayenv.stand_ins import own_environment
from tests.real_nsys import nvtx_ranges
from tests.trainers import environments
from tests.waits import wait_until

from rlprof_ops.backends.nsight.nsys_wrap import NsysCommand
from rlprof_ops.rayenv.wrap import standalone
from rlprof_ops.request import request_from_dict
from rlprof_ops.runtime.process.launchers import as_a_rank, launcher_of

TRAINING = """
import os, sys, time
from rlprof_ops.runtime import profiler
with profiler.from_env() as prof:
    for step in range(1, 5):
        with prof.step(step), prof.range("train"):
            time.sleep(0.01)
said = f"rank {os.environ.get('RANK')} {sys.argv[1:]} {'-u' in sys.orig_argv}"
os.write(1, (said + "\\n").encode())  # the ranks' lines do not mix
sys.exit(int(os.environ.get("RANK", 0)) * 3 if "--fail" in sys.argv else 0)
"""
TWO = ("--nproc-per-node", "2", "--master-port", "0")


def request(**capture):
    asked = {"workers": "*policy*", "steps": "2:4", "options": {"t": "nvtx"}, **capture}
    return request_from_dict({"captures": [asked]})


def run(tmp_path, *words, python=sys.executable, more=("--worker", "policy_worker"), **capture):
    (tmp_path / "my train.py").write_text(TRAINING)
    env = own_environment(
        RLPROF_RUN_DIR=str(tmp_path / "run"),
        RLPROF_NODE="n1",
        RLPROF_REQUEST_JSON=request(**capture).to_json(),
        SLURM_PROCID="0",  # the launcher's own: `srun -N2 rlprof wrap -- torchrun …`
        OMP_NUM_THREADS="1",
    )
    env["PYTHONPATH"] = str(Path(standalone.__file__).parents[3])
    command = [sys.executable, "-m", "rlprof_ops", "wrap", *more, "--", *map(str, words)]
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280)


def reports(tmp_path):
    found = (tmp_path / "run" / "profiles").glob("*/*/*/*")
    # beside a report that was made of a raw capture lies that
    return sorted(path.name.rpartition("_")[0] for path in found if path.suffix != ".qdstrm")


BOTH = [f"policy_worker_rank{rank}_step2-3_n1" for rank in (0, 1)]


@pytest.mark.nsys
@pytest.mark.torch
@pytest.mark.parametrize(
    "launcher",
    [
        [Path(sys.executable).with_name("torchrun")],
        [sys.executable, "-m", "torch.distributed.run"],
    ],
    ids=["torchrun", "torch.distributed.run"],
)
def test_each_rank_of_torchrun_has_a_session_and_a_report_of_its_own(tmp_path, launcher):
    done = run(tmp_path, *launcher, *TWO, "my train.py", "--x=a b|c $(d)")

    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        f"rank {rank} ['--x=a b|c $(d)'] True" for rank in (0, 1)
    ]
    assert reports(tmp_path) == BOTH, done.stderr


@pytest.mark.nsys
@pytest.mark.torch
def test_torchrun_without_python_and_with_a_rank_that_fails(tmp_path):
    torchrun = Path(sys.executable).with_name("torchrun")

    done = run(tmp_path, torchrun, "--no-python", *TWO, sys.executable, "-u", "my train.py", "--fail")

    assert done.returncode == 1
    assert "exitcode  : 3" in done.stderr, done.stderr
    assert "policy_worker_rank1_step2-3_n1" in reports(tmp_path)


@pytest.mark.nsys
@pytest.mark.torch
def test_a_rank_that_no_capture_selects_has_none(tmp_path):
    torchrun = Path(sys.executable).with_name("torchrun")

    done = run(tmp_path, torchrun, *TWO, "my train.py", ranks=[1])

    assert done.returncode == 0, done.stderr
    assert reports(tmp_path) == BOTH[1:], done.stderr


STARTING = """
import runpy, subprocess, sys
from rlprof_ops.runtime.process.launchers import as_a_rank
program = [sys.executable, "-u", "my train.py", "--x=a b"]
ranks = [subprocess.Popen(as_a_rank("policy_worker", rank, program)) for rank in (1, 2)]
try:
    runpy.run_path("my train.py")
except SystemExit:
    sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.mark.nsys
def test_a_rank_that_a_program_under_nsys_starts_has_a_session_of_its_own(tmp_path):
    """As Lightning's launcher and AReaL's local scheduler do; of rank 2 nothing is asked."""
    (tmp_path / "first.py").write_text(STARTING)

    done = run(tmp_path, sys.executable, "first.py", ranks=[0, 1])

    assert done.returncode == 0, done.stderr
    assert reports(tmp_path) == BOTH, done.stderr
    assert done.stdout.count("['--x=a b'] True") == 2, done.stdout
    for rank in (0, 1):
        [report] = (tmp_path / "run" / "profiles").rglob(f"policy_worker_rank{rank}_*.nsys-rep")
        assert nvtx_ranges(report, tmp_path).count("train") == 2, (rank, "one process, two steps")


def test_a_rank_that_nobody_selects_is_started_as_it_is(monkeypatch):
    monkeypatch.setenv("RLPROF_REQUEST_JSON", request(ranks=[1]).to_json())

    assert as_a_rank("policy_worker", 0, ["python", "x"]) == ["python", "x"]
    assert as_a_rank("ref", 1, ["python", "x"]) == ["python", "x"]
    assert as_a_rank("policy_worker", 1, ["python", "x"])[-5:] == ["--rank", "1", "--", "python", "x"]


def test_what_an_nsys_that_is_not_ours_has_set_stays():
    theirs = {"NSYS_PROFILING_SESSION_ID": "7", "LD_PRELOAD": "/n/a.so:/mine.so", "PATH": "/bin",
              "NVTX_INJECTION64_PATH": "/n/i.so", "QUADD_AGENT_PID": "8"}  # fmt: skip
    command = NsysCommand("launch", "nsys", ()).command

    assert command(["x"], theirs).env == theirs
    ours = {**theirs, "RLPROF_NSYS_SESSION": "s", "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    kept = {"PATH": "/bin", "LD_PRELOAD": "/mine.so", "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    assert command(["x"], ours).env == kept


@pytest.mark.nsys
def test_a_rank_whose_launcher_kills_it_is_gone(tmp_path):
    """torchrun and Lightning end a rank that hangs in a collective by SIGKILL: its GPU must be free then."""
    module = Path(standalone.__file__).with_name("__main__.py")
    env = own_environment(RLPROF_REQUEST_JSON=request().to_json(), PYTHONPATH=str(module.parents[3]))
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(200)"
    words = ["--worker", "policy_worker", "--rank", "1", "--", sys.executable, "-c", code]
    rank = subprocess.Popen([sys.executable, module, *words], env=env, cwd=tmp_path, stdout=subprocess.PIPE)
    program = Path("/proc", rank.stdout.readline().decode().strip())

    rank.kill()

    rank.wait(timeout=60)
    wait_until(lambda: not program.exists(), 60, "its program lives on")


@pytest.mark.torch
def test_torch_windows_of_the_ranks_are_told_apart(tmp_path):
    torchrun = Path(sys.executable).with_name("torchrun")

    done = run(tmp_path, torchrun, *TWO, "my train.py", backend="torch", options={})

    assert done.returncode == 0, done.stderr
    assert reports(tmp_path) == BOTH, done.stderr


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("torchrun --nproc-per-node 2 train.py", "torchrun"),
        ("/v/bin/python3.11 -u /v/bin/torchrun train.py", "torchrun"),
        ("python -W ignore -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python3 -u -m torch.distributed.launch --use-env train.py", "torch.distributed.launch"),
        ("accelerate launch --num_processes 2 train.py", "accelerate"),
        ("accelerate-launch train.py", "accelerate-launch"),
        ("/v/bin/python /v/bin/accelerate launch train.py", "accelerate"),
        ("deepspeed --num_gpus 2 train.py --deepspeed ds.json", "deepspeed"),
        ("python -u -m deepspeed.launcher.launch --world_info=e train.py", "deepspeed.launcher.launch"),
        ("mpirun -np 2 -x PYTHONPATH python train.py", "mpirun"),
        ("/usr/bin/mpiexec.hydra -n 2 python train.py", "mpiexec"),
        ("uv run torchrun train.py", "torchrun"),
        ("env A=b OMP_NUM_THREADS=1 torchrun train.py", "torchrun"),
        ("uv run --extra gpu torchrun train.py", "torchrun"),
        ("uv run --extra=gpu accelerate launch train.py", "accelerate"),
        ("uv run --with ray --env-file .env torchrun train.py", "torchrun"),
        ("uv --directory /w run -p 3.11 -- torchrun train.py", "torchrun"),
        ("uv run -p3.11 --isolated torchrun train.py", "torchrun"),
        ("uv run --no-sync python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("uv run --group train -m torch.distributed.run train.py", "torch.distributed.run"),
        ("env -u FOO torchrun train.py", "torchrun"),
        ("env -uFOO -C /w torchrun train.py", "torchrun"),
        ("env -iu FOO --chdir=/w PATH=/usr/bin uv run --extra gpu torchrun train.py", "torchrun"),
        ("nice -n 10 torchrun train.py", "torchrun"),
        ("nohup nice -n10 env A=b python -X dev -uW ignore /v/bin/torchrun train.py", "torchrun"),
        ("uv run --extra torchrun train.py", ""),
        ("uv run python train.py torchrun", ""),
        ("env -u torchrun python train.py", ""),
        ("nice -n 10 python train.py", ""),
        ("python run torchrun", ""),
        ("python train.py --launcher torchrun -m torch.distributed.run", ""),
        ("python -m train torchrun", ""),
        ("python docs/examples/torchrun.py", ""),
        ("python -c pass", ""),
        ("accelerate config", ""),
        ("bash run.sh torchrun", ""),
        ("python", ""),
    ],
)
def test_a_launcher_is_known_by_its_command_line(line, launcher):
    assert launcher_of(line.split()) == launcher


@pytest.mark.parametrize(
    ("words", "launcher"),
    [
        (["-S", "torchrun --nproc-per-node 2", "train.py"], "torchrun"),
        (["-Storchrun train.py"], "torchrun"),
        (["-iS", "A=b 'C=d e' python -m torch.distributed.run train.py"], "torch.distributed.run"),
        (["--split-string", "uv run --extra gpu torchrun", "train.py"], "torchrun"),
        (["--split-string=accelerate launch", "train.py"], "accelerate"),
        (["-u", "S", "A=b", "-S", "nice -n 10 torchrun", "train.py"], "torchrun"),
        (["-S", "python train.py torchrun"], ""),
        (["-S", "torchrun 'train.py"], ""),
        (["-S"], ""),
    ],
)
def test_a_launcher_is_known_in_the_line_that_env_splits(words, launcher):
    assert launcher_of(["/usr/bin/env", *words]) == launcher


def test_a_rank_of_its_own_does_not_go_with_a_launcher(tmp_path):
    done = run(tmp_path, "mpirun", "-np", "2", "python", "x", more=("--rank", "1"))

    assert done.returncode == 2
    assert "--rank 1: mpirun gives each process its own" in done.stderr


# What starts ranks as MPI does, and puts a helper of `multiprocessing` and a line of code beside them.
MPIRUN = """#!/usr/bin/env bash
while [[ "$1" == -* ]]; do shift 2; done
"$1" -c 'print("no rank")' || exit 9
"$1" -c 'from multiprocessing.util import spawnv_passfds; print("no rank")' || exit 9
for rank in 0 1; do OMPI_COMM_WORLD_RANK=${rank} RANK="" "$@" & pids+=($!); done
code=0; for pid in "${pids[@]}"; do wait "${pid}" || code=$?; done; exit "${code}"
"""


@pytest.mark.nsys
def test_ranks_of_mpirun_are_wrapped_and_nothing_else_of_it(tmp_path):
    """A stand-in: no MPI is on this machine. What is real is that a rank has no variable but MPI's."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(MPIRUN)
    mpirun.chmod(0o755)

    done = run(tmp_path, mpirun, "-np", "2", sys.executable, "my train.py")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no rank") == 2
    assert reports(tmp_path) == BOTH, done.stderr


@pytest.mark.nsys
@pytest.mark.trainers
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (["--multi_gpu", "--num_processes", "2", "--main_process_port", "0"], ["0", "1"]),
        (["--cpu", "--num_processes", "1"], ["None"]),
    ],
    ids=["two ranks", "one process, which has no rank"],
)
def test_each_process_of_accelerate_launch_has_a_report_of_its_own(tmp_path, words, ranks):
    if why := environments.lacking("trl"):
        pytest.skip(why)
    accelerate = environments.ensure("trl").bin / "accelerate"

    done = run(tmp_path, accelerate, "launch", *words, "my train.py")

    assert done.returncode == 0, done.stderr
    told = sorted(line.split()[1] for line in done.stdout.splitlines() if line.startswith("rank"))
    assert told == ranks, done.stdout
    assert reports(tmp_path) == BOTH[: len(ranks)], done.stderr
