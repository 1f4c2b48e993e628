"""The life of a job's containers with the real pyxis and enroot, for machines that have both. Opt-in:

    RLPROF_TESTS_PYXIS=/usr/lib/slurm/spank_pyxis.so RLPROF_TESTS_PYXIS_IMAGE=/images/train.sqsh \\
        .venv/bin/python -m pytest tests/scripts/test_real_pyxis.py

as root, with enroot on PATH, in a sandbox of two nodes. The image needs bash and the libraries of the Python
that runs this (its venv is mounted). The nodes have one file system, so enroot.conf has to give each its own
places, not below a bind mount: `ENROOT_DATA_PATH /var/lib/enroot/$(hostname)/data` and so on for
ENROOT_RUNTIME_PATH, ENROOT_CACHE_PATH and ENROOT_TEMP_PATH, and `ENROOT_ALLOW_SUPERUSER yes`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox import Sandbox
from tests.waits import wait_until
from tests.whole_job.jobs import HOME, Job

PLUGIN, IMAGE = os.environ.get("RLPROF_TESTS_PYXIS", ""), os.environ.get("RLPROF_TESTS_PYXIS_IMAGE", "")
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.ray,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not (PLUGIN and IMAGE), reason="RLPROF_TESTS_PYXIS or its image is unset"),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Sandbox]:
    with tempfile.TemporaryDirectory(prefix="rlprof-pyxis-", dir="/var/lib") as folder:  # nodes have own /tmp
        conf = Path(folder, "plugstack.conf")
        conf.write_text(f"required {PLUGIN} runtime_path=/tmp/pyxis container_scope=global\n")
        with Sandbox.up(nodes=2, name="pyxis", kill_wait=10, extra_conf=f"PlugStackConfig={conf}") as sandbox:
            yield sandbox


def submit(nodes: Sandbox, **knobs: str) -> Job:
    known = {"CONTAINER": IMAGE, "RAY_LOG_SYNC_FREQUENCY": "0", "RLPROF_REPORT_SECONDS": "0"}
    return Job.submit(nodes, nodes=2, **(known | knobs))


def containers(nodes: Sandbox) -> str:
    return "".join(nodes.exec(node, ["enroot", "list"]).stdout for node in nodes.nodes)


def test_attach_and_a_node_that_is_killed(nodes: Sandbox) -> None:
    job = submit(nodes)
    output = job.folder / f"slurm-{job.id}.out"
    wait_until(
        lambda: output.exists() and "no COMMAND: the cluster waits" in job.output, 180, job.say, pause_s=0.5
    )
    assert f"pyxis_rlprof-{job.id}" in containers(nodes)

    def attach(command: str, node: str) -> str:
        line = ["bash", HOME / "scripts" / "attach.sh", str(job.id), node]
        return nodes.run(line, env={"BASE_LOG_DIR": str(job.folder), "COMMAND": command}, timeout=90).stdout

    report = "profiles/torch/w/rank0/w_rank0_step3-4_n2_7.pt.trace.json.gz"
    make = f'f="$RLPROF_NODE_DIR/{report}"; mkdir -p "${{f%/*}}"; echo mine > "$f"; pwd; ls /image-is-here'
    said = attach(f"cd /tmp; {make} 2>&1 || true", "n2")
    assert "/tmp" in said and nodes.files_in_tmp("n2"), "the node folder is the host's, not the container's"
    for process in nodes.processes("n2"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.host_pid, signal.SIGKILL)
    job.wait(timeout=150)
    assert (job.run / report).read_text() == "mine\n", job.say()
    assert containers(nodes) == ""
    assert nodes.files_in_tmp("n2") == [] or [path.name for path in nodes.files_in_tmp("n2")] == ["pyxis"]


def test_a_mount_that_is_missing_ends_the_job_with_pyxis_words(nodes: Sandbox) -> None:
    nodes.heal()
    job = submit(nodes, MOUNTS="/no/such:/data", COMMAND="true")
    state = job.wait(timeout=90)
    assert state.state == "FAILED" and "/no/such" in job.output, job.output
    assert containers(nodes) == ""
