"""NeMo RL: steps and phases of its driver from `Timer`, roles and ranks of its Ray workers, tasks of these.

A step is `total_steps + 1` (asynchronous GRPO: `step + 1`, the number of the training step), from
`maybe_gpu_profile_step` to the end of the driver's own `total_step_time`. Where generation runs beside
training it is for a later step, and is shown where it ran. Phases are the other labels of that timer, by
NeMo RL's own names. The tasks of a worker are what `wrap_with_nvtx_name` names.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import re
import sys
from types import ModuleType
from typing import Any

from rlprof_ops.frameworks.adapter import attribute, expect, leader, safely, wrap
from rlprof_ops.frameworks.tasks import as_task
from rlprof_ops.runtime.process.actor_labels import NOBODY, NewActor, add_helpers, add_rule, snake_case

DRIVER = "driver"
_STEP = "total_step_time"
# `<group>-grp<engine>-<n>`, the actors of one engine (RayWorkerGroup of tied workers).
_ENGINE = re.compile(r"-grp(\d+)-(\d+)$")
_ENGINES = ("vllm_", "trtllm_")
# Worker groups of the same class as the policy, by the beginning of their actors' names.
_APART = ("teacher", "reward_model")


class _Driver:
    """The step of this process and the phases that are open in it."""

    def __init__(self) -> None:
        self.profiler: Any = None
        self.step: int | None = None
        self.open: dict[tuple[int, str], Any] = {}

    def begin(self, step: int) -> None:
        """Step `step` begins, unless it has: NeMo RL says so for the policy and for its generation."""
        if step == self.step:
            return
        self.end()
        if self.profiler is None:
            self.profiler = leader(DRIVER)
            atexit.register(_connect_no_more)
        self.step = step
        self.profiler.start_step(step)

    def end(self) -> None:
        """The step that runs ends, and what is open in it before it."""
        if self.step is None:
            return
        while self.open:
            self.open.popitem()[1].__exit__(None, None, None)
        step, self.step = self.step, None
        self.profiler.stop_step(step)

    def timer_begins(self, timer: Any, label: str) -> None:
        if self.step is None or label == _STEP or not self.profiler.active:
            return
        found = self.open[id(timer), label] = self.profiler.range(label)
        found.__enter__()

    def timer_ends(self, timer: Any, label: str) -> None:
        if label == _STEP:
            self.end()
            return
        found = self.open.pop((id(timer), label), None)
        if found is not None:
            found.__exit__(None, None, None)


_DRIVER = _Driver()


def _connect_no_more() -> None:
    """Ray's calls stop to connect by themselves in an interpreter that ends.

    With NRL_NSYS_* NeMo RL keeps its policy until then (the handler in `maybe_gpu_profile_step`), and the
    policy's `__del__` asks for its workers after Ray's own shutdown. That connects once more, and the
    process now and then crashes with the connection's threads in it. Without, `__del__` says that Ray is
    gone.
    """
    hook: Any = sys.modules.get("ray._private.auto_init_hook")
    if hook is not None and hasattr(hook, "enable_auto_connect"):
        hook.enable_auto_connect = False


def install(name: str, module: ModuleType) -> None:
    """Follow one of NeMo RL's modules."""
    if name == "nemo_rl":
        add_rule(role_of)
        add_helpers("isolated_worker_initializer")
        expect(module, "utils.timer", "utils.nsys")
    elif name == "nemo_rl.utils.timer":
        timer = attribute(module, "Timer")
        attribute(timer, "stop")
        wrap(timer, "start", _start)
        wrap(timer, "stop", _stop)
        wrap(timer, "time", _time)
    elif name == "nemo_rl.utils.nsys":
        wrap(module, "wrap_with_nvtx_name", _named_task)
        wrap(module, "maybe_gpu_profile_step", _profile_step)


def role_of(actor: NewActor) -> tuple[str, int | None] | None:
    """The worker's name as NeMo RL writes it, with its RANK; None for what is no worker of a group.

    An engine over several GPUs has an actor for each, of which the first alone holds it (`is_model_owner`):
    its rank is the engine's number, and the others are nobody's.
    """
    if not actor.module.startswith(("nemo_rl.models.", "nemo_rl.modelopt.models.")):
        return None
    worker = snake_case(actor.class_name).replace("sg_lang", "sglang").replace("vllm_quant_", "vllm_")
    engine = _ENGINE.search(actor.name) if worker.startswith(_ENGINES) else None
    if engine:
        return (worker, int(engine[1])) if engine[2] == "0" else NOBODY
    group = re.match(r"(\w+?)-(?:grp)?\d+-\d+$", actor.name)
    if group and group[1].startswith(_APART):
        worker = f"{group[1]}_{worker}"
    rank = actor.variables.get("RANK", "")
    return worker, int(rank) if rank.isdigit() else None


def _profile_step(before: Any) -> Any:
    def maybe_gpu_profile_step(*arguments: Any, **named: Any) -> Any:
        step = named.get("step", arguments[-1] if arguments else None)
        safely("NeMo RL", _DRIVER.begin, step) if isinstance(step, int) else None
        return before(*arguments, **named)

    return maybe_gpu_profile_step


def _start(before: Any) -> Any:
    def start(self: Any, label: str, *rest: Any, **named: Any) -> Any:
        done = before(self, label, *rest, **named)
        if _DRIVER.step is not None:
            safely("NeMo RL", _DRIVER.timer_begins, self, label)
        return done

    return start


def _stop(before: Any) -> Any:
    def stop(self: Any, label: str, *rest: Any, **named: Any) -> Any:
        if _DRIVER.step is not None:
            safely("NeMo RL", _DRIVER.timer_ends, self, label)
        return before(self, label, *rest, **named)

    return stop


def _time(before: Any) -> Any:
    """`Timer.time` of the single controller, which tells its step's number nowhere else."""

    def time(self: Any, label: str, *rest: Any, **named: Any) -> contextlib.AbstractContextManager[None]:
        if label == _STEP and _DRIVER.step is None:
            owner = sys._getframe(1).f_locals.get("self")
            steps = getattr(owner, "_train_steps", None)
            safely("NeMo RL", _DRIVER.begin, steps + 1) if isinstance(steps, int) else None
        found: contextlib.AbstractContextManager[None] = before(self, label, *rest, **named)
        return found

    return time


def _named_task(before: Any) -> Any:
    def wrap_with_nvtx_name(name: str) -> Any:
        decorate = before(name)

        def decorator(function: Any) -> Any:
            plain = not inspect.iscoroutinefunction(function) and not inspect.isgeneratorfunction(function)
            return as_task("NeMo RL", name)(decorate(function)) if plain else decorate(function)

        return decorator

    return wrap_with_nvtx_name
