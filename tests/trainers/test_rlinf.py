"""RLinf's EmbodiedRunner, unchanged, with small workers: asked by RLPROF_*, and by its own `profiling:`.

The oracle of times is what RLinf logs of its own timers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.job.knobs import python_path
from rlprof_ops.request import load_request, request_from_json
from tests.analyze.as_data import answer_of
from tests.backends.rocprof_sys import rocprof_stand_in
from tests.real_nsys import nvtx_ranges
from tests.trainers import environments
from tests.trainers.local_job import LocalJob

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.nsys,
    pytest.mark.timeout(900),
]
RUN_S = 300
TASKS = {
    "ActorGroup": {"actor/compute_adv", "actor/run_training"},
    "RolloutGroup": {"rollout/generate"},
    "EnvGroup": {"env/interact"},
}
TIMED = ("sync_weights", "generate_rollouts", "cal_adv_and_returns")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    folder = tmp_path_factory.mktemp("rlinf") / "ours"
    asked = {"RLPROF_STEPS": "2", "RLPROF_WORKERS": "*Group,Actor", "RLPROF_OPTIONS": '{"t": "nvtx"}'}
    return LocalJob.take("rlinf", folder, 4, RUN_S, **asked)


@pytest.fixture(scope="module")
def its_own(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    folder = tmp_path_factory.mktemp("rlinf") / "its own"
    block = ("backend=nsight", "worker_groups=[ActorGroup,EnvGroup]", "steps=[1]", "options.t=nvtx")
    return LocalJob.take("rlinf", folder, 4, RUN_S, [f"profiling.{key}" for key in block])


def steps(job: LocalJob) -> dict[int, dict[str, Any]]:
    """What the driver's adapter told, by step."""
    rows = [
        json.loads(line) for path in job.run.glob("nodes/*/events/driver_*.jsonl") for line in path.open()
    ]
    return {row["step"]: row for row in rows if row["event"] == "step"}


def own_times(job: LocalJob) -> dict[int, dict[str, float]]:
    """Seconds by RLinf's own names, of each step."""
    text = (job.run / "logs" / "driver.log").read_text(errors="replace")
    rows = [json.loads(found) for found in re.findall(r"^times (\{.*\})$", text, re.MULTILINE)]
    return {row["step"]: row for row in rows}


def ranges(job: LocalJob, group: str, folder: Path) -> set[str]:
    [capture] = [each for each in Manifest.load(job.run).captures if each.worker == group and each.rank == 0]
    report = job.run / str(capture.report)
    assert "_step2-2_" in report.name
    return set(nvtx_ranges(report, folder))


def test_groups_and_channels_have_their_windows_by_name(ours: LocalJob):
    states = ours.states()
    wanted = {f"nsight/{group}/rank0/step2-2": "ok" for group in (*TASKS, "Actor")}
    assert {capture: states.get(capture) for capture in wanted} == wanted, ours.output[-5000:]
    assert "missing" not in states.values(), states


def test_steps_and_phases_take_what_rlinfs_timers_say(ours: LocalJob):
    told, own = steps(ours), own_times(ours)
    assert sorted(told) == sorted(own) == [1, 2, 3, 4]
    for number, step in told.items():
        mine = {"step": (step["end_ns"] - step["begin_ns"]) / 1e9}
        mine |= {name: (end - begin) / 1e9 for name, begin, end, _ in step["phases"]}
        compared = {name: (mine[name], own[number][f"time/{name}"]) for name in ("step", *TIMED)}
        assert all(abs(a - b) <= max(0.02 * b, 0.02) for a, b in compared.values()), (number, compared)


def test_reports_hold_the_timers_of_the_workers(ours: LocalJob, tmp_path: Path):
    for group, names in TASKS.items():
        assert names <= ranges(ours, group, tmp_path)


def test_windows_are_final_while_training_goes_on(ours: LocalJob):
    rows = [json.loads(line) for path in ours.run.glob("nodes/*/events/*.jsonl") for line in path.open()]
    closed = [row for row in rows if row["event"] == "closed"]
    assert len(closed) == 4 and all(row["seen"] == [2] and not row["partial"] for row in closed)


def test_the_report_shows_the_step_with_its_phases(ours: LocalJob):
    answer = answer_of(ours.run, quiet=True)
    assert [step["step"] for step in answer["steps"]] == [2]
    assert {"generation", "advantage", "train", "weight_sync"} <= set(answer["phase_names"])


def test_rlinfs_own_block_becomes_sessions_of_the_job(its_own: LocalJob, tmp_path: Path):
    for group in ("ActorGroup", "EnvGroup"):
        assert TASKS[group] <= ranges(its_own, group, tmp_path)
    # Planned as what `profiling:` asks for, and nothing lies beside the plan.
    assert its_own.states() == {f"nsight/{group}/rank0/step2-2": "ok" for group in ("ActorGroup", "EnvGroup")}
    assert "outside the plan" not in its_own.output and "unplanned" not in its_own.output
    assert not (its_own.run / "profiles" / "nsight" / "RolloutGroup").exists()
    assert not list(its_own.run.parent.rglob("rlinf_profile_*"))
    assert [row["step"] for row in answer_of(its_own.run, quiet=True)["steps"]] == [2]


def test_a_step_whose_attempt_rlinf_skips_keeps_its_window(tmp_path: Path):
    """AsyncEmbodiedRunner skips an attempt at steps 1 and 3, and tries again after a second."""
    script = environments.HERE / "rlinf" / "toy_asynchronous.py"
    argv = [str(environments.ensure("rlinf").python), str(script), "4"]
    asked = {"RLPROF_STEPS": "3", "RLPROF_WORKERS": "ActorGroup", "RLPROF_OPTIONS": '{"t": "nvtx"}'}
    job = LocalJob.take("rlinf", tmp_path / "skipped", 4, RUN_S, argv=argv, **asked)
    assert job.states() == {"nsight/ActorGroup/rank0/step3-3": "ok"}, job.output[-5000:]
    told, own = steps(job), own_times(job)
    assert sorted(told) == sorted(own) == [1, 2, 3, 4]
    for number, step in told.items():
        mine, theirs = (step["end_ns"] - step["begin_ns"]) / 1e9, own[number]["time/step"]
        waited = 1.0 if number in (1, 3) else 0.0
        assert theirs + waited <= mine <= theirs + waited + 1.0, (number, mine, theirs)
    [report] = (job.run / "profiles" / "nsight" / "ActorGroup" / "rank0").glob("*.nsys-rep")
    # the skipped attempt and the step's; step 4 may have begun when nsys stopped
    ended = nvtx_ranges(report, tmp_path, ended=True)
    assert ended.count("run_training") >= 2, ended


@pytest.fixture(scope="module")
def its_own_amd(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    """With a stand-in for rocprof-sys: no AMD GPU is needed to start a worker under it."""
    folder = tmp_path_factory.mktemp("rlinf") / "its own amd"
    python = subprocess.run(
        [str(environments.ensure("rlinf").python), "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    script = rocprof_stand_in.install(folder.parent / "opt rocm", (int(python[0]), int(python[1])))
    block = ("backend=rocprof_sys", "worker_groups=[ActorGroup,EnvGroup]", "steps=[1]", "args.F=true")
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    overrides = [f"profiling.{key}" for key in block]
    return LocalJob.take("rlinf", folder, 4, RUN_S, overrides, {"TOY_ENDS_IN_ORDER": "actor"}, PATH=path)


@pytest.mark.long
def test_rlinfs_own_block_for_amd_starts_its_workers_and_records_its_steps(its_own_amd: LocalJob):
    """RLinf's own wrap gives rocprof-sys the interpreter as if it were a script, and starts no worker.
    The tool writes when a worker ends in order: the actor's is asked to, the other one is Ray's, which ends
    by force most of those that are alive when the driver ends.
    """
    assert sorted(own_times(its_own_amd)) == [1, 2, 3, 4], its_own_amd.output[-5000:]
    states = its_own_amd.states()
    assert sorted(states) == [f"rocprof_sys/{group}/rank0/step2-2" for group in ("ActorGroup", "EnvGroup")]
    rows = [
        json.loads(line) for path in its_own_amd.run.glob("nodes/*/events/*.jsonl") for line in path.open()
    ]
    opened = {row["report"].partition("_")[0]: row["steps"] for row in rows if row["event"] == "opened"}
    assert opened == {"ActorGroup": [2, 3], "EnvGroup": [2, 3]}, rows
    traces = list((its_own_amd.run / "profiles" / "rocprof_sys").rglob("*_step2-2_*.proto"))
    assert len(traces) == list(states.values()).count("ok") > 0
    for capture in Manifest.load(its_own_amd.run).captures:
        if capture.state != "ok":
            assert capture.worker == "EnvGroup" and "ended by force after its window" in str(capture.reason)
    for trace in traces:
        found = json.loads(trace.read_text())
        assert len(found["sections"]) == 1 and found["options"]["full_filepath"] is True
    assert not list(its_own_amd.run.parent.rglob("rlinf_profile_*"))


# ---- RLinf's modules without a Ray

OWN_PROFILER = """
from types import SimpleNamespace
from rlinf.scheduler import Cluster
from rlinf.scheduler.hardware.accelerators.nvidia_gpu import NsightConfig
from rlinf.scheduler.worker.worker_group import WorkerGroupFunc
from rlprof_ops.trainers.rlinf.import_rlinf import request_of
from rlinf.utils.distributed import ScopedTimer

options = {"t": "nvtx", "o": "/x"}
own = NsightConfig(worker_groups="actorgroup", output_dir="/its", steps=[1, 3], options=options,
                   flags=["gpuctxsw"])
print(request_of(own).to_json())
config = NsightConfig(worker_groups=["ActorGroup", "EnvGroup"], output_dir="/nowhere", steps=[1, 3])
for worker in ("ActorGroup:1", "EnvGroup:0", "RolloutGroup:0"):
    words = Cluster.modify_profile_context("python3", worker_name=worker, profiling_cfg=config)
    print(words.replace(" -o ", " ").split()[-2:] if "nsys" in words else words)

class Runner:
    global_step = 4
    timer = ScopedTimer(reduction="max", sync_cuda=False)

    def run(self):
        nobody = SimpleNamespace(_workers=[], _world_size=0, _execution_ranks=[], _worker_cls=Runner)
        for _ in range(2):
            WorkerGroupFunc(nobody, "start_profile")(self.global_step)
            with self.timer("step"):
                with self.timer("generate_rollouts"):
                    pass
                self.global_step += 1
            WorkerGroupFunc(nobody, "stop_profile")()
            self.timer.consume_durations()
        WorkerGroupFunc(nobody, "start_profile")(8)
        WorkerGroupFunc(nobody, "stop_profile")()

Runner().run()
"""


def test_its_own_nsys_gives_way_or_writes_home_and_steps_are_counted_from_1(tmp_path: Path):
    done, rows = run_program(OWN_PROFILER, tmp_path, "", RLPROF_WORKERS="ActorGroup", RLPROF_STEPS="2")
    home = tmp_path / "run" / "profiles" / "nsight" / "EnvGroup" / "rank0"
    kept = str([f"{home}/rlinf_profile_EnvGroup_0_%p", "python3"])
    request, *words = done.stdout.splitlines()[-4:]
    assert words == ["python3", kept, "python3"], done.stderr
    found = request_from_json(request)
    [spec] = found.captures
    assert (spec.workers, str(spec.steps), spec.flags) == (("ActorGroup",), "2,4", ("gpuctxsw",))
    assert found.output_dir == "/its"
    assert dict(spec.options) == {"t": "nvtx"}  # no capture range: a session
    steps = [row for row in rows if row["event"] == "step"]
    assert [row["step"] for row in steps] == [5, 6, 9]
    assert [[name for name, *_ in row["phases"]] for row in steps] == [["generate_rollouts"]] * 2 + [[]]


OWN_ROCPROF = """
import json
from rlinf.scheduler import Cluster
from rlinf.scheduler.hardware.accelerators.amd_gpu import RocprofSysConfig
from rlprof_ops.trainers.rlinf.import_rlinf import request_of

config = RocprofSysConfig(worker_groups=["ActorGroup", "EnvGroup"], args={"F": "true"}, output_dir=OUT,
                          env={"ROCPROFSYS_SAMPLING_FREQ": "9"}, steps=[1])
print(request_of(config).to_json())
for worker in ("ActorGroup:1", "EnvGroup:0"):
    given = {"worker_name": worker, "profiling_cfg": config}
    words = Cluster.modify_profile_context(python_interpreter_path="python3", **given)
    print(json.dumps([words, Cluster.get_profiling_env_vars_for_worker(**given)]))
"""


def test_its_own_rocprof_sys_gives_way_with_what_it_would_set(tmp_path: Path):
    """RLinf's wrap gives rocprof-sys the interpreter as a script; ours gets its block, and nothing beside."""
    program = OWN_ROCPROF.replace("OUT", repr(str(tmp_path / "out")))
    asked = {"RLPROF_WORKERS": "ActorGroup", "RLPROF_STEPS": "2", "RLPROF_BACKEND": "rocprof_sys"}
    done, _ = run_program(program, tmp_path, "", **asked)
    request, ours, theirs = done.stdout.splitlines()[-3:]
    [spec] = request_from_json(request).captures
    assert (spec.backend, str(spec.steps), spec.options) == ("rocprof_sys", "2", {"F": "true"}), done.stderr
    assert spec.env == {"ROCPROFSYS_SAMPLING_FREQ": "9"}
    assert json.loads(ours) == ["python3", {}]
    words, variables = json.loads(theirs)
    assert words.startswith("rocprof-sys-python ") and "ROCPROFSYS_OUTPUT_PATH" in variables


def test_its_own_nsys_stays_off_for_whom_an_earlier_attempt_brought_all_home(tmp_path: Path):
    """A requeued job: RLinf itself would take again, with its whole block, what is home."""
    whole = load_request(env={"RLPROF_WORKERS": "ActorGroup", "RLPROF_STEPS": "2"}).to_json()
    done, _ = run_program(OWN_PROFILER, tmp_path, "", RLPROF_WHOLE_REQUEST_JSON=whole)
    actor, others, _ = done.stdout.splitlines()[-3:]
    assert actor == "python3" and "rlinf_profile_EnvGroup" in others, done.stderr


def run_program(
    program: str, folder: Path, path: str, **asked: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """A program with RLinf and our adapters, as the job's request asks; its output and events."""
    node = folder / "node"
    node.mkdir()
    request = load_request(env=asked).to_json()
    asked |= {
        "RLPROF_NODE_DIR": str(node),
        "RLPROF_RUN_DIR": str(folder / "run"),
        "RLPROF_REQUEST_JSON": request,
    }
    done = subprocess.run(
        [str(environments.ensure("rlinf").python), "-P", "-W", "ignore", "-c", program],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": python_path(path or None), **asked},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    rows = [json.loads(line) for path in node.rglob("*.jsonl") for line in path.open()]
    return done, rows


# ---- versions that the adapter does not know

PROGRAM = """
import rlinf.scheduler.cluster.cluster, rlinf.scheduler.worker.worker_group, rlinf.utils.distributed
print("imported")
"""
RENAMED = {"ScopedTimer": "SectionTimer", "WorkerGroupFunc": "GroupFunction", "modify_profile_context": "put"}


def test_renamed_functions_are_a_line_each_and_rlinf_works_on(tmp_path: Path):
    installed = environments.ensure("rlinf")
    [package] = installed.folder.glob("venv/lib/python3*/site-packages/rlinf")
    shutil.copytree(package, tmp_path / "lib" / "rlinf", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / "lib").rglob("*.py"):
        text = changed = path.read_text()
        for old, new in RENAMED.items():
            changed = re.sub(rf"\b{old}\b", new, changed)
        if changed != text:
            path.write_text(changed)
    asked = {"RLPROF_STEPS": "2", "RLPROF_WORKERS": "*"}
    done, rows = run_program(PROGRAM, tmp_path, str(tmp_path / "lib"), **asked)
    assert done.stdout.endswith("imported\n"), done.stderr
    lines = [line for line in done.stderr.splitlines() if "is left as it is" in line]
    assert all(any(f"has no {old}" in line for line in lines) for old in RENAMED), lines
    assert len(lines) == 3, "\n".join(lines)
    assert [row["event"] for row in rows] == ["adapter_unknown"] * 3
