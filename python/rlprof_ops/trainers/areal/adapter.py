"""AReaL: steps and phases of its trainers' loops, tasks of `trace_perf`, workers of its schedulers.

A step is one turn of a trainer's loop, from its first timer to the end of `_save_perf_tracer`; its number is
`global_step + 1`. Phases are `stats_tracker.record_timing` in the thread and the coroutine of the loop, by
the names of `timeperf/<name>`. Rollouts run meanwhile in a thread of their own, for this step and later
ones: what they time is no phase of it.

Workers are called `<role>/<n>` by every scheduler. Ray's are actors; those of the local one are processes
that the controller starts: in sessions of their own where the request selects them, else in the controller's.
"""

from __future__ import annotations

import itertools
import os
from types import ModuleType
from typing import Any

from rlprof_ops.runtime.process.actor_labels import NewActor, add_rule
from rlprof_ops.runtime.process.hooks import Intercept, Watch, attribute, caller_locals, expect, follow
from rlprof_ops.runtime.process.launchers import as_a_rank
from rlprof_ops.runtime.process.place import here
from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers import sample_versions
from rlprof_ops.trainers.tasks import LeadingLoop, decorated_tasks

TRAINER = "AReaL"
# Where AREAL_SPMD_MODE is set, its launchers start the loop once for each rank: there it is no controller.
RANK_OF_MANY = "trainer"
_TRAINERS = {
    "areal.trainer.dpo_trainer": "DPOTrainer",
    "areal.trainer.rl_trainer": "PPOTrainer",
    "areal.trainer.rw_trainer": "RWTrainer",
    "areal.trainer.sft_trainer": "SFTTrainer",
}


class _Loop(LeadingLoop):
    """The step of this process, and the thread and the coroutine that run it."""

    def __init__(self) -> None:
        super().__init__()
        self.place: Any = None

    def begin(self, global_step: object) -> None:
        """The loop is at this step: it begins unless it has begun."""
        if isinstance(global_step, int):
            self.lead(*_leading())
            if self.begin_step(global_step + 1):
                self.place = here()

    def phase(self, name: str) -> Any:
        """A timer of the step that has begun; None for one that is not the step's."""
        return super().phase(name) if self.place == here() else None


_LOOP = _Loop()


def install(name: str, module: ModuleType) -> None:
    """Follow one of AReaL's modules."""
    if name == "areal":
        add_rule(role_of)
        expect(module, "utils.stats_tracker", "utils.perf_tracer", "trainer.rl_trainer")
    elif name == "areal.infra.scheduler.local":
        follow(module, "run_with_streaming_logs", Intercept(TRAINER, prepare=_local_worker_starts))
    elif name == "areal.trainer.ppo.actor":
        follow(attribute(module, "PPOActor"), "_ppo_update", Watch(TRAINER, _trained))
    elif name == "areal.utils.perf_tracer":
        follow(module, "trace_perf", decorated_tasks(TRAINER))
    elif name == "areal.utils.stats_tracker":
        watch = Watch(TRAINER, _timer_begins)
        follow(attribute(module, "DistributedStatsTracker"), "record_timing", watch)
        follow(module, "record_timing", watch)  # the default tracker's, bound before
    else:
        trainer = attribute(module, _TRAINERS[name])
        follow(trainer, "_save_perf_tracer", Watch(TRAINER, _turn_ends, _turn_ended))
        if name == "areal.trainer.rl_trainer":  # it times before the loop's own first timer
            follow(trainer, "_onload_rollout", Watch(TRAINER, _turn_begins))


def role_of(actor: NewActor) -> tuple[str, int] | None:
    """The role and the number of one of AReaL's workers, as its schedulers call them: `actor/0`."""
    role, found, number = actor.name.rpartition("/")
    if not (actor.module.startswith("areal.") and found and number.isdecimal()):
        return None
    return _worker(role), int(number)


def _worker(role: str) -> str:
    return role.replace("-", "_")  # eval-rollout


def _local_worker_starts(
    arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    argv, *others = arguments
    told = dict(itertools.pairwise(argv))
    worker = _worker(told["--role"])
    return (as_a_rank(worker, int(told["--worker-index"]), argv), *others), named


def _leading() -> tuple[str, int, int]:
    """The worker, the rank and the number of ranks that this process leads as."""
    if os.environ.get("AREAL_SPMD_MODE", "").lower() not in ("1", "true"):
        return CONTROLLER, 0, 1
    return RANK_OF_MANY, int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def _turn_begins(*_: object, **__: object) -> None:
    _LOOP.begin(*caller_locals("global_step"))


def _turn_ends(*_: object, **__: object) -> bool:
    return True


def _turn_ended(*_: object) -> None:
    _LOOP.end_step()


def _trained(actor: Any, data: Any, *_: object, **__: object) -> None:
    """One rank's share of a batch: `versions` has the version that made each token, -1 of a prompt's."""
    versions, engine = data.get("versions"), actor.engine
    if versions is None or not engine.is_data_parallel_head():
        return
    current = engine.get_version()
    lasts = versions.amax(-1)
    firsts = versions.masked_fill(versions < 0, current).amin(-1)
    made = zip(firsts.tolist(), lasts.tolist(), strict=True)
    sample_versions.trained(current + 1, current, (each for each in made if each[1] >= 0))


def _timer_begins(_: object, key: str, *__: object, **___: object) -> Any:
    if _LOOP.step is None or _LOOP.place == here():
        _LOOP.begin(*caller_locals("global_step"))
    return _LOOP.phase(key)
