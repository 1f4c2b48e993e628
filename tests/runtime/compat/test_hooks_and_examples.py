"""Ways into other trainers: NeMo RL's hook classes, the launcher for torchrun, and the documents'
examples.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.real_nsys import nvtx_ranges

from rlprof_ops.request import request_from_dict
from rlprof_ops.runtime.clock_file import ClockFile, ClockState
from rlprof_ops.runtime.compat import nemo_rl_hooks
from rlprof_ops.runtime.compat.nemo_rl_hooks import PolicyProfiler, RolloutProfiler, step_number

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


class DTensorPolicyWorkerV2:
    """By its name alone one of NeMo RL's workers."""

    def profiler(self):
        return PolicyProfiler(rank=1)


@pytest.mark.parametrize(
    ("workers", "name"),
    [("*policy*", "dtensor_policy_worker_v2"), ("dtensor_policy_worker_v2", "dtensor_policy_worker_v2"),
     ("policy_worker", "policy_worker"), ("*vllm*", "dtensor_policy_worker_v2")],
)  # fmt: skip
def test_a_hooks_worker_is_the_class_that_makes_it(monkeypatch, workers, name):
    monkeypatch.delenv("RLPROF_WORKER", raising=False)
    request = request_from_dict({"captures": [{"workers": workers, "steps": "3", "backend": "torch"}]})
    monkeypatch.setenv("RLPROF_REQUEST_JSON", request.to_json())
    seen = []
    monkeypatch.setattr(nemo_rl_hooks.profiler, "from_env", lambda worker, rank: seen.append((worker, rank)))

    DTensorPolicyWorkerV2().profiler()
    monkeypatch.setenv("RLPROF_WORKER", "critic")
    DTensorPolicyWorkerV2().profiler()

    assert seen == [(name, 1), ("critic", 1)]


def test_a_step_without_a_number_is_the_one_that_the_driver_told(recorder, monkeypatch):
    _, fake = recorder(steps="52:54")
    clock = ClockFile(os.environ["RLPROF_NODE_DIR"], write=True)
    hooks = PolicyProfiler(rank=0)

    for step in (51, 52, 53, 54):  # resumed at 51
        clock.store(ClockState(step, 0, True, 0))
        hooks.begin_train_step()
        hooks.finish_train_step()
    hooks.close()

    assert " ".join(fake.log) == "[ +step 52 +train -train -step 52 +step 53 +train -train -step 53 ]"


def test_without_a_driver_steps_are_counted_from_where_it_says(recorder):
    _, fake = recorder(steps="52")
    hooks = PolicyProfiler(rank=0, first_step=51)
    for _ in range(3):
        hooks.begin_train_step()
        hooks.finish_train_step()
    assert " ".join(fake.log) == "[ +step 52 +train -train -step 52 ]"


def test_training_steps_of_nemo_rls_hooks_are_windows(recorder, events):
    _, fake = recorder(steps="2:4")
    hooks = PolicyProfiler(rank=0)

    for _ in range(4):
        hooks.begin_train_step()
        hooks.finish_train_step()
    hooks.close()
    hooks.close()

    assert " ".join(fake.log) == "[ +step 2 +train -train -step 2 +step 3 +train -train -step 3 ]"
    assert len(events("ended")) == 1


def test_an_aborted_step_is_partial_and_the_next_goes_on(recorder, events):
    _, fake = recorder(steps="1,2")
    hooks = PolicyProfiler(rank=0)

    hooks.begin_train_step(step=1)
    hooks.abort_train_step("out of memory")
    hooks.abort_train_step("again")
    hooks.begin_train_step(step=3)
    hooks.finish_train_step()

    assert [event["partial"] for event in events("closed")] == [True]
    assert fake.log.count("+train") == fake.log.count("-train")
    hooks.close()


def test_a_wrong_order_is_an_error_of_the_caller(recorder):
    recorder()
    hooks = PolicyProfiler(rank=0)

    with pytest.raises(RuntimeError, match="finish_train_step without a begin before it"):
        hooks.finish_train_step()
    hooks.begin_train_step()
    with pytest.raises(RuntimeError, match="step 1 was begun and neither finished nor aborted"):
        hooks.begin_train_step()
    hooks.close()


def test_rollouts_are_named_by_their_step(recorder, events):
    recorder(workers="*", steps="7")
    hooks = RolloutProfiler(rank=0)
    hooks.end_engine_initialization(hooks.begin_engine_initialization())

    hooks.begin_rollout(step_id="step7/attempt2")
    hooks.finish_rollout()
    hooks.close()

    assert [(event["steps"], event["seen"]) for event in events("closed")] == [([7, 8], [7])]


@pytest.mark.parametrize(("step_id", "number"), [("step7/attempt2", 7), ("step12", 12), (3, 3), (None, None)])
def test_step_ids(step_id, number):
    assert step_number(step_id) == number


def test_a_strange_step_id_is_named():
    with pytest.raises(ValueError, match=r"step_id is 'rollout-3'"):
        step_number("rollout-3")


def run_example(name, tmp_path, *prefix, **variables):
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RLPROF_STEPS": "3:5",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ADDRESS": "",
        **variables,
    }
    done = subprocess.run(
        [*prefix, sys.executable, str(EXAMPLES / name)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    print(done.stderr)  # pytest shows it beside a report that is missing
    return sorted(
        path.name.rsplit("_", 2)[0]
        for path in (tmp_path / "rlprof-profiles").rglob("*_rank*.*")
        if "profiles/" in str(path.relative_to(tmp_path))
        and path.suffix != ".jsonl"
        and path.suffix != ".step"
    )


@pytest.mark.torch
def test_the_callbacks_example(tmp_path):
    assert run_example("callbacks.py", tmp_path, RLPROF_WORKERS="trainer", RLPROF_BACKEND="torch") == [
        "trainer_rank0_step3-4"
    ]


@pytest.mark.torch
@pytest.mark.nsys
def test_the_torchrun_example_under_its_launcher(tmp_path):
    """As torchrun starts rank 1 of it: `--no-python` and the launcher in front."""
    reports = run_example(
        "torchrun.py",
        tmp_path,
        sys.executable,
        "-m",
        "rlprof_ops.rayenv.wrap",
        "--worker",
        "trainer",
        RLPROF_WORKERS="trainer",
        RLPROF_RANKS="1",
        RLPROF_OPTIONS='{"t": "nvtx"}',
        RANK="1",
        WORLD_SIZE="2",
    )

    assert reports == ["trainer_rank1_step3-4"]
    (report,) = (tmp_path / "rlprof-profiles").rglob("*.nsys-rep")
    assert nvtx_ranges(report, tmp_path, ended=True) == ["step 3", "step 4", "train", "train"]


@pytest.mark.ray
@pytest.mark.torch
def test_the_ray_example(tmp_path, monkeypatch):
    ray_dir = f"/tmp/rlprof-e{os.getpid()}"
    try:
        reports = run_example(
            "ray_actor_loop.py",
            tmp_path,
            RLPROF_WORKERS="*_worker",
            RLPROF_BACKEND="torch",
            RLPROF_RUN_DIR=str(tmp_path / "rlprof-profiles"),
            RAY_TMPDIR=ray_dir,
        )
    finally:
        shutil.rmtree(ray_dir, ignore_errors=True)

    assert reports == ["policy_worker_rank0_step3-4", "policy_worker_rank1_step3-4"]


def callbacks_example():
    spec = importlib.util.spec_from_file_location("callbacks", EXAMPLES / "callbacks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lightning_callback_needs_no_lightning(recorder):
    _, fake = recorder(workers="trainer", steps="2")
    module = callbacks_example()
    callback = module.LightningRlprof()
    trainer = SimpleNamespace(global_rank=0, world_size=1, global_step=0)
    callback.on_train_start(trainer, None)
    for batch in range(3):
        callback.on_train_batch_start(trainer, None, None, batch)
        callback.on_train_batch_end(trainer, None, None, None, batch)
        trainer.global_step += 1
    callback.on_exception(trainer, None, ValueError())
    callback.on_train_end(trainer, None)

    assert " ".join(fake.log) == "[ +step 2 -step 2 ]"


class Accumulating:
    """What the loop uses of `accelerate.Accelerator`, with two batches to an optimizer step."""

    process_index, num_processes, sync_gradients = 0, 1, True
    _batches = 0

    @contextlib.contextmanager
    def accumulate(self, *models):
        self._batches += 1
        self.sync_gradients = self._batches % 2 == 0
        yield


def test_the_loop_for_accelerate_steps_with_the_optimizer(recorder):
    _, fake = recorder(workers="trainer", steps="2")
    trained = []

    callbacks_example().accelerate_loop(Accumulating(), range(6), trained.append)

    assert trained == list(range(6))
    assert " ".join(fake.log) == "[ +step 2 +train -train +train -train -step 2 ]"


def test_the_loop_for_accelerate_hands_the_trainings_own_error_on(recorder):
    _, fake = recorder(workers="trainer", steps="1")
    error = ValueError("mine")

    def train(batch):
        raise error

    with pytest.raises(ValueError) as raised:
        callbacks_example().accelerate_loop(Accumulating(), range(3), train)

    assert raised.value is error
    assert " ".join(fake.log) == "[ +step 1 +train -train -step 1 ]"
