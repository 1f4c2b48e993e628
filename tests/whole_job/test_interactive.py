"""Without a COMMAND the cluster waits: attach to any node, quotes survive, scancel ends it in order."""

from __future__ import annotations

import json
import sys

import pytest
from tests.sandbox import SandboxError
from tests.waits import wait_until
from tests.whole_job.jobs import HOME, Job

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.timeout(300)]

COUNT = (
    'import ray; ray.init(logging_level=\'ERROR\'); print(f"{len(ray.nodes())} nodes, it\'s \\"quoted\\"")'
)


def test_attach_and_cancel(slurm):
    job = Job.submit(slurm, "--job-name=it's $mine")
    env = {"BASE_LOG_DIR": str(job.folder)}
    wait_for(job, "no COMMAND: the cluster waits. Attach with: bash ")

    def attach(command: str, *node: str) -> str:
        done = slurm.run(
            ["bash", HOME / "scripts" / "attach.sh", str(job.id), *node],
            env=env | {"COMMAND": command},
            timeout=60,
        )
        return done.stdout

    assert attach(f"{sys.executable} - <<'END'\n{COUNT}\nEND") == '3 nodes, it\'s "quoted"\n'
    assert attach("hostname", "2") == "n3\n"
    assert attach("hostname", "n2") == "n2\n"
    with pytest.raises(SandboxError, match="node 3: the job has nodes 0 to 2: n1 n2 n3"):
        attach("hostname", "3")
    slurm.run(["scancel", str(job.id)])
    job.wait(timeout=60)
    assert job.record["end"]["cause"] == "signal"
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
    assert job.leftovers() == []


def wait_for(job: Job, text: str, seconds: float = 120) -> None:
    output = job.folder / f"slurm-{job.id}.out"
    wait_until(lambda: output.exists() and text in job.output, seconds, job.say, pause_s=0.3)
