"""NeMo RL's examples/run_grpo.py, unchanged: NRL_NSYS_* are all that is added.

One run, and everything that is claimed of it. Its driver says that it is on another node than the workers.
The oracle of times is NeMo RL's own Timer, as its driver prints it after each step.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from rlprof_ops.job.knobs import python_path
from tests.analyze.as_data import answer_of
from tests.real_nsys import nvtx_ranges
from tests.trainers import environments
from tests.trainers.local_job import LocalJob
from tests.trainers.requests_of import requests_of

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.nsys,
    pytest.mark.timeout(1500),
]
LOOP = """
from nemo_rl.utils import nsys, timer

timer = timer.Timer(context={"worker": "driver"})
for step in range(1, 4):
    maybe = getattr(nsys, "maybe_gpu_profile_step", None) or nsys.renamed
    maybe(object(), step)
    with timer.time("total_step_time"):
        with timer.time("prepare_for_generation/total"), timer.time("prepare_for_generation/transfer"):
            pass
        timer.start("idle/refit_bubble")
        with timer.time("weight_sync"):
            pass
        timer.stop("idle/refit_bubble")

@nsys.wrap_with_nvtx_name("dtensor_policy_worker/train")
def train(batch):
    return batch + 1

print("trained", [len(seconds) for seconds in timer._timers.values()], train.__name__)
"""
RUN_S = 1200
PROMPTS, ANSWERS = 2, 4  # of a step
ELSEWHERE = "the-drivers-node"
Events = dict[str, list[dict[str, Any]]]
WORKERS = ("dtensor_policy_worker", "vllm_generation_worker")
TIMED = (
    "generation",
    "prepare_for_generation/total",
    "policy_and_reference_logprobs",
    "policy_training",
    "total_step_time",
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    asked = {
        "NRL_NSYS_PROFILE_STEP_RANGE": "2:3",
        "NRL_NSYS_WORKER_PATTERNS": "*policy*,*vllm*",
        "NRL_NSYS_EXTRA_OPTIONS": '{"t": "nvtx"}',
    }
    folder = tmp_path_factory.mktemp("nemo_rl") / "job"
    elsewhere = {"RLPROF_NODE": ELSEWHERE}
    return LocalJob.take(
        "nemo_rl",
        folder,
        4,
        RUN_S,
        env=elsewhere,
        last_words="Max number of steps has been reached",
        GPUS_PER_NODE="1",
        **asked,
    )


@pytest.fixture(scope="module")
def events(job: LocalJob) -> Events:
    """Every event by the process that it is of."""
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in job.run.glob("nodes/*/events/*.jsonl")
    }


@pytest.fixture(scope="module")
def steps(events: Events) -> dict[int, dict[str, Any]]:
    """What the driver's adapter told, by step."""
    return {
        event["step"]: event
        for name, rows in events.items()
        for event in rows
        if event["event"] == "step" and name.startswith("driver_")
    }


@pytest.fixture(scope="module")
def printed(job: LocalJob) -> dict[int, str]:
    """What NeMo RL's driver prints of each step."""
    text = (job.run / "logs" / "driver.log").read_text(errors="replace")
    parts = re.split(r"=+ Step (?=\d+/\d+ =)", re.sub(r"\x1b\[[0-9;]*m", "", text))[1:]
    return {int(part.split("/", 1)[0]): part for part in parts}


@pytest.fixture(scope="module")
def own_times(printed: dict[int, str]) -> dict[tuple[int, str], float]:
    """Seconds by step and label, as NeMo RL prints its Timer."""
    found = {}
    for step, part in printed.items():
        for total in re.findall(r"Total step time: ([\d.]+)s", part):
            found[step, "total_step_time"] = float(total)
        for label, seconds in re.findall(r"• ([\w/]+): ([\d.]+)s \(", part):
            found[step, label] = float(seconds)
    return found


def test_each_worker_has_its_window_by_session(job: LocalJob, events: Events):
    assert job.states() == {f"nsight/{worker}/rank0/step2-2": "ok" for worker in WORKERS}, job.output[-5000:]
    opened = [e for rows in events.values() for e in rows if e["event"] == "opened"]
    assert len(opened) == len(WORKERS), opened


def test_windows_are_final_while_training_goes_on(events: Events, steps: dict[int, dict[str, Any]]):
    assert sorted(steps) == [1, 2, 3, 4]
    closed = [e for rows in events.values() for e in rows if e["event"] == "closed"]
    assert [(e["seen"], e["partial"]) for e in closed] == [([2], False)] * len(WORKERS)
    assert max(e["t_ns"] for e in closed) < steps[4]["end_ns"]


def test_workers_say_the_node_that_they_are_on_and_not_the_drivers(job: LocalJob, events: Events):
    """NeMo RL hands the driver's whole environment to every actor."""
    here = os.uname().nodename
    hosts = {e["worker"]: e["host"] for rows in events.values() for e in rows if e["event"] == "registered"}
    assert hosts == {"driver": ELSEWHERE, **dict.fromkeys(WORKERS, here)}
    for worker in WORKERS:
        [report] = (job.run / "profiles" / "nsight" / worker / "rank0").glob("*.nsys-rep")
        assert f"_{here}_" in report.name


def test_phases_take_what_nemo_rls_timer_says(
    steps: dict[int, dict[str, Any]], own_times: dict[tuple[int, str], float]
):
    mine: dict[tuple[int, str], float] = {}
    for number, step in steps.items():
        mine[number, "total_step_time"] = (step["end_ns"] - step["begin_ns"]) / 1e9
        for name, begin, end, _ in step["phases"]:
            mine[number, name] = mine.get((number, name), 0.0) + (end - begin) / 1e9
    compared = {
        (number, name): (mine.get((number, name)), own_times.get((number, name)))
        for number in (2, 3)
        for name in TIMED
    }
    print(compared)
    assert all(
        told is not None and own is not None and abs(told - own) <= max(0.02 * own, 0.02)
        for told, own in compared.values()
    ), compared


def test_reports_hold_the_ranges_that_nemo_rl_names(job: LocalJob, tmp_path: Path):
    wanted = {
        "dtensor_policy_worker": {"dtensor_policy_worker/train", "dtensor_policy_worker/get_logprobs"},
        "vllm_generation_worker": {"vllm_genertion_worker/generate"},
    }
    for worker, names in wanted.items():
        [report] = (job.run / "profiles" / "nsight" / worker / "rank0").glob("*.nsys-rep")
        found = nvtx_ranges(report, tmp_path)
        assert names <= set(found), (worker, sorted(set(found)))


@pytest.fixture(scope="module")
def answer(job: LocalJob) -> dict[str, Any]:
    return answer_of(job.run, quiet=True)


def test_the_report_shows_the_step_with_its_phases(answer: dict[str, Any]):
    assert [step["step"] for step in answer["steps"]] == [2]
    assert {"generation", "logprob", "train", "weight_sync"} <= set(answer["phase_names"])


def test_the_engines_requests_of_a_step_are_nemo_rls_samples(
    job: LocalJob, answer: dict[str, Any], steps: dict[int, dict[str, Any]], printed: dict[int, str]
):
    _, requests = requests_of(job.run, 0)
    lengths = answer["whole_run"]["requests"]["lengths"]["steps"]
    for number, step in steps.items():
        begin, end = next(phase[1:3] for phase in step["phases"] if phase[0] == "generation")
        mine = [each for each in requests if begin <= each.arrival_ns <= each.finished_ns <= end]
        assert sorted(Counter(each.group for each in mine).values()) == [ANSWERS] * PROMPTS, number
        own = float(re.findall(r"Mean Generation Length: ([\d.]+)", printed[number])[0])
        assert fmean(each.tokens for each in mine) == pytest.approx(own, abs=1e-4)
        assert lengths["mean"][lengths["step"].index(number)] == pytest.approx(own, abs=0.06)


def run_loop(folder: Path, package: Path) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """The loop above with NeMo RL's own modules of `package` and our adapters; its output and events."""
    node = folder / "node"
    node.mkdir()
    asked = {"RLPROF_STEPS": "2", "RLPROF_WORKERS": "dtensor_policy_worker", "RLPROF_NODE_DIR": str(node)}
    done = subprocess.run(
        [str(environments.ensure("nemo_rl").python), "-P", "-W", "ignore", "-c", LOOP],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": python_path(str(package)), **asked},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    rows = [json.loads(line) for path in node.rglob("*.jsonl") for line in path.read_text().splitlines()]
    return done, rows


def changed(folder: Path, *dropped: str, **renamed: str) -> Path:
    """NeMo RL's two modules, with names changed and files left out, as another version might have them."""
    source = environments.ensure("nemo_rl").source
    (folder / "nemo_rl" / "utils").mkdir(parents=True)
    for name in ("", "utils/"):
        (folder / "nemo_rl" / f"{name}__init__.py").touch()
    for name in {"timer", "nsys"} - set(dropped):
        text = (source / "nemo_rl" / "utils" / f"{name}.py").read_text()
        for old, new in renamed.items():
            text = re.sub(rf"\b{old}\b", new, text)
        (folder / "nemo_rl" / "utils" / f"{name}.py").write_text(text)
    return folder


TRAINED = "trained [3, 3, 3, 3, 3] wrapper\n"


def test_the_real_timer_tells_steps_and_phases(tmp_path: Path):
    done, rows = run_loop(tmp_path, changed(tmp_path / "lib"))
    assert (done.stdout, done.stderr) == (TRAINED, "")
    steps = [row for row in rows if row["event"] == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    inner_first = [("prepare_for_generation/transfer", 1), ("prepare_for_generation/total", 0)]
    around = [("weight_sync", 1), ("idle/refit_bubble", 0)]
    assert all(
        [(name, depth) for name, *_, depth in step["phases"]] == inner_first + around for step in steps
    )


def test_a_renamed_function_is_one_line_and_training_goes_on(tmp_path: Path):
    done, rows = run_loop(tmp_path, changed(tmp_path / "lib", maybe_gpu_profile_step="renamed"))
    assert done.stdout == TRAINED
    [line] = done.stderr.splitlines()
    assert "nemo_rl.utils.nsys is left as it is" in line and "has no maybe_gpu_profile_step" in line
    assert [row["event"] for row in rows] == ["adapter_unknown"]


def test_a_dropped_module_is_one_line(tmp_path: Path):
    done, rows = run_loop(tmp_path, changed(tmp_path / "lib", "timer"))
    assert "No module named" in done.stderr or "cannot import name 'timer'" in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("[rlprof]")]
    assert "there is no nemo_rl.utils.timer" in line
    assert [row["event"] for row in rows] == ["adapter_unknown"]
