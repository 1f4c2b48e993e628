"""A trainer that sets Ray's own `nsight` key and calls nothing of ours: stock Ray cannot start it here, a
job of ours can.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("ray")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.whole,
    pytest.mark.nsys,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("nsys") is None, reason="needs nsys on PATH"),
]

# What NeMo RL puts on a policy worker and verl on any, but for what needs a GPU or rights.
TRAINER = r"""
import os, sys, time
import ray

NEMO_RL = {"t": "nvtx", "s": "none", "cpuctxsw": "none", "o": "'dtensor_policy_worker_3:5_%p'", "stop-on-exit": "true"}
VERL = {"trace": "nvtx", "sample": "none", "cpuctxsw": "none", "nvtx-domain-exclude": "a|b; $(touch pwned) 'c' \"d\""}

@ray.remote(num_cpus=0)
class Worker:
    def train(self):
        import nvtx
        with nvtx.annotate("train", domain="trainer"):
            time.sleep(0.02)
        with open(f"/proc/{os.getppid()}/comm") as parent:
            return sys.executable, os.getpid(), parent.read().strip()

def start(options, **variables):
    return Worker.options(runtime_env={"nsight": options, "env_vars": variables}).remote()

ray.init(log_to_driver=False, logging_level="error", **eval(sys.argv[1]))
workers = [start(NEMO_RL, RANK="0"), start(NEMO_RL, RANK="1"), start(VERL, RANK="0")]
pids = []
for worker in workers:
    ready, _ = ray.wait([worker.train.remote()], timeout=float(sys.argv[2]))
    told = ray.get(ready)[0] if ready else ["never", "started", ""]
    print(*told, sep="|", flush=True)
    if not ready:
        sys.exit()
    pids.append(told[1])
# An orderly end: nsys loses what a killed process had not handed to it, and Ray kills what is left of a driver
# that has ended.
ray.wait([worker.__ray_terminate__.remote() for worker in workers], num_returns=3, timeout=30)
until = time.monotonic() + 60
while any(os.path.exists(f"/proc/{pid}/exe") for pid in pids) and time.monotonic() < until:
    time.sleep(0.1)
"""


@pytest.fixture
def trainer(tmp_path):
    script = tmp_path / "my trainer.py"
    script.write_text(TRAINER)
    return script


@pytest.mark.long
def test_stock_ray_never_starts_it_where_there_is_no_python_command(trainer, tmp_path):
    path = os.pathsep.join(
        d for d in ("/usr/local/bin", "/usr/bin", "/bin") if not os.path.exists(f"{d}/python")
    )
    if shutil.which("python", path=path) or not shutil.which("nsys", path=path):
        pytest.skip("needs nsys, and no `python`, in the system's folders")
    options = {"num_cpus": 1, "include_dashboard": False, "_temp_dir": f"/tmp/rlprof-f{os.getpid()}"}
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RLPROF_", "RAY_"))}
    env |= {"PATH": path, "RAY_AUTH_MODE": "disabled"}
    try:
        done = subprocess.run(
            [sys.executable, trainer, repr(options), "10"],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
    finally:
        shutil.rmtree(options["_temp_dir"], ignore_errors=True)

    assert done.stdout == "never|started|\n", (done.stdout, done.stderr)


STOCK = r"""
import os, sys, time
import ray

@ray.remote(num_cpus=0)
class Worker:
    def utf8(self):
        return sys.flags.utf8_mode

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error", _temp_dir=sys.argv[1])
options = {"t": "nvtx", "s": "none", "cpuctxsw": "none"}
kept = Worker.options(runtime_env={"nsight": options, "py_executable": f"{sys.executable} -X utf8"}).remote()
print("utf8", ray.get(kept.utf8.remote(), timeout=150), flush=True)
odd = Worker.options(runtime_env={"nsight": {**options, "nvtx-domain-exclude": f"a|b$(touch {sys.argv[2]})"}}).remote()
print("started", bool(ray.wait([odd.utf8.remote()], timeout=15)[0]), flush=True)
"""


@pytest.mark.long
def test_stock_ray_drops_py_executable_and_runs_an_option_in_a_shell(tmp_path):
    """What test_real_workers.py and test_trainer_job.py show to work with us."""
    folder, touched = f"/tmp/rlprof-o{os.getpid()}", tmp_path / "touched"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RLPROF_", "RAY_"))}
    env |= {
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "RAY_AUTH_MODE": "disabled",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", STOCK, folder, touched],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    assert done.stdout.splitlines()[-2:] == ["utf8 0", "started False"], (done.stdout, done.stderr)
    assert touched.exists()


def test_in_a_job_of_ours_it_runs_and_its_reports_come_home_by_name(trainer, tmp_path, monkeypatch):
    from rlprof_ops.demo.local_job import run_local

    request = tmp_path / "profile.yaml"
    request.write_text(
        "captures: [{backend: nsight, workers: [dtensor_policy_worker], ranks: [0], steps: '3:5'}]"
    )
    for name in [name for name in os.environ if name.startswith(("RLPROF_", "RAY_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(
        "PATH",
        os.pathsep.join(d for d in os.environ["PATH"].split(os.pathsep) if not os.path.exists(f"{d}/python")),
    )
    lines = []
    command = shlex.join([sys.executable, str(trainer), "{}", "250"])

    result = run_local(
        tmp_path,
        {"COMMAND": command, "RLPROF_REQUEST": str(request), "RAY_LOG_SYNC_FREQUENCY": "2"},
        lines.append,
    )

    seen = [line.split("|") for line in lines if "|" in line and "/" in line]
    assert result.exit_code == 0, lines
    assert [python for python, _, _ in seen] == [sys.executable] * 3, lines
    assert [parent.startswith("nsys") for _, _, parent in seen] == [
        True,
        False,
        True,
    ], "rank 1 is not selected"
    manifest = json.loads((result.run.path / "manifest.json").read_text())
    states = {(c["worker"], c["rank"]): c["state"] for c in manifest["captures"]}
    assert states == {("dtensor_policy_worker", 0): "ok"}, manifest
    named = sorted(os.path.basename(report["path"]).rpartition("_")[0] for report in manifest["reports"])
    host = os.uname().nodename
    assert named == [f"dtensor_policy_worker_rank0_step3-4_{host}", f"worker_process_rank0_{host}"]
    assert {str(report["pid"]) for report in manifest["reports"]} == {seen[0][1], seen[2][1]}
