"""Labels the Ray actors that a process of the job creates, so that the runtime-env plugin wraps the selected
ones.

A trainer that knows nothing of us puts no `rlprof` key into its actors' runtime env. So the creation of an
actor (`ray.actor.ActorClass._remote`) is followed in every process of the job: an adapter of the trainer
says who the actor will be, else its class name in snake_case and a number counted by class do. Only actors
that the job's request selects get the key, since each runtime env of its own costs a fresh worker process.
Variables that belong to the creating process or its node are taken out of what it hands on (NeMo RL hands on
its whole environment).
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, cast

from rlprof_ops import backends, env_names
from rlprof_ops.runtime.process.ray_children import in_own_image
from rlprof_ops.runtime.process.worker_identity import OF_ONE_PROCESS, WorkerKey
from rlprof_ops.runtime.trainer_request import request_of

if TYPE_CHECKING:
    from ray.actor import ActorClass

    from rlprof_ops.request import ProfileRequest

_DONE = "_rlprof_labels"
# Ray's own actors are nobody's workers.
_RAYS_OWN = ("ray._", "ray.dashboard", "ray.util", "ray.experimental", "ray.serve", "ray.data._", "ray.job")
# An actor gets these from its own node's raylet, whoever hands on another node's (NeMo RL creates workers in
# an actor that has the driver's variables at hand, and its own), and it never leads a job as COMMAND does.
_THE_NODES = (*env_names.OF_ONE_NODE, env_names.LEADS)
# Whose they are: an actor gets its own from its node's raylet and from the plugin.
_MINE = (*OF_ONE_PROCESS, "TMPDIR")


@dataclass(frozen=True)
class NewActor:
    """An actor that is about to be created: its class (Ray's subclass of it), module, name, and its
    variables."""

    class_name: str
    module: str
    name: str
    variables: Mapping[str, str]
    cls: type | None = None


Rule = Callable[[NewActor], "tuple[str, int | None] | None"]
NOBODY = ("", None)  # a rule's answer for what a trainer needs to run and nobody profiles


class _State:
    """The rules of the adapters in this process, and how many actors of a kind it has created."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.counts: dict[str, int] = {}
        self.helpers: set[str] = set()


_STATE = _State()


def add_rule(rule: Rule) -> None:
    """An adapter's rule, asked before the class name: worker and rank (None: counted), or None when it is
    not its."""
    if rule not in _STATE.rules:
        _STATE.rules.append(rule)


def add_helpers(*workers: str) -> None:
    """Workers of a trainer in which no training runs: `*` does not select them, their own name does."""
    _STATE.helpers.update(workers)


def _selected(request: ProfileRequest, worker: str, rank: int) -> bool:
    specs = request.for_worker(worker, rank)
    if not specs or worker not in _STATE.helpers:
        return bool(specs)
    if any(
        pattern != "*" and fnmatch.fnmatchcase(worker, pattern) for spec in specs for pattern in spec.workers
    ):
        return True
    from rlprof_ops.runtime.process.event_log import log_once

    log_once(f"{worker} only serves the trainer and is not profiled by `*`: name it to have it profiled")
    return False


def snake_case(name: str) -> str:
    """`DTensorPolicyWorker` -> `dtensor_policy_worker`, `vLLMHttpServer` -> `vllm_http_server`."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])|(?<=[A-Z]{2})(?=[A-Z][a-z])", "_", name)
    text = re.sub(r"(?<=[a-z0-9]{2})(?=[A-Z])", "_", text)
    return re.sub(r"_+", "_", text).lower()


def by_rule(actor: NewActor) -> tuple[str, int | None] | None:
    """What the trainer's adapter says of a new actor; None where no rule knows it."""
    return next((found for rule in _STATE.rules if (found := rule(actor)) is not None), None)


def identify(actor: NewActor) -> tuple[str, int] | None:
    """Worker name and rank of a new actor; None for Ray's own and what a rule calls nobody's."""
    if actor.module.startswith(_RAYS_OWN):
        return None
    worker, rank = by_rule(actor) or (snake_case(actor.class_name), None)
    if not worker:
        return None
    if rank is None:
        rank = _STATE.counts.get(worker, 0)
        _STATE.counts[worker] = rank + 1
    return worker, rank


def install(name: str, module: ModuleType) -> None:
    """Follow `ActorClass._remote` of the imported `ray.actor`.

    Raises:
        UnknownShape: a Ray that has no such method.
    """
    from rlprof_ops.runtime.process.hooks import Intercept, attribute, follow

    follow(attribute(module, "ActorClass"), "_remote", Intercept("Ray's actors", _label, _created), _DONE)


def _label(arguments: tuple[object, ...], named: dict[str, object]) -> object:
    """The call of `_remote(self, args, kwargs, **options)` with our key among the options."""
    return arguments, {**named, "runtime_env": labelled(cast("ActorClass", arguments[0]), named)}


def _created(made: object, _: object, options: dict[str, object]) -> object:
    if not options.get("get_if_exists"):  # Ray creates it by calling this again
        _note(options.get("runtime_env"))
    return made


def _note(runtime_env: object) -> None:
    """Write down that an actor was created which the request selects; never raises."""
    try:
        key = cast("Mapping[str, WorkerKey]", runtime_env or {}).get("rlprof")
        request = request_of(os.environ)
        if key and request is not None and request.for_worker(key["worker"], key.get("rank")):
            from rlprof_ops.runtime.process import beginning

            beginning.selected(key)
    except Exception as error:
        from rlprof_ops.runtime.process.event_log import log_once

        log_once(f"an actor is not noted for the manifest: {type(error).__name__}: {error}")


def labelled(actor_class: ActorClass, options: Mapping[str, object]) -> object:
    """The runtime env for a new actor: with our key when the request selects it, else as it came."""
    given = cast("Mapping[str, object] | None", options.get("runtime_env"))
    request, on_demand = request_of(os.environ), os.environ.get(env_names.ON_DEMAND, "").strip().lower()
    everyone = bool(on_demand) and backends.wraps(on_demand)
    env: dict[str, object] = dict(given or {})
    keys = [each.ray_key for each in backends.every() if each.ray_key]
    by_trainer = any(env.get(key) or env.get(key.lstrip("_")) for key in keys)  # by the trainer's own choice
    if request is None and not everyone and not by_trainer:
        return given
    variables = cast("Mapping[str, str]", env.get("env_vars") or {})
    if variables:
        env["env_vars"] = variables = own_variables(variables, os.environ)
    image = in_own_image(env)
    if not env.get("rlprof") and not (image and options.get("get_if_exists")):  # Ray calls this again then
        meta = actor_class.__ray_metadata__
        descriptor = meta.actor_creation_function_descriptor
        module = getattr(descriptor, "module_name", "") or meta.modified_class.__module__
        new = NewActor(
            meta.class_name,
            module,
            str(options.get("name") or ""),
            variables,
            meta.modified_class,
        )
        found = identify(new)
        chosen = found is not None and (everyone or (request and _selected(request, *found)))
        if found is not None and chosen and image:
            _in_own_image({"worker": found[0], "rank": found[1]})
        elif found is not None and chosen:
            env["rlprof"] = {"worker": found[0], "rank": found[1]}
            _say_if_unknown(new, found[0])
        elif found is not None and by_trainer and (request is None or by_rule(new) is not None):
            # What a request selects is told by the trainer's own options where no rule tells it: an output's
            # name, a rank (rayenv/worker_selection.py).
            named = {env_names.WORKER: found[0], env_names.RANK: str(found[1])}
            env["env_vars"] = {**named, **variables}
    if not env:
        return given
    from ray.runtime_env import RuntimeEnv

    kind = type(given) if isinstance(given, RuntimeEnv) else RuntimeEnv
    return kind(_validate=False, **env)


def _in_own_image(key: WorkerKey) -> None:
    """Say, and write down, that an actor is not profiled since Ray starts it in another image."""
    from rlprof_ops.runtime.process import beginning
    from rlprof_ops.runtime.process.event_log import log_once

    reason = "its runtime env has image_uri or container, beside which Ray takes no other key"
    log_once(f"{key['worker']} is not profiled: {reason}", key=f"{key['worker']} in an image")
    if os.environ.get(env_names.NODE_DIR):
        beginning.fail_windows(os.environ, reason, key)


def _say_if_unknown(new: NewActor, worker: str) -> None:
    """One line at the first actor of a trainer that no adapter knows: who tells its steps, and its names."""
    from rlprof_ops.runtime import profiler
    from rlprof_ops.runtime.process.event_log import log_once

    if _STATE.rules or profiler.current().leads:
        return
    log_once(
        f"no adapter knows the trainer that creates {new.class_name} (here: {worker}). Its windows open when"
        " its driver tells steps: `with prof.step(n):` of rlprof_ops.runtime (docs/unmodified.md);"
        " `rlprof capture --seconds` needs none",
        key="unknown trainer",
    )


def own_variables(variables: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """`variables` without what this process only hands on: its node, its identity, nsys's injection.

    What a trainer sets for its actors to another value than this process has stays.
    """
    from rlprof_ops.backends.nsight import nsys_cli

    handed_on = {name: value for name, value in variables.items() if env.get(name) == value}
    clean = nsys_cli.client_env({name: value for name, value in handed_on.items() if name not in _MINE})
    return {
        name: clean.get(name, value)
        for name, value in variables.items()
        if name not in _THE_NODES and (name not in handed_on or name in clean)
    }
