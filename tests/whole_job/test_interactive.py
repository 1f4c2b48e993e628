"""Without a COMMAND the cluster waits: attach to any node, quotes survive, scancel ends it in order."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable

import pytest
from tests.sandbox import SandboxError
from tests.waits import wait_until
from tests.whole_job.jobs import HOME, Job

TRAIN = """
import os, sys
import ray
from rlprof_ops.runtime import profiler

@ray.remote(num_cpus=0.1)
class Worker:
    def step(self, step):
        if step == 1:
            self.prof = profiler.from_env(worker="policy_worker", rank=0)
        with self.prof.step(step):
            return os.environ["RLPROF_NODE"]

ray.init(log_to_driver=False)
prof = profiler.from_env(worker="controller", rank=0)
worker = Worker.remote()
for step in range(1, 5):
    with prof.step(step):
        print("step", step, ray.get(worker.step.remote(step)), sys.argv[1:], flush=True)
"""
RUNTIME_ENV = """
working_dir: ./
excludes: ["/.git/"]
env_vars:
  TORCH_NCCL_AVOID_RECORD_STREAMS: "1"
  TMPDIR: "${RLPROF_NODE_DIR}/tmp"
"""
SUBMIT = """
ray job submit --address="http://127.0.0.1:8265" \\
    --runtime-env=trainer/runtime_env.yaml \\
    --no-wait --submission-id mine \\
    -- \\
    python3 train.py trainer.nnodes=3
"""
CLIENT = """
import os, ray
address = "ray://" + os.environ["RAY_ADDRESS"].split(":")[0] + ":10001"
# Ray gives the server that it starts for a client 30 s, and a busy machine may need more.
for attempt in range(3):
    try:
        ray.init(address, logging_level="ERROR")
        break
    except ConnectionAbortedError:
        if attempt == 2:
            raise
print(len(ray.nodes()), "nodes by", type(ray.nodes).__name__, ray.util.client.ray.is_connected())
"""

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.timeout(1200)]

COUNT = (
    'import ray; ray.init(logging_level=\'ERROR\'); print(f"{len(ray.nodes())} nodes, it\'s \\"quoted\\"")'
)


def test_attach_and_cancel(slurm):
    asked = {"RLPROF_STEPS": "2:4", "RLPROF_WORKERS": "policy_worker", "RLPROF_BACKEND": "torch"}
    job = Job.submit(slurm, "--job-name=it's $mine", RLPROF_DASHBOARD="1", **asked)
    env = {"BASE_LOG_DIR": str(job.folder)}
    wait_for(job, "no COMMAND: the cluster waits. Attach with: bash ")

    def attach(command: str, *node: str) -> str:
        done = slurm.run(
            ["bash", HOME / "scripts" / "attach.sh", str(job.id), *node],
            env=env | {"COMMAND": command},
            timeout=150,
        )
        return done.stdout

    assert attach(f"{sys.executable} - <<'END'\n{COUNT}\nEND") == '3 nodes, it\'s "quoted"\n'
    assert attach("hostname", "2") == "n3\n"
    assert attach("hostname", "n2") == "n2\n"
    with pytest.raises(SandboxError, match="node 3: the job has nodes 0 to 2: n1 n2 n3"):
        attach("hostname", "3")
    submit_as_verls_guide_has_it(job, attach)
    slurm.run(["scancel", str(job.id)])
    job.wait(timeout=180)
    assert job.record["end"]["cause"] == "signal"
    assert set(job.states().values()) == {"ok"}, job.states()
    assert sorted(path.name for path in (job.run / "nodes").glob("*.json")) == [
        "n1.json",
        "n2.json",
        "n3.json",
    ]
    for node in ("n2", "n3"):
        probes = json.loads((job.run / "nodes" / f"{node}.json").read_text())["clock"]
        assert [probe["moment"] for probe in probes] == ["start", "end"]
        assert all(abs(probe["offset_ns"]) <= probe["error_ns"] for probe in probes), (
            "one machine has one clock"
        )
    # Processes of Ray's dashboard, which Ray kills at its end, leave multiprocessing's folder.
    assert [each for each in job.leftovers() if "/tmp/pymp-" not in each] == []


def submit_as_verls_guide_has_it(job: Job, attach: Callable[..., str]) -> None:
    """docs/start/multinode.rst of verl, "Submit job to ray cluster", with a training of ours."""
    place = job.folder / "verl"
    (place / "trainer").mkdir(parents=True)
    (place / "train.py").write_text(TRAIN)
    (place / "trainer" / "runtime_env.yaml").write_text(RUNTIME_ENV)
    assert "'mine' submitted" in attach(f"cd {shlex.quote(str(place))}; {SUBMIT}")
    wait_until(
        lambda: "succeeded" in attach("ray job status mine --address=http://127.0.0.1:8265"),
        150,
        job.say,
        pause_s=1,
    )
    assert "submission_id='mine'" in attach("ray job list --address=http://127.0.0.1:8265")
    assert "step 4 n1 ['trainer.nnodes=3']" in attach("ray job logs mine --address=http://127.0.0.1:8265")
    state = job.run / "state.json"  # written every few seconds
    wait_until(lambda: json.loads(state.read_text())["step"] == 4, 60, state.read_text)
    assert "3 nodes" in attach(f"{sys.executable} - <<'END'\n{CLIENT}\nEND")
    # The token is asked for, and nobody on another node reaches the dashboard.
    plain = attach(
        "env -u RAY_AUTH_TOKEN_PATH -u RAY_AUTH_MODE curl -s -m 5 -o /dev/null -w '%{http_code}' http://127.0.0.1:8265/api/jobs/"
    )
    assert plain in ("401", "403"), plain
    head = job.sandbox.address("n1")
    assert attach(f"curl -s -m 5 http://{head}:8265/; echo $?", "n2").strip() == "7"


def wait_for(job: Job, text: str, seconds: float = 300) -> None:
    output = job.folder / f"slurm-{job.id}.out"
    wait_until(lambda: output.exists() and text in job.output, seconds, job.say, pause_s=0.3)
