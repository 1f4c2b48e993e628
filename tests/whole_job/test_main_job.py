"""The main job: `sbatch ray.sub` on three real nodes, real Ray, real nsys in the workers, every window
home.
"""

from __future__ import annotations

import pwd
import re
import sys
from pathlib import Path

import pytest
from tests.real_nsys import nvtx_ranges
from tests.waits import wait_until
from tests.whole_job.jobs import ASKED, DEMO, NEEDS, Job

pytestmark = [
    *NEEDS,
    pytest.mark.timeout(1000),
]

NOBODY = pwd.getpwnam("nobody").pw_uid
PHASES = {
    "policy_worker": {"ref_logprob", "logprob", "train", "weight_sync"},
    "generation_worker": {"generation", "weight_sync"},
}
CAPTURES = {
    f"nsight/{worker}/rank{rank}/{steps}"
    for worker, rank in (("policy_worker", 0), ("policy_worker", 1), ("generation_worker", 0))
    for steps in ("step3-4", "step7-7")
}


@pytest.fixture
def other_users_ray(slurm):
    """A Ray that another user has running on the first node, outside the job."""
    home = slurm.shared / "stranger"
    home.mkdir(exist_ok=True)
    home.chmod(0o777)
    env = {"HOME": str(home), "RAY_AUTH_MODE": "disabled"}
    # Another uid, which may still read an interpreter that lies in root's home.
    become = [
        "setpriv",
        "--reuid=nobody",
        "--clear-groups",
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
    ]
    argv = [
        *become,
        sys.executable,
        "-c",
        "from ray.scripts.scripts import main; main()",
        "start",
        "--head",
        "--block",
        "--port=6399",
        "--include-dashboard=false",
        "--disable-usage-stats",
        f"--node-ip-address={slurm.address('n1')}",
        "--temp-dir=/tmp/stranger",
        "--num-cpus=1",
        "--object-store-memory=100000000",
    ]
    with open(home / "ray.log", "wb") as log:
        process = slurm.popen("n1", argv, env=env, stdout=log, stderr=log)
    log_text = lambda: (home / "ray.log").read_text(errors="replace")  # noqa: E731
    wait_until(
        lambda: "Ray runtime started" in log_text(),
        180,
        log_text,
        pause_s=0.2,
        unless=lambda: process.poll() is not None,
    )
    yield lambda: {(p.pid, p.name) for p in slurm.processes("n1") if p.user == NOBODY}
    process.terminate()
    process.wait(timeout=60)


@pytest.mark.quick
def test_every_window_comes_home(slurm, other_users_ray, tmp_path):
    strangers = other_users_ray()

    colourful = f"printf '\\033[33mcoloured by the driver\\033[0m\\n'; {DEMO} --step-seconds 1.5"
    job = Job.submit(slurm, COMMAND=colourful, RAY_LOG_SYNC_FREQUENCY="2", RLPROF_HARVEST_JOB="auto", **ASKED)
    state = job.wait()

    assert (state.state, state.exit_code) == ("COMPLETED", 0), job.say()
    assert set(job.states()) == CAPTURES
    assert set(job.states().values()) == {"ok"}, job.say()
    assert job.manifest.unplanned == ()
    check_layout(job)
    check_contents(job, tmp_path)
    check_times(job)
    check_harvest(job)
    check_links(job)
    assert {name for _, name in strangers} >= {"gcs_server", "raylet"}
    assert strangers <= other_users_ray(), "the other user's Ray did not survive"
    assert [line for line in job.leftovers() if f"user={NOBODY}" not in line and "stranger" not in line] == []


def check_layout(job: Job) -> None:
    """The run folder as docs/contracts.md says."""
    for name in (
        "run.json",
        "manifest.json",
        "logs/driver.log",
        "logs/head.log",
        "logs/n2.log",
        "logs/n3.log",
    ):
        assert (job.run / name).is_file(), name
    for node in job.sandbox.nodes:
        assert (job.run / "nodes" / f"{node}.json").is_file()
        assert list((job.run / "ray" / node).glob("session_*/logs/raylet.out")), node
    check_colours(job)
    assert (job.run / ".secrets").stat().st_mode & 0o777 == 0o700
    assert (job.run / ".secrets" / "ray_token").stat().st_mode & 0o777 == 0o600
    token = (job.run / ".secrets" / "ray_token").read_text()
    for file in job.run.rglob("*"):
        if file.is_file() and ".secrets" not in file.parts:
            assert token.encode() not in file.read_bytes(), f"the token stands in {file}"


def check_colours(job: Job) -> None:
    """What we write to files is plain; the driver's own colours, and Ray's in its output, are left alone."""
    for path in (job.folder / f"slurm-{job.id}.out", *(job.run / "logs").glob("*.log")):
        if path.name != "driver.log":
            assert "\x1b" not in path.read_text(errors="replace"), path
    said = (job.run / "logs/driver.log").read_text(errors="replace")
    assert "\x1b[33mcoloured by the driver\x1b[0m" in said
    ours = [line.partition("[rlprof")[2] for line in said.splitlines() if "[rlprof" in line]
    assert [line for line in ours if "\x1b" in line] == []


def check_contents(job: Job, folder: Path) -> None:
    """Each report holds the phases of exactly its steps, and the workers sat on at least two hosts."""
    reports = job.manifest.reports
    assert len({report.host for report in reports}) >= 2
    for report in reports:
        texts = nvtx_ranges(job.run / report.path, folder)
        steps = {text for text in texts if text.startswith("step ")}
        assert steps == {f"step {n}" for n in range(report.start, report.stop)}, report.path
        assert set(texts) - steps >= PHASES[report.worker], report.path
        assert texts.count("weight_sync") == len(steps), report.path


def check_times(job: Job) -> None:
    """The report of the first window was in the run folder while the job still trained."""
    ended_ns = job.record["driver"]["ended_ns"]
    for report in job.manifest.reports:
        if report.start == 3:
            arrived_ns = (job.run / report.path).stat().st_ctime_ns
            assert arrived_ns < ended_ns - 1_000_000_000, report.path


def check_harvest(job: Job) -> None:
    """Manifest and report are another job's, which took one node when this one had left all three."""
    number = int(re.findall(r"harvest and report: job (\d+), when this one has ended", job.output)[0])
    harvest = job.sandbox.wait(number)
    assert (harvest.state, harvest.fields["NumNodes"]) == ("COMPLETED", "1"), job.say()
    assert harvest.fields["StartTime"] >= job.sandbox.job(job.id).fields["EndTime"]
    assert "6 captures planned: 6 ok" in (job.run / "logs" / "harvest.log").read_text()
    assert (job.run / "report.html").is_file(), job.say()


def check_links(job: Job) -> None:
    """Beside Ray's logs of its node each report has a link, under the name of NeMo RL's document."""
    for report in job.manifest.reports:
        name = f"{report.worker}_{report.start}:{report.stop}_{report.pid}.nsys-rep"
        [link] = (job.run / "ray" / report.node).glob(f"session_*/logs/nsight/{name}")
        assert link.samefile(job.run / report.path)


def test_a_driver_that_fails_after_the_first_window(slurm):
    """And its Slurm wants no job for the harvest: then this one makes manifest and report."""
    knobs = {"RLPROF_HARVEST_JOB": "auto", "RLPROF_HARVEST_ARGS": "--partition=moon"}
    job = Job.submit(
        slurm, COMMAND=f"{DEMO} --step-seconds 1.5 --fail-at-step 6 --exit-code 7", **knobs, **ASKED
    )
    state = job.wait()

    assert (state.state, state.exit_code) == ("FAILED", 7), job.say()
    assert "sbatch said: sbatch: error: invalid partition specified: moon" in job.output
    assert (job.run / "report.html").is_file(), job.say()
    assert set(job.states()) == CAPTURES
    for capture in job.manifest.captures:
        if capture.start == 3:
            assert capture.state == "ok", capture
        else:
            assert capture.state == "missing", capture
            assert "the driver ended with exit code 7 before step 7" in capture.reason, job.say()
    assert job.record["end"]["cause"] == "driver_exit"
    assert job.leftovers() == []
