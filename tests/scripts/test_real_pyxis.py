"""The life of a job's containers with the real pyxis and enroot, for machines that have both. Opt-in:

    env/setup_pyxis.sh PYXIS_TREE ENROOT_TREE /images/train.sqsh
    RLPROF_TESTS_PYXIS=/images/train.sqsh .venv/bin/python -m pytest tests/scripts/test_real_pyxis.py

as root, with enroot on PATH, on a sandbox of two nodes. The first line builds both and makes the image; its
sources are public. RLPROF_TESTS_PYXIS_PLUGIN says where spank_pyxis.so is, if not where its `make install`
puts it. An image of one's own needs bash, libelf1 and libpfm4 for nsys, the system libraries of the Python
that runs this (its venv is mounted), and no devices, which only root may unpack. The nodes have one file
system, so enroot.conf has to give each its own folders, in which every user may write: `ENROOT_DATA_PATH
/var/lib/enroot/$(hostname)/data`, and so on for ENROOT_RUNTIME_PATH, ENROOT_CACHE_PATH and ENROOT_TEMP_PATH.
Not below a bind mount: `enroot list` then tells no processes, and nothing joins a container.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox import Sandbox
from tests.sandbox.api import TEST_USER
from tests.waits import wait_until
from tests.whole_job.jobs import DEMO, HOME, Job

IMAGE = os.environ.get("RLPROF_TESTS_PYXIS", "")
PLUGIN = os.environ.get("RLPROF_TESTS_PYXIS_PLUGIN", "/usr/local/lib/slurm/spank_pyxis.so")
TRAINED = {"RLPROF_STEPS": "3:5,400", "RLPROF_WORKERS": "*", "RLPROF_OPTIONS": '{"t": "nvtx"}'}
LONG = f"{DEMO} --steps 500 --step-seconds 1"
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.nsys,
    pytest.mark.ray,
    pytest.mark.torch,
    pytest.mark.timeout(600),
    pytest.mark.by_hand("RLPROF_TESTS_PYXIS"),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Sandbox]:
    """Not healed between tests: pyxis makes its folder in /tmp when slurmd starts, and never again."""
    assert Path(PLUGIN).is_file(), f"RLPROF_TESTS_PYXIS_PLUGIN={PLUGIN}: no such file"
    with tempfile.TemporaryDirectory(prefix="rlprof-pyxis-", dir="/var/lib") as folder:  # nodes have own /tmp
        Path(folder).chmod(0o755)
        conf = Path(folder, "plugstack.conf")
        conf.write_text(f"required {PLUGIN} runtime_path=/tmp/pyxis\n")
        with Sandbox.up(nodes=2, kill_wait=30, extra_conf=f"PlugStackConfig={conf}") as sandbox:
            assert containers(sandbox) == [], "a container of another run would be taken for this one's"
            try:
                yield sandbox
            finally:
                for node in sandbox.nodes:
                    for name in containers(sandbox, node):
                        sandbox.exec(node, ["enroot", "remove", "--force", name], user=TEST_USER)


@pytest.fixture(autouse=True)
def nothing_runs_on(nodes: Sandbox) -> Iterator[None]:
    """The job of a test that failed must not hold the next one's nodes, or be taken for its leftovers."""
    yield
    nodes.run(["scancel", "-u", TEST_USER], check=False)
    wait_until(lambda: not nodes.run(["squeue", "-h"]).stdout.strip(), 120, pause_s=0.5)
    for node in nodes.nodes:
        for name in containers(nodes, node):
            nodes.exec(node, ["enroot", "remove", "--force", name], user=TEST_USER, check=False)


def submit(nodes: Sandbox, *arguments: str, **knobs: str) -> Job:
    """As an ordinary user: root may not join the user namespace that enroot makes."""
    known = {"CONTAINER": IMAGE, "RLPROF_NSYS": shutil.which("nsys") or "", "RAY_LOG_SYNC_FREQUENCY": "0"}
    return Job.submit(nodes, *arguments, nodes=2, user=TEST_USER, **(TRAINED | known | knobs))


def containers(nodes: Sandbox, *which: str) -> list[str]:
    listed = [
        nodes.exec(node, ["enroot", "list"], user=TEST_USER).stdout.split() for node in which or nodes.nodes
    ]
    return sorted(name for names in listed for name in names)


def on_disk(nodes: Sandbox, node: str, job: Job) -> list[Path]:
    """The reports that a node holds, below its folder of the job."""
    folder = nodes.tmp(node) / f"rlprof-{pwd.getpwnam(TEST_USER).pw_uid}-{job.id}"
    return [path.relative_to(folder) for path in folder.glob("profiles/nsight/*/*/*.nsys-rep")]


def kill_all(nodes: Sandbox, node: str) -> None:
    """Every process of the job on a node at once, as `proctrack/cgroup` ends a step."""
    ours = pwd.getpwnam(TEST_USER).pw_uid
    for process in nodes.processes(node):
        if process.user == ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.host_pid, signal.SIGKILL)


def nothing_is_left(nodes: Sandbox, job: Job) -> None:
    """No container, process or file on any node. pyxis's folder is slurmd's; `injection_config_` is what
    nsys leaves when it is killed.
    """
    assert containers(nodes) == [], job.say()
    for node in nodes.nodes:
        assert nodes.processes(node) == [], job.say()
        names = {path.name for path in nodes.files_in_tmp(node)}
        theirs = {name for name in names if name.startswith(("pyxis", "injection_config_"))}
        assert names == theirs, job.say()


def manifest_and_report_agree(job: Job) -> None:
    """What came home is in the report, what did not is missing there with the manifest's own reason. Where
    nothing came home there is no report, and who asks for one gets the manifest's reasons.
    """
    manifest, page = job.manifest, job.run / "report.json"
    assert job.record["end"]["cause"], job.say()
    if not page.exists():
        assert not manifest.reports, job.say()
        rlprof = [Path(sys.prefix) / "bin/rlprof", "report", job.run]
        said = job.sandbox.run(rlprof, user=TEST_USER, check=False)
        assert said.returncode in (2, 3), said
        assert all(capture.reason in said.stderr + said.stdout for capture in manifest.captures), said
        if said.returncode == 2:
            return
    coverage = json.loads(page.read_text())["coverage"]
    unread = {row["path"]: row["reason"] for row in coverage["unread"]}
    read = {row["path"]: row["truncated"] for row in coverage["reports"]} | unread
    lost = {
        capture.id: (capture.state, capture.reason)
        for capture in manifest.captures
        if capture.report is None or (capture.state == "empty" and capture.report not in unread)
    }
    assert {row["capture"]: (row["state"], row["reason"]) for row in coverage["missing"]} == lost, job.say()
    assert coverage["planned"] == len(manifest.captures) == coverage["arrived"] + len(lost), job.say()
    for capture in manifest.captures:
        assert capture.id in lost or capture.report in read, f"{capture}\n{job.say()}"
        assert capture.state != "truncated" or capture.id in lost or read[str(capture.report)], job.say()
    assert set(read) <= {report.path for report in manifest.reports}, job.say()


def test_attach_and_a_node_that_is_killed(nodes: Sandbox) -> None:
    job = submit(nodes, COMMAND=LONG)
    wait_until(lambda: on_disk(nodes, "n2", job), 240, lambda: job.say(), pause_s=0.5)
    assert containers(nodes) == [f"pyxis_rlprof-{job.id}"] * 2

    line = ["bash", HOME / "scripts" / "attach.sh", str(job.id), "n2"]
    env = {
        "BASE_LOG_DIR": str(job.folder),
        "COMMAND": 'hostname; ls "$RLPROF_NODE_DIR"; cat /etc/hostname; ray --version',
    }
    said = nodes.run(line, env=env, timeout=90, user=TEST_USER).stdout
    assert said.startswith("n2\n") and "profiles" in said, said

    finished = on_disk(nodes, "n2", job)
    kill_all(nodes, "n2")
    job.wait(timeout=200)
    assert finished
    assert [path for path in finished if not (job.run / path).is_file()] == [], job.say()
    states = {capture.state for capture in job.manifest.captures if "step3-4" in capture.id}
    assert states == {"ok"}, job.say()
    nothing_is_left(nodes, job)
    manifest_and_report_agree(job)


def test_a_mount_that_is_missing_ends_the_job_with_the_words_of_pyxis(nodes: Sandbox) -> None:
    job = submit(nodes, MOUNTS="/no/such:/data", COMMAND="true")
    state = job.wait(timeout=120)
    assert state.state == "FAILED" and "/no/such" in job.output, job.output
    assert "/no/such" in job.record["end"]["detail"], job.say()
    nothing_is_left(nodes, job)
    manifest_and_report_agree(job)


@pytest.mark.parametrize(
    "when", ["start", "ray", "training"], ids=["in its start", "while Ray starts", "while it trains"]
)
def test_scancel_leaves_nothing_on_any_node_and_a_manifest(nodes: Sandbox, when: str) -> None:
    job = submit(nodes, COMMAND=LONG)
    reached = {
        "start": lambda: bool(containers(nodes)),
        "ray": lambda: (job.run / "logs" / "head.log").exists(),
        "training": lambda: bool(on_disk(nodes, "n2", job)),
    }[when]
    wait_until(reached, 240, lambda: job.say(), pause_s=0.2)
    nodes.run(["scancel", str(job.id)], user=TEST_USER)
    state = job.wait(timeout=200)
    assert state.state == "CANCELLED", job.say()
    nothing_is_left(nodes, job)
    manifest_and_report_agree(job)


def test_a_time_limit_leaves_nothing_on_any_node(nodes: Sandbox) -> None:
    job = submit(nodes, "--time=2", "--signal=B:USR2@60", COMMAND=LONG)
    job.wait(timeout=300)
    nothing_is_left(nodes, job)
    manifest_and_report_agree(job)


def test_a_job_that_ends_well_leaves_nothing_on_any_node(nodes: Sandbox) -> None:
    job = submit(nodes, COMMAND=f"{DEMO} --steps 6", RLPROF_STEPS="3:5")
    state = job.wait(timeout=280)
    assert state.state == "COMPLETED", job.say()
    assert set(job.states().values()) == {"ok"}, job.say()
    nothing_is_left(nodes, job)
    manifest_and_report_agree(job)


@pytest.mark.parametrize("image", ["missing", "damaged", "empty"])
def test_an_image_that_does_not_start_has_a_manifest(nodes: Sandbox, image: str) -> None:
    path = nodes.shared / f"{image}.sqsh"
    if image == "damaged":
        path.write_bytes(Path(IMAGE).read_bytes()[: 1 << 20])
    elif image == "empty":
        path.touch()
    job = submit(nodes, CONTAINER=str(path), COMMAND="true")
    state = job.wait(timeout=120)
    assert state.state == "FAILED" and path.name in job.output, job.output
    end = job.record["end"]
    assert end["cause"] == "startup_failed" and (image != "damaged" or "corruption" in end["detail"]), (
        job.say()
    )
    assert "node n1: not everything came home" not in job.output
    nothing_is_left(nodes, job)
    manifest_and_report_agree(job)
