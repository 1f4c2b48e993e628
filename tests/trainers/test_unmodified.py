"""Each trainer as its makers ship it does its steps here: what the tests of our adapters stand on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.trainers import environments, runs

pytestmark = pytest.mark.trainers

# Building an environment may fall into the first test that needs it.
BUILD_S = 1800
RUN_S = {"trl": 300, "verl": 900, "rlinf": 300, "nemo_rl": 900, "skyrl": 300}
STEPS = {"trl": 4, "verl": 3, "rlinf": 3, "nemo_rl": 3, "skyrl": 3}


# Their runs with us are in CI; by themselves they show no more than that the environment is whole.
LONG = ("verl", "nemo_rl", "rlinf", "skyrl")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.timeout(BUILD_S + RUN_S[name] + 60),
                *([pytest.mark.long] if name in LONG else []),
            ],
        )
        for name in runs.NAMES
    ],
)
def test_the_steps_are_run(name: str, tmp_path: Path) -> None:
    if why := environments.lacking(name):
        pytest.fail(why, pytrace=False)
    run = runs.trainer_run(name, work=tmp_path, steps=STEPS[name])

    began = time.monotonic()
    code, output = _run_within(run, RUN_S[name], tmp_path / "output.txt")
    took = time.monotonic() - began

    times = runs.step_times(name, output)
    print(f"{name}: {took:.0f} s, steps {', '.join(f'{seconds:.2f}' for seconds in times.values())} s")
    assert code == 0, f"{name} ended with {code} after {took:.0f} s:\n{output[-8000:]}"
    assert list(times) == list(range(1, STEPS[name] + 1)), output[-8000:]


def _run_within(run: runs.TrainerRun, deadline_s: float, log: Path) -> tuple[int | str, str]:
    """Exit code and output; past the deadline its whole session is ended."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            run.argv,
            cwd=run.cwd,
            env=run.environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        code: int | str
        try:
            code = process.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            code = f"no exit code (deadline {deadline_s:.0f} s)"
        finally:
            if process.poll() is None:
                process.terminate()  # with_ray.py ends its Ray, whose processes have sessions of their own
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=30)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return code, log.read_text(errors="replace")
