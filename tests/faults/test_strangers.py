"""Another user on the same nodes: cannot join the job's Ray, read its token, its folders, or see a secret
in a command line.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.job import AgentLost, submit
from tests.needs import need
from tests.sandbox import Sandbox
from tests.sandbox.api import TEST_USER

pytestmark = [pytest.mark.slurm, pytest.mark.ray]
SECRET = "hunter2-is-a-secret"


@pytest.fixture(scope="module")
def job():
    need("slurm")
    with Sandbox.up(nodes=3, kill_wait=30) as sandbox:
        job = begun(sandbox)
        yield job
        job.go()
        sandbox.wait(job.id, timeout=200)
        text = "".join(
            path.read_text(errors="replace")
            for path in job.folder.rglob("*")
            if path.is_file() and path.stat().st_size < 10 << 20
        )
        assert SECRET not in text


def begun(sandbox):
    """A job at its hold; another one, twice at most, when nsys did not even start its worker."""
    for attempt in range(3):
        job = submit(sandbox, sandbox.shared / f"job-{attempt}", HF_TOKEN=SECRET)
        try:
            job.wait_step()
            return job
        except AgentLost:
            sandbox.wait(job.id, timeout=200)
    raise AssertionError("nsys lost its agent three times in a row")


@pytest.fixture
def token(job):
    return (job.folder / ".secrets/ray_token").read_text()


def as_stranger(job, argv, **more):
    return job.sandbox.exec("n1", argv, user=TEST_USER, check=False, cwd="/", **more)


def test_the_token_and_the_nodes_folder_are_the_users_alone(job, token):
    assert (job.folder / ".secrets").stat().st_mode & 0o077 == 0
    assert (job.folder / ".secrets/ray_token").stat().st_mode & 0o077 == 0
    for path in (job.folder / ".secrets/ray_token", "/tmp/rlprof-0-" + str(job.id)):
        done = as_stranger(job, ["ls", "-R", str(path)])
        assert "Permission denied" in done.stderr, done
    assert "Permission denied" in as_stranger(job, ["cat", str(job.folder / ".secrets/ray_token")]).stderr


def test_no_command_line_and_no_readable_environment_holds_a_secret(job, token):
    shown = as_stranger(
        job, ["sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"]
    ).stdout
    assert "ray" in shown  # command lines of the job are visible at all
    assert token.strip() not in shown and SECRET not in shown


def test_without_the_token_nobody_joins(job):
    address = next(word for word in ray_command(job) if word.startswith("--gcs-address=")).partition("=")[2]
    code = f"import ray; ray.init(address={address!r}); print('joined', ray.cluster_resources())"
    env = {"HOME": "/nonexistent", "RAY_AUTH_MODE": "disabled", "PATH": os.environ["PATH"]}
    modes = ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64})
    with ThreadPoolExecutor() as pool:
        tried = [
            pool.submit(as_stranger, job, [sys.executable, "-c", code], env={**env, **mode}, timeout=120)
            for mode in modes
        ]
    for done in (each.result() for each in tried):
        assert done.returncode != 0 and "joined" not in done.stdout, done


def ray_command(job) -> list[str]:
    [raylet] = [
        process for process in job.sandbox.processes("n1") if "raylet/raylet" in process.cmdline.split(" ")[0]
    ]
    return raylet.cmdline.split(" ")


def test_a_stranger_cannot_end_the_jobs_processes(job):
    pids = [str(process.pid) for process in job.sandbox.processes("n1")]
    as_stranger(job, ["kill", "-9", *pids])
    assert {process.pid for process in job.sandbox.processes("n1")} >= set(map(int, pids))
