"""The demo as a user runs it: on a real local Ray, in its own process."""

import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("rlprof_ops.runtime.profiler")

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(700)]

PACKAGE = Path(__file__).parents[2] / "python"
PHASES = {"generation", "reward", "ref_logprob", "logprob", "advantage", "train", "weight_sync"}


def run_demo(*args: str) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RLPROF_", "NRL_", "RAY_"))}
    env.update(PYTHONPATH=str(PACKAGE), RAY_AUTH_MODE="disabled")
    command = [sys.executable, "-m", "rlprof_ops.demo", "--address", "local", *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run of eight steps with one slow policy worker; its output and its record."""
    path = tmp_path_factory.mktemp("demo") / "run.json"
    result = run_demo(
        "--steps", "8", "--generation-workers", "2", "--json", str(path),
        "--slow-rank", "1", "--slow-ms", "300", "--slow-phase", "ref_logprob",
        "--least-ms", "weight_sync=150", "--tail-ms", "300",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, json.loads(path.read_text())


def test_mean_reward_rises_clearly(finished):
    output, record = finished
    start, end = (float(n) for n in re.findall(r"^mean reward at the (?:start|end) +([\d.]+)$", output, re.M))

    assert output.splitlines()[-1].startswith("mean reward at the end")
    assert end > start + 0.15
    assert [s["step"] for s in record["steps"]] == list(range(1, 9))
    assert record["steps"][0]["reward"] == pytest.approx(start, abs=1e-3)


def test_each_worker_timed_its_phases_inside_its_steps(finished):
    _, record = finished
    done_by = {"policy_worker": PHASES - {"generation", "reward"}, "controller": PHASES}
    done_by["generation_worker"] = {"generation", "reward", "weight_sync"}

    assert [(w["worker"], w["rank"]) for w in record["workers"]] == [
        ("policy_worker", 0),
        ("policy_worker", 1),
        ("generation_worker", 0),
        ("generation_worker", 1),
        ("controller", 0),
    ]
    for worker in record["workers"]:
        steps = {t["step"]: t for t in worker["times"] if t["phase"] == "step"}
        assert set(steps) == set(range(1, 9))
        for step, span in steps.items():
            phases = [t for t in worker["times"] if t["step"] == step and t["phase"] != "step"]
            assert {t["phase"] for t in phases} == done_by[worker["worker"]]
            assert all(span["start_ns"] <= t["start_ns"] <= t["end_ns"] <= span["end_ns"] for t in phases)


def test_the_slow_rank_is_slow_in_its_phase(finished):
    _, record = finished

    def seconds(rank):
        times = record["workers"][rank]["times"]
        return {t["step"]: (t["end_ns"] - t["start_ns"]) / 1e9 for t in times if t["phase"] == "ref_logprob"}

    # In most of eight steps 0.3 s more; the work that both do besides may take either longer now and then.
    slow, other = seconds(1), seconds(0)
    more = [slow[step] - other[step] for step in range(1, 9)]
    assert statistics.median(more) > 0.19, more


def test_phases_last_as_long_as_asked_and_the_tail_goes_round(finished):
    _, record = finished
    generators = [w for w in record["workers"] if w["worker"] == "generation_worker"]
    for worker in generators:
        lengths = {
            phase: {
                t["step"]: (t["end_ns"] - t["start_ns"]) / 1e6 for t in worker["times"] if t["phase"] == phase
            }
            for phase in ("generation", "weight_sync")
        }
        # Slept by the monotonic clock, measured by the wall clock, which may be slewed meanwhile or set.
        _, *syncs = sorted(lengths["weight_sync"].values())
        _, *tails = sorted(lengths["generation"][s] for s in range(1, 9) if s % 2 == worker["rank"])
        assert syncs[0] >= 149 and tails[0] >= 299, lengths


@pytest.mark.whole
def test_a_failing_step_ends_with_the_asked_code():
    result = run_demo("--steps", "3", "--fail-at-step", "2", "--exit-code", "9", "--overlap-sync")

    assert result.returncode == 9, result.stdout + result.stderr
    assert "step   1" in result.stdout and "step   2" not in result.stdout
    assert "demo: failing in step 2 as asked, exit code 9" in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--steps", "0"], "--steps 0: must be 1 or more"),
        (["--slow-rank", "2"], "--slow-rank 2: policy workers have ranks 0 to 1"),
        (
            ["--least-ms", "reward=5"],
            "--least-ms reward=5: must be PHASE=MS with a phase of generation, logprob, ref_logprob, train,"
            " weight_sync and whole milliseconds",
        ),
        (["--fail-at-step", "9"], "--fail-at-step 9: this run has steps 1 to 8"),
    ],
)
def test_wrong_options_are_one_message(args, message, capsys):
    from rlprof_ops.demo.__main__ import main

    assert main(args) == 2
    assert capsys.readouterr().err == f"rlprof demo: {message}\n"
