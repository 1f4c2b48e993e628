"""NeMo RL: steps and phases of its driver from `Timer`, roles and ranks of its Ray workers, tasks of these.

A step is `total_steps + 1` (asynchronous GRPO: `step + 1`, the number of the training step). Its windows open
at `maybe_gpu_profile_step`; its time is the driver's own `total_step_time`. Where generation runs beside
training it is for a later step, and is shown where it ran. Phases are the other labels of that timer, by
NeMo RL's own names. The tasks of a worker are what `wrap_with_nvtx_name` names.

With dynamic sampling the loop leaves that timer for as long as its batch has too few samples, and tries the
same step again: all of it is one step.
"""

from __future__ import annotations

import atexit
import re
import sys
from types import ModuleType
from typing import Any, ClassVar

from rlprof_ops.runtime.process.actor_labels import NOBODY, NewActor, add_helpers, add_rule, snake_case
from rlprof_ops.runtime.process.hooks import (
    Intercept,
    UnknownShape,
    Watch,
    attribute,
    caller_locals,
    expect,
    follow,
    safely,
)
from rlprof_ops.runtime.process.worker_identity import DRIVER
from rlprof_ops.trainers import sample_versions
from rlprof_ops.trainers.tasks import LeadingLoop, decorated_tasks

_STEP = "total_step_time"
# `<group>-grp<engine>-<n>`, the actors of one engine (RayWorkerGroup of tied workers).
_ENGINE = re.compile(r"-grp(\d+)-(\d+)$")
_ENGINES = ("vllm_", "trtllm_")
# Worker groups of the same class as the policy, by the beginning of their actors' names.
_APART = ("teacher", "reward_model")


class _Driver(LeadingLoop):
    """The step of this process and the phases that are open in it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[tuple[int, str], Any] = {}
        self.is_timed = False

    def begin(self, step: int) -> None:
        """Step `step` begins, unless it has: NeMo RL says so for the policy and for its generation."""
        if self.profiler is None:
            self.lead(DRIVER)
            atexit.register(_connect_no_more)
        self.begin_step(step)

    def end_step(self) -> None:
        """The step that runs ends, and what is open in it before it."""
        while self.open:
            self.open.popitem()[1].__exit__(None, None, None)
        self.is_timed = False
        super().end_step()

    def timer_begins(self, timer: int, label: str) -> None:
        if self.step is None or not self.profiler.active:
            return
        if label == _STEP:  # what opens the windows, NeMo RL's calls of its workers too, is not the step's
            if not self.is_timed:
                self.profiler.start_step(self.step)
            self.is_timed = True
            return
        self.open[timer, label] = self.phase(label)

    def timer_ends(self, timer: int, label: str) -> None:
        if label == _STEP:
            self.end_step()
            return
        found = self.open.pop((timer, label), None)
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
        add_helpers("ray_worker_builder.isolated_worker_initializer")
        expect(module, "utils.timer", "utils.nsys")
    elif name == "nemo_rl.utils.timer":
        timer = attribute(module, "Timer")
        follow(timer, "stop", Watch("NeMo RL", _stops))
        follow(timer, "start", Watch("NeMo RL", _starts, _started))
        follow(timer, "time", Watch("NeMo RL", _times))
    elif name == "nemo_rl.algorithms.async_utils.replay_buffer":
        hook = Intercept("NeMo RL", _samples, _sampled)
        follow(attribute(module, "ReplayBufferImpl"), "sample", hook)
    elif name == "nemo_rl.utils.nsys":
        follow(module, "wrap_with_nvtx_name", decorated_tasks("NeMo RL"))
        follow(module, "maybe_gpu_profile_step", Watch("NeMo RL", _step_begins))


class _Buffer:
    """The version that each trajectory of a replay buffer was made with, before some are taken out."""

    versions: ClassVar[dict[int, int]] = {}


def _samples(arguments: tuple[Any, ...], _: dict[str, Any]) -> None:
    buffer = arguments[0]
    pairs = zip(buffer.trajectories, buffer.trajectory_versions, strict=True)
    _Buffer.versions = {id(trajectory): version for trajectory, version in pairs}


def _sampled(result: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    safely("NeMo RL", _trained, result, *arguments, **named)
    return result


def _trained(
    result: Any,
    _: Any,
    num_prompt_groups: int,
    current_weight_version: int,
    *__: object,
    **___: object,
) -> None:
    """Its version is the number of updates before the step."""
    versions, _Buffer.versions = _Buffer.versions, {}
    taken = [versions[id(each)] for each in (result or {}).get("trajectories", ())]
    made = [(version, version) for version in taken]
    sample_versions.trained(current_weight_version + 1, current_weight_version, made, unit="prompt groups")


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


def _step_begins(*arguments: object, **named: object) -> None:
    given = [value for value in (named.get("step"), *arguments) if type(value) is int]
    if not given:
        raise UnknownShape("maybe_gpu_profile_step is given no step")
    _DRIVER.begin(given[0])


def _starts(timer: object, label: str, *_: object, **__: object) -> tuple[int, str] | None:
    return (id(timer), label) if _DRIVER.step is not None else None


def _started(begun: tuple[int, str], error: BaseException | None) -> None:
    if error is None:
        _DRIVER.timer_begins(*begun)


def _stops(timer: object, label: str, *_: object, **__: object) -> None:
    if _DRIVER.step is not None and not (label == _STEP and _is_tried_again()):
        _DRIVER.timer_ends(id(timer), label)


def _is_tried_again() -> bool:
    """Whether the loop has too few samples for its step yet, in the words of grpo.py and grpo_sync.py."""
    return False in caller_locals("is_batch_complete", "is_complete", through="nemo_rl.utils.timer")


def _times(_: object, label: str, *__: object, **___: object) -> None:
    """`Timer.time` of the single controller, which tells its step's number nowhere else."""
    if label == _STEP and _DRIVER.step is None:
        steps = getattr(caller_locals("self")[0], "_train_steps", None)
        if isinstance(steps, int):
            _DRIVER.begin(steps + 1)
