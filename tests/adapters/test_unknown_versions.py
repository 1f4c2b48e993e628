"""A version of a trainer that no adapter knows runs as it would without us: the functions and classes that
adapters follow are replaced by random ones, and called with and without the adapter.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import re
import string
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from rlprof_ops import trainers
from rlprof_ops.runtime import follower, step_clock
from rlprof_ops.runtime.on_demand import torch_fr
from rlprof_ops.runtime.ranges import actor_calls
from rlprof_ops.trainers.import_hooks import _OURS, adapt

MODULES = _OURS | trainers.followed({})
# What each adapter follows: a module's function, or a class and its methods.
FOLLOWED = (
    {
        "transformers.trainer": {"Trainer": ("training_step", "get_batch_samples")},
        "transformers.trainer_callback": {
            "CallbackHandler": ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")
        },
        "trl.extras.profiling": {"ProfilingContext": ("__enter__", "__exit__")},
        "vllm.v1.worker.worker_base": {"WorkerWrapperBase": ("init_worker", "execute_model")},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": ("sample_tokens",)},
        "vllm.v1.executor.ray_utils": {"": ("initialize_ray_cluster",)},
        "vllm.v1.engine.output_processor": {
            "OutputProcessor": ("add_request", "process_outputs", "abort_requests")
        },
        "uvicorn.server": {"Server": ("startup",)},
        "nemo_rl.algorithms.async_utils.replay_buffer": {"ReplayBufferImpl": ("sample",)},
        "nemo_rl.utils.nsys": {"": ("wrap_with_nvtx_name", "maybe_gpu_profile_step")},
        "nemo_rl.utils.timer": {"Timer": ("start", "stop", "time")},
        "rlinf.scheduler.cluster.cluster": {"Cluster": ("modify_profile_context",)},
        "rlinf.scheduler.worker.worker": {"Worker": ("timer",)},
        "rlinf.scheduler.worker.worker_group": {"WorkerGroupFunc": ("__call__",)},
        "rlinf.utils.distributed": {"ScopedTimer": ("__call__",)},
        "verl.utils.profiler.profile": {"DistProfiler": ("annotate",)},
        "verl.utils.profiler.performance": {"": ("_timer",)},
        "verl.single_controller.ray.base": {"": ("create_colocated_worker_cls",)},
        "verl.workers.engine.automodel.transformer_impl": {"AutomodelEngineWithLMHead": ("forward_step",)},
        "verl.workers.engine.fsdp.transformer_impl": {"FSDPEngineWithLMHead": ("forward_step",)},
        "verl.workers.engine.megatron.transformer_impl": {"MegatronEngineWithLMHead": ("forward_step",)},
        "verl.workers.engine.torchtitan.transformer_impl": {"TorchTitanEngineWithLMHead": ("forward_step",)},
        "verl.workers.engine_workers": {"ActorRolloutRefWorker": ("update_weights",)},
        "verl.trainer.ppo.v1.trainer_base": {"PPOTrainer": ("_compute_metrics",)},
        "verl.experimental.fully_async_policy.detach_utils": {"": ("assemble_batch_from_rollout_samples",)},
        "openrlhf.trainer.ppo_trainer": {
            "BasePPOTrainer": ("__init__", "train_step", "ppo_train", "broadcast_to_vllm")
        },
        "openrlhf.trainer.ppo_utils.experience_maker": {"RemoteExperienceMaker": ("make_experience_batch",)},
        "openrlhf.trainer.ppo_utils.samples_generator": {"SamplesGenerator": ("generate_samples",)},
        "openrlhf.trainer.ray.launcher": {"BaseModelActor": ("execute_batch",)},
        "openrlhf.trainer.ray.ppo_actor": {"ActorPPOTrainer": ("ppo_train", "broadcast_to_vllm")},
        "openrlhf.trainer.ray.ppo_critic": {"CriticPPOTrainer": ("ppo_train",)},
        "skyrl.train.utils.utils": {"Timer": ("__enter__", "__exit__", "__aenter__", "__aexit__")},
        "skyrl.train.fully_async_trainer": {
            "FullyAsyncRayPPOTrainer": ("convert_generation_group_mini_batch_to_training_input",)
        },
        "skyrl.backends.skyrl_train.workers.worker": {
            "PolicyWorkerBase": ("forward", "forward_backward", "optim_step"),
            "CriticWorkerBase": ("forward", "forward_backward", "optim_step"),
            "RefWorkerBase": ("forward",),
        },
        "skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker": {
            "FSDPPolicyWorkerBase": ("broadcast_to_inference_engines",)
        },
        "skyrl.backends.skyrl_train.workers.megatron.megatron_worker": {
            "MegatronPolicyWorkerBase": ("forward", "forward_backward", "broadcast_to_inference_engines"),
            "MegatronRefWorkerBase": ("forward",),
        },
        "accelerate.accelerator": {"Accelerator": ("accumulate", "backward", "prepare")},
        "accelerate.data_loader": {"DataLoaderShard": ("__iter__",)},
        "accelerate.optimizer": {"AcceleratedOptimizer": ("step",)},
        "areal.infra.scheduler.local": {"": ("run_with_streaming_logs",)},
        "areal.trainer.dpo_trainer": {"DPOTrainer": ("_save_perf_tracer",)},
        "areal.trainer.ppo.actor": {"PPOActor": ("_ppo_update",)},
        "areal.trainer.rl_trainer": {"PPOTrainer": ("_save_perf_tracer", "_onload_rollout")},
        "areal.trainer.rw_trainer": {"RWTrainer": ("_save_perf_tracer",)},
        "areal.trainer.sft_trainer": {"SFTTrainer": ("_save_perf_tracer",)},
        "areal.utils.perf_tracer": {"": ("trace_perf",)},
        "areal.utils.stats_tracker": {"DistributedStatsTracker": ("record_timing",), "": ("record_timing",)},
        "roll.distributed.scheduler.decorator": {"": ("register",)},
        "roll.pipeline.agentic.agentic_pipeline": {"Timer": ("__enter__", "__exit__")},
        "roll.pipeline.agentic.agentic_rollout_pipeline": {"Timer": ("__enter__", "__exit__")},
        "roll.pipeline.distill.distill_pipeline": {"Timer": ("__enter__", "__exit__")},
        "roll.pipeline.distill.distill_vlm_pipeline": {"Timer": ("__enter__", "__exit__")},
        "roll.pipeline.dpo.dpo_pipeline": {"Timer": ("__enter__", "__exit__")},
        "roll.pipeline.rlvr.rlvr_pipeline": {"Timer": ("__enter__", "__exit__")},
        "roll.pipeline.rlvr.rlvr_vlm_pipeline": {"Timer": ("__enter__", "__exit__")},
        "roll.pipeline.sft.sft_pipeline": {"Timer": ("__enter__", "__exit__")},
        "sglang.srt.managers.tokenizer_manager": {
            "TokenizerManager": ("_handle_batch_output", "_handle_abort_req")
        },
        "slime.observability.timer": {"Timer": ("start", "end")},
        "slime.ray.actor_group": {"RayTrainGroup": ("_allocate_gpus_for_actor",)},
        "slime.backends.megatron_utils.actor": {"MegatronTrainRayActor": ("init", "train_critic")},
        "torch.cuda.graphs": {"CUDAGraph": ("capture_begin", "capture_end")},
        "torch.cuda.profiler": {"": ("start", "stop")},
        "torch.distributed.distributed_c10d": {"": ("init_process_group",)},
        "ray.actor": {"ActorClass": ("_remote",)},
        "ray._private.function_manager": {"FunctionActorManager": ("_make_actor_method_executor",)},
    }
    | {
        f"{root}.{module}": followed
        for root in ("lightning.pytorch", "pytorch_lightning")
        for module, followed in {
            "core.module": {"LightningModule": ("manual_backward",)},
            "core.optimizer": {"LightningOptimizer": ("step",)},
            "loops.evaluation_loop": {"_EvaluationLoop": ("run",)},
            "loops.optimization.automatic": {"_AutomaticOptimization": ("run",)},
            "loops.optimization.manual": {"_ManualOptimization": ("run",)},
            "loops.training_epoch_loop": {
                "_TrainingEpochLoop": ("advance", "on_advance_end", "_on_before_fetch", "_on_after_fetch")
            },
            "trainer.call": {"": ("_call_strategy_hook",)},
        }.items()
    }
    | {
        f"{root}.strategies.launchers.subprocess_script": {
            "": ("_basic_subprocess_cmd", "_hydra_subprocess_cmd")
        }
        for root in ("lightning.fabric", "lightning_fabric")
    }
)
PACKAGES = {name for name in MODULES if "." not in name}  # followed for their rules alone


@pytest.fixture(autouse=True)
def no_word_fits_at_the_recursion_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that gives itself back without end leaves coroutines that nobody awaits where Python cannot
    even warn of them, and pytest would call that a failure.
    """
    said = sys.unraisablehook

    def say(raised: Any) -> None:
        if not isinstance(raised.exc_value, RecursionError):
            said(raised)

    monkeypatch.setattr(sys, "unraisablehook", say)


def test_every_followed_module_is_tried_here():
    assert set(MODULES) == set(FOLLOWED) | PACKAGES


class Hostile(Exception):
    """An argument, a result or an error that gives nothing away."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("hands off")

    def __str__(self) -> str:
        raise RuntimeError("hands off")

    __bool__ = __len__ = __iter__ = __int__ = __str__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("hands off")

    def __repr__(self) -> str:
        return "hostile"


class BusyProfiler:
    """In the middle of a step, so that adapters do all they do."""

    active = any_open = True
    leads = closed = False

    def start_step(self, step: int) -> bool:
        return False

    def stop_step(self, step: int | None = None) -> None: ...

    def visit(self) -> None: ...

    def range(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    task = range


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    monkeypatch.setenv("RLPROF_NSYS_SESSION", "s")
    monkeypatch.setenv("RLPROF_REQUEST_JSON", '{"captures": [{"workers": ["*"], "steps": "1:9"}]}')
    monkeypatch.setattr(follower, "follow", BusyProfiler)
    monkeypatch.setattr(step_clock, "ask_window", lambda what: False)
    monkeypatch.setattr(actor_calls, "_nvtx", lambda: None)
    for trainer in trainers.builtin():
        adapter = importlib.import_module(f"rlprof_ops.trainers.{trainer}.adapter")
        for state, before in list(vars(adapter).items()):
            if hasattr(before, "profiler") and hasattr(before, "step"):
                fresh = type(before)()
                fresh.profiler, fresh.step = BusyProfiler(), 1
                monkeypatch.setattr(adapter, state, fresh)
        monkeypatch.setattr(adapter, "leader", lambda *_: BusyProfiler(), raising=False)
    monkeypatch.setattr(torch_fr, "_watch", lambda *_: None)  # a thread that would stay
    with mock.patch.dict(os.environ):  # what torch is told by its variables
        yield


# Bodies, by the nature of the function. `log` counts calls; `result` is what a call returns or raises.
BODIES = {
    "plain": ("def", "return give(log, {given})"),
    "coroutine": ("async def", "await sleep(0); return give(log, {given})"),
    "generator": ("def", "got = yield give(log, {given}); return got"),
    "context manager": ("@contextmanager\ndef", "yield give(log, {given})"),
    "asynchronous generator": ("async def", "yield give(log, {given})"),
    "decorators": ("def", "give(log, {given}); return lambda function: function"),
    "wrapping decorators": (
        "def",
        "give(log, {given}); return lambda function: lambda *a, **k: [function(*a, **k)]",
    ),
    "awaitable": ("def", "give(log, {given}); return later(3)"),
}
AS_KIND: dict[str, Callable[[Any], Any]] = {
    "staticmethod": staticmethod, "classmethod": classmethod, "property": property, "value": lambda _: 3
}  # fmt: skip
CLASSES = ("plain", "slots", "no attributes", "metaclass", "frozen")
KINDS = ("method", "staticmethod", "classmethod", "property", "value")
VALUES = st.one_of(
    st.integers(0, 3),
    st.sampled_from(["step", "total_step_time", "x", ""]),
    st.none(),
    st.just("HOSTILE"),
    st.just("FUNCTION"),
)


@st.composite
def signatures(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A parameter list as text, and the names in it."""
    names = iter(draw(st.permutations([*string.ascii_lowercase[:6], "name", "step", "args", "label"])))
    parts: list[str] = []
    used: list[str] = []

    def some(most: int, defaults: bool) -> bool:
        for _ in range(draw(st.integers(0, most))):
            used.append(next(names))
            defaults = defaults or draw(st.booleans())
            parts.append(f"{used[-1]}={draw(st.integers(0, 9))}" if defaults else used[-1])
        return defaults

    defaults = some(2, False)
    if parts and draw(st.booleans()):
        parts.append("/")
    some(2, defaults)
    if draw(st.booleans()):
        used.append("rest")
        parts.append("*rest")
        some(2, True)
    if draw(st.booleans()):
        used.append("more")
        parts.append("**more")
    return ", ".join(parts), used


@st.composite
def versions(draw: st.DrawFn) -> dict[str, Any]:
    text, used = draw(signatures())
    return {
        "parameters": text,
        "names": used,
        "nature": draw(st.sampled_from(sorted(BODIES))),
        "kind": draw(st.sampled_from(KINDS)),
        "class": draw(st.sampled_from(CLASSES)),
        "overridden": draw(st.booleans()),
        "outcome": draw(st.one_of(VALUES, st.sampled_from([ValueError("no"), SystemExit(3), Hostile()]))),
        "arguments": draw(st.lists(VALUES, max_size=4)),
        "named": draw(
            st.dictionaries(st.sampled_from([*used, "name", "step", "unknown"]), VALUES, max_size=2)
        ),
    }


def real(value: Any) -> Any:
    return {"HOSTILE": Hostile(), "FUNCTION": len}.get(value, value) if isinstance(value, str) else value


async def later(value: int) -> int:
    return value


def a_module(name: str, version: dict[str, Any], log: list[Any]) -> types.ModuleType:
    """A module of a trainer's with what adapters follow there, as `version` has it."""

    def give(log: list[Any], given: Any) -> Any:
        log.append(repr(given))
        outcome = version["outcome"]
        if isinstance(outcome, BaseException):
            raise outcome
        return real(outcome)

    space = {"give": give, "log": log, "later": later, "sleep": asyncio.sleep,
             "contextmanager": contextlib.contextmanager}  # fmt: skip
    module = types.ModuleType(name)

    def function(called: str, bound: bool) -> Any:
        start, body = BODIES[version["nature"]]
        parameters = ", ".join(filter(None, ["self_" if bound else "", version["parameters"]]))
        given = "(" + "".join(f"{n}, " for n in version["names"]) + ")"
        local = dict(space)
        exec(f"{start} {called}({parameters}):\n  " + body.format(given=given).replace("; ", "\n  "), local)
        return local[called]

    for owner, methods in FOLLOWED[name].items():
        if not owner:
            for method in methods:
                setattr(module, method, function(method, False))
            continue
        members: dict[str, Any] = {"__repr__": lambda self: "one"}
        kind = version["kind"]
        for method in methods:
            made = function(method, kind in ("method", "classmethod"))
            members[method] = AS_KIND.get(kind, lambda function: function)(made)
        meta = type
        if version["class"] == "slots":
            members["__slots__"] = ()
        elif version["class"] == "no attributes":
            members["__getattr__"] = Hostile.__getattr__
        elif version["class"] in ("metaclass", "frozen"):
            frozen = {"__setattr__": lambda cls, *_: cls.no_such} if version["class"] == "frozen" else {}
            meta = type("Meta", (type,), {"__eq__": Hostile.__eq__, "__hash__": None, **frozen})
        setattr(module, owner, meta(owner, (), members))
    return module


def described(value: Any) -> Any:
    """What a call came to, with coroutines, generators, context managers and decorators run to their end.
    Wrong arguments of a generator or a coroutine are an error when it runs, or when it is called: the same
    here."""
    if inspect.iscoroutine(value):
        return run("coroutine", lambda: stepped(value))
    if inspect.isgenerator(value):
        return run("generator", lambda: [next(value), stopped(lambda: value.send("sent"))])
    if inspect.isasyncgen(value):
        return run("asynchronous generator", lambda: stepped(value.asend(None)))
    if hasattr(type(value), "__enter__"):
        return run(type(value).__name__, lambda: entered(value))
    if inspect.isfunction(value):
        made = [driven(lambda f=f: value(f)) for f in (task, later, 3)]
        return "function", value.__qualname__.rpartition(".")[2], made
    return type(value).__name__, re.sub(r" at 0x\w+", "", repr(value))


def run(nature: str, call: Callable[[], Any]) -> Any:
    came_to = driven(call)
    return came_to if came_to[0] == "TypeError" else (nature, came_to)


def task(*arguments: Any, **named: Any) -> Any:
    return "ran", arguments, sorted(named)


def stepped(coroutine: Any) -> Any:
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value


def stopped(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StopIteration as end:
        return "ended", end.value


def entered(context: Any) -> Any:
    with context as value:
        return value


def driven(call: Callable[[], Any]) -> Any:
    try:
        return described(call())
    except BaseException as error:
        return type(error).__name__, "" if isinstance(error, Hostile) else str(error)


def nature(function: Any) -> Any:
    """What somebody can see of a function without a call."""
    checks = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    inner = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
    if not inspect.isfunction(inner):
        return type(function)
    seen = [getattr(inner, name) for name in ("__name__", "__qualname__", "__module__", "__doc__")]
    return (type(function), *seen, [check(inner) for check in checks], str(inspect.signature(inner)),
            str(inspect.getfullargspec(inner)).replace("kwds", "kwargs"))  # fmt: skip


def told(name: str, version: dict[str, Any], adapted: bool) -> list[Any]:
    """All that a trainer sees of such a module: what functions are, what calls return, how often they run."""
    log: list[Any] = []
    module = a_module(name, version, log)
    if adapted:
        adapt(name, module, MODULES[name])
    seen: list[Any] = []
    arguments, named = (
        [real(v) for v in version["arguments"]],
        {k: real(v) for k, v in version["named"].items()},
    )
    for owner, methods in FOLLOWED[name].items():
        if owner:
            cls = getattr(module, owner)
            if version["overridden"]:  # by a subclass that calls no super()
                cls = type(cls)("Mine", (cls,), {methods[0]: lambda self, *a, **k: "mine"})
            holder = cls.__new__(cls)
            seen.append(sorted(getattr(holder, "__dict__", ())))
        else:
            cls = holder = module
        for method in methods:
            seen.append(nature(inspect.getattr_static(cls, method)))
            seen.append(driven(lambda h=holder, m=method: getattr(h, m)(*arguments, **named)))
        if owner:
            seen.append(sorted(getattr(holder, "__dict__", ())))
    return [*seen, *log, len(log)]


@seed(1)
@settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(version=versions())
def test_random_versions_run_as_without_us(version: dict[str, Any]):
    for name in FOLLOWED:
        with_us, without = (told(name, version, adapted) for adapted in (True, False))
        assert [(name, *pair) for pair in zip(with_us, without, strict=True) if pair[0] != pair[1]] == []
