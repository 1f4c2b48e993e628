"""The oldest Ray that is supported: the tests that touch Ray most, in a Python that has it. All else of the
suite runs with the newest.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.trainers import environments
from tests.trainers.environments import CHECKOUT, OLDEST_RAY

pytestmark = [pytest.mark.trainers, pytest.mark.nsys, pytest.mark.timeout(600)]

TESTS = (
    "tests/rayenv/test_plugin.py",
    "tests/rayenv/test_real_ray.py",
    "tests/rayenv/builtin",
    "tests/rayenv/test_worker_path.py::test_workers_are_captured[actor]",
    "tests/supervisor/test_resource_probe.py",
    "tests/supervisor/test_ray_process.py",
    "tests/supervisor/test_start_ray.py",
)


def test_what_touches_ray_works_with_the_oldest() -> None:
    installed = environments.ensure(OLDEST_RAY)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "RAY_"))}
    env |= {
        "PATH": f"{installed.bin}:{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT / "python"),
        "RLPROF_TESTS_REQUIRE": "ray,nsys",
    }
    command = [installed.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, env=env, cwd=CHECKOUT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout
