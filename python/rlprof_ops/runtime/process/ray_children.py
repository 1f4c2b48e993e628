"""Keeps the profiling of a Ray worker to itself: what it starts in turn does not inherit it, unless it asks
for its own.

Ray gives a child every key of its parent's runtime env that the child does not set (`OverrideRuntimeEnv`,
src/ray/core_worker/core_worker.cc), so an actor that a profiled one creates would be profiled too, under its
name and rank. A key that is null there counts as set and starts no plugin (`create_for_plugin_if_needed`,
ray/_private/runtime_env/plugin.py); ours is {}, since a runtime env of nulls alone counts as none. Nobody but
the parent can tell: for the node's agent both have the same runtime env.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from rlprof_ops import backends

if TYPE_CHECKING:
    from ray.runtime_env import RuntimeEnv

NOT_MINE: Mapping[str, object] = {
    "rlprof": {},
    **{each.ray_key: None for each in backends.every() if each.ray_key},
}
# A worker in an image of its own: Ray refuses nearly every other key beside these when it sends an actor's
# runtime env (`RuntimeEnv.serialize`, ray/runtime_env/runtime_env.py).
_IMAGES = ("image_uri", "container")
# Ray calls what this names in every new worker (ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR).
HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
HOOK = "rlprof_ops.runtime.process.ray_children.keep_profiling"
_DONE = "_rlprof_keeps_profiling"


def keep_profiling() -> None:
    """Make actors and tasks that this process creates from now on begin without its profiling. Never raises;
    twice is once.

    A Ray that starts them in another way than 2.49 to 2.60 is left alone, with a log line.
    """
    try:
        from ray.actor import ActorClass
        from ray.remote_function import RemoteFunction

        from rlprof_ops.runtime.process.hooks import Intercept, follow

        follow(ActorClass, "_remote", Intercept("Ray's actors", _actor), _DONE)
        follow(RemoteFunction, "_remote", Intercept("Ray's tasks", _task), _DONE)
    except Exception as error:
        from rlprof_ops.runtime.process.event_log import log

        log(f"what this process starts may inherit its profiling: {type(error).__name__}: {error}")


def _actor(arguments: tuple[object, ...], named: dict[str, object]) -> object:
    own = cast("Mapping[str, object] | None", named.get("runtime_env"))
    return arguments, {**named, "runtime_env": without_inherited(own)}


def _task(arguments: tuple[object, ...], named: dict[str, object]) -> object:
    text = _without_inherited_text(cast("str | None", named.get("serialized_runtime_env_info")))
    return arguments, {**named, "serialized_runtime_env_info": text}


def in_own_image(runtime_env: Mapping[str, object]) -> bool:
    """Whether a runtime env has its worker started in a container, so that it takes no key of ours."""
    return any(runtime_env.get(key) for key in _IMAGES)


def without_inherited(runtime_env: Mapping[str, object] | None) -> RuntimeEnv:
    """`runtime_env` (None: none of its own) with nothing for every profiling key that it does not set."""
    from ray.runtime_env import RuntimeEnv

    if in_own_image(own := runtime_env or {}):
        return _cut_in_text()(_validate=False, **own)
    return RuntimeEnv(_validate=False, **{**NOT_MINE, **own})


@functools.cache
def _cut_in_text() -> type[RuntimeEnv]:
    """Ray's class for a runtime env whose keys of ours are in the text alone, which nobody checks."""
    from ray.runtime_env import RuntimeEnv

    class CutInText(RuntimeEnv):  # type: ignore[misc]
        def serialize(self) -> str:
            return _not_mine_in(super().serialize())

    return CutInText


def _not_mine_in(text: str) -> str:
    return json.dumps({**NOT_MINE, **json.loads(text)}, sort_keys=True)


def _without_inherited_text(info: str | None) -> str:
    """The same for the text that Ray sends: JSON with the runtime env as JSON text in it (RuntimeEnvInfo,
    protobuf).
    """
    from ray._private.utils import get_runtime_env_info

    if not info or info == "{}":
        text: str = get_runtime_env_info(without_inherited(None), is_job_runtime_env=False, serialize=True)
        return text
    outer = json.loads(info)
    outer["serializedRuntimeEnv"] = _not_mine_in(outer.get("serializedRuntimeEnv") or "{}")
    return json.dumps(outer)
