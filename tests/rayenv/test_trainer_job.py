"""Trainers that set only runtime-env keys, run by `ray.sub` on three real nodes, one without nsys; and
options that cannot work.
"""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from tests.nsys_stand_in import hanging_nsys
from tests.real_nsys import nvtx_lengths
from tests.whole_job.jobs import Job

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.nsys, pytest.mark.timeout(900)]

HOSTILE = "a b|c; $(touch /tmp/pwned) $HOME `id` 'd' \"e\" \\\\ {f,g} *"
TRAINER = r'''
import json, os, sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

HOSTILE = sys.argv[1]
# NeMo RL's and verl's own, but for what needs a GPU or rights.
NEMO_RL = {"t": "nvtx", "s": "none", "cpuctxsw": "none", "stop-on-exit": "true"}
VERL = {"trace": "nvtx", "sample": "none", "cpuctxsw": "none", "nvtx-domain-exclude": HOSTILE}

def nsys():
    """The command line of the nsys that this process runs under, [] without one."""
    pid = os.getppid()
    while pid > 1:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode().split("\0")
        if words[1:2] in (["launch"], ["profile"]):
            return words
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return []

def me():
    return {"python": sys.executable, "utf8": sys.flags.utf8_mode, "pid": os.getpid(), "node": os.environ["RLPROF_NODE"], "nsys": nsys()}

@ray.remote(num_cpus=0)
class Worker:
    """Calls nothing of ours."""
    def train(self):
        import nvtx
        with nvtx.annotate("train", domain="trainer"):
            time.sleep(0.02)
        return me()

@ray.remote(num_cpus=0)
class OwnWorker:
    """Uses our runtime."""
    def train(self):
        from rlprof_ops.runtime import profiler
        with profiler.from_env() as prof:
            for step in range(1, 6):
                with prof.step(step), prof.range("train"):
                    time.sleep(0.01)
        return me()

ray.init(log_to_driver=False, logging_level="error")
nodes = {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes()}

def nemo_rl(worker, **more):
    return {"nsight": NEMO_RL | {"o": f"'{worker}_3:5_%p'"} | more}

def start(kind, node, rank, **runtime_env):
    on = On(node_id=nodes[node], soft=False)
    return kind.options(scheduling_strategy=on, runtime_env=runtime_env | {"env_vars": {"RANK": str(rank)}}).remote()

own_python = {"py_executable": f"{sys.executable} -X utf8"}
workers = {
    "nemo_rl 0": start(Worker, "n1", 0, **nemo_rl("dtensor_policy_worker"), **own_python),
    "nemo_rl 1": start(Worker, "n2", 1, **nemo_rl("dtensor_policy_worker"), **own_python),
    "verl 0": start(Worker, "n2", 0, nsight=VERL),
    "verl 2": start(Worker, "n1", 2, nsight=VERL),
    "without nsys": start(Worker, "n3", 0, **nemo_rl("critic_worker")),
    "without nsys, fail": start(Worker, "n3", 0, **nemo_rl("reference_worker")),
    "bad option": start(Worker, "n1", 0, **nemo_rl("megatron_worker", **{"no-such-option": "1"})),
    "bad option, fail": start(Worker, "n1", 0, **nemo_rl("reference_worker", **{"no-such-option": "1"})),
    "hanging": start(Worker, "n2", 0, **nemo_rl("value_worker", **{"osrt-threshold": "4711"})),
    "own": start(OwnWorker, "n1", 0, rlprof={"worker": "policy_worker", "rank": 0}),
    "own, without nsys": start(OwnWorker, "n3", 1, rlprof={"worker": "policy_worker", "rank": 1}),
    "own, bad option": start(OwnWorker, "n1", 0, rlprof={"worker": "reward_worker", "rank": 0}),
}
began = time.monotonic()
refs = {name: worker.train.remote() for name, worker in workers.items()}
for name, ref in refs.items():
    try:
        said = ray.get(ref, timeout=300)
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"[:3000]}
    print("SAID", json.dumps([name, round(time.monotonic() - began, 1), said]), flush=True)
alive = [worker for name, worker in workers.items() if "fail" not in name]
ray.wait([worker.__ray_terminate__.remote() for worker in alive], num_returns=len(alive), timeout=30)
'''


@pytest.fixture(scope="module")
def finished(slurm_sandbox):
    """(the job, what each worker said, seconds until it did)."""
    slurm_sandbox.heal()
    for node in ("n1", "n2"):
        hanging_nsys(slurm_sandbox.tmp(node), "*osrt-threshold=4711*")
    folder = slurm_sandbox.shared / "trainers"
    folder.mkdir(exist_ok=True)
    trainer, request = folder / "my trainer.py", folder / "profile.json"
    trainer.write_text(TRAINER)

    def capture(workers, **more):
        return {"backend": "nsight", "workers": workers, "ranks": [0], "steps": "3:5", **more}

    request.write_text(
        json.dumps(
            {
                "captures": [
                    capture(
                        ["dtensor_policy_worker", "critic_worker", "megatron_worker", "value_worker"],
                        on_error="continue",
                    ),
                    capture(["reference_worker"], on_error="fail"),
                    capture(["policy_worker"], ranks=[0, 1], options={"t": "nvtx", "nvtx-capture": HOSTILE}),
                    capture(["reward_worker"], options={"t": "nvtx", "no-such-option": "a b"}),
                ]
            }
        )
    )
    job = Job.submit(
        slurm_sandbox,
        COMMAND=shlex.join(["python", str(trainer), HOSTILE]),
        RLPROF_REQUEST=str(request),
        RLPROF_NSYS="/tmp/nsys",
        RLPROF_CHECK_TIMEOUT_S="25",
        RAY_LOG_SYNC_FREQUENCY="2",
    )
    state = job.wait(timeout=700)
    lines = [
        json.loads(line.partition("SAID ")[2])
        for line in (job.run / "logs/driver.log").read_text().splitlines()
        if "SAID " in line
    ]
    assert len(lines) == 12 and state.exit_code in (0, 3), job.say()
    return job, {name: said for name, _, said in lines}, {name: seconds for name, seconds, _ in lines}


def captures(job, worker):
    return {capture.rank: capture for capture in job.manifest.captures if capture.worker == worker}


def test_right_interpreter_and_only_selected_ranks_are_wrapped(finished):
    job, said, _ = finished

    assert {name for name, one in said.items() if "error" in one} == {
        "without nsys, fail",
        "bad option, fail",
    }, said
    assert {one["python"] for one in said.values() if "error" not in one} == {sys.executable}, job.say()
    assert (said["nemo_rl 0"]["utf8"], said["nemo_rl 1"]["utf8"], said["verl 0"]["utf8"]) == (1, 1, 0)
    wrapped = {name: one["nsys"][1:2] for name, one in said.items() if name.startswith(("nemo_rl", "verl"))}
    assert wrapped == {"nemo_rl 0": ["profile"], "nemo_rl 1": [], "verl 0": ["profile"], "verl 2": []}


def test_their_reports_are_named_and_in_the_manifest(finished, tmp_path):
    job, said, _ = finished

    assert captures(job, "dtensor_policy_worker")[0].state == "ok", job.say()
    names = {report.path.rpartition("/")[2] for report in job.manifest.reports}
    nemo_rl, verl = (
        f"dtensor_policy_worker_rank0_step3-4_n1_{said['nemo_rl 0']['pid']}.nsys-rep",
        f"worker_process_rank0_n2_{said['verl 0']['pid']}.nsys-rep",
    )
    assert {nemo_rl, verl} <= names
    assert not [name for name in names if "_rank0_" not in name]
    for report in job.manifest.reports:
        if report.path.endswith((nemo_rl, verl)):
            [[text, seconds]] = nvtx_lengths(job.run / report.path, tmp_path)
            assert (text, seconds < 5) == ("train", True), "its end is lost where a worker may not leave"


def test_an_option_arrives_as_it_was_written(finished):
    job, said, _ = finished

    assert said["own"]["nsys"][1] == "launch" and f"--nvtx-capture={HOSTILE}" in said["own"]["nsys"], said[
        "own"
    ]
    assert captures(job, "policy_worker")[0].state == "ok", job.say()
    assert f"--nvtx-domain-exclude={HOSTILE}" in said["verl 0"]["nsys"], said["verl 0"]


def test_a_node_without_nsys(finished):
    job, said, _ = finished

    assert said["without nsys"]["node"] == said["own, without nsys"]["node"] == "n3"
    for capture, worker in (
        (captures(job, "critic_worker")[0], "'critic_worker' rank 0"),
        (captures(job, "policy_worker")[1], "'policy_worker' rank 1"),
    ):
        assert capture.state == "missing"
        assert "n3" in capture.reason and worker in capture.reason and "no nsys" in capture.reason, (
            capture.reason
        )
        assert "RLPROF_NSYS='/tmp/nsys' is no program" in capture.reason
    assert "rlprof: node n3, worker 'reference_worker' rank 0: no nsys" in said["without nsys, fail"]["error"]


def test_an_option_that_nsys_does_not_know(finished):
    job, said, _ = finished

    for worker, option in (
        ("megatron_worker", "--no-such-option=1"),
        ("reward_worker", "--no-such-option=a b"),
    ):
        capture = captures(job, worker)[0]
        assert capture.state == "missing"
        assert (
            f"node n1, worker '{worker}' rank 0: " in capture.reason
            and f"unrecognised option '{option}'" in capture.reason
        ), capture.reason
    assert (
        "error" not in said["bad option"]
        and said["bad option"]["nsys"] == said["own, bad option"]["nsys"] == []
    )
    assert (
        "rlprof: node n1, worker 'reference_worker' rank 0: `nsys profile"
        in said["bad option, fail"]["error"]
    )
    assert "unrecognised option '--no-such-option=1'" in said["bad option, fail"]["error"]


def test_an_nsys_that_never_returns(finished):
    job, said, seconds = finished
    capture = captures(job, "value_worker")[0]

    assert "error" not in said["hanging"] and seconds["hanging"] < 250
    assert capture.state == "missing"
    assert (
        "node n2, worker 'value_worker' rank 0: `nsys profile" in capture.reason
        and "did not return within 25 s" in capture.reason
    ), capture.reason
    assert "--osrt-threshold=4711" in capture.reason
