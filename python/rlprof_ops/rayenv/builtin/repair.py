"""Repairs Ray's own runtime-env plugins of profilers inside the agent's process; nothing is written
to disk.

For trainers that set `runtime_env={"nsight": …}` themselves. What is wrong with the stock plugins of Ray 2.49
to 2.60: the worker's interpreter is replaced by a bare `python`; options reach the shell unquoted; every
environment runs its own trial of the options, without a deadline and into one file that all share; report
names have no node and no rank.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import socket
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof_ops import backends, env_names
from rlprof_ops.backends.contract import Backend, load, ray_plugin_of
from rlprof_ops.backends.option_trial import Trials
from rlprof_ops.backends.wrapping import CannotWrap, ConfigError, Identity, RayPlugin, Wrapped
from rlprof_ops.rayenv.inheritance_hook import keep_to_itself
from rlprof_ops.rayenv.worker_selection import identify, select
from rlprof_ops.rayenv.wrap.wrap_context import find_libraries
from rlprof_ops.runtime.clock_file import SOCKET

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec, ProfileRequest

_REPAIRED = "_rlprof_repaired"
_CREATE = ["self", "uri", "runtime_env", "context", "logger"]
_MODIFY = ["self", "uris", "runtime_env", "context", "logger"]
# All that the methods we replace may touch: a Ray whose methods do more than these would lose that by our
# repair.
_CREATE_NAMES = "sys platform RuntimeEnvSetupError isinstance str warning Path get"
_MODIFY_NAMES = "info join py_executable executable"


def install(logger: logging.Logger) -> None:
    """Repair the plugins that this Ray has and we know; one log line says which were left alone and why."""
    for backend in backends.every():
        ours = ray_plugin_of(backend)
        if ours is None:
            continue
        try:
            plugin = load(ours.stock)
        except ImportError as error:
            logger.info("rlprof: Ray has no %s plugin to repair (%s)", backend.ray_key, error)
            continue
        if plugin.__dict__.get(_REPAIRED):
            continue
        unknown = why_unknown(plugin, backend.ray_key, ours)
        if unknown:
            logger.warning("rlprof: Ray's %s plugin is left as it is: %s", backend.ray_key, unknown)
            continue
        replace_methods(plugin, backend, ours)
        setattr(plugin, _REPAIRED, True)


def why_unknown(plugin: Any, key: str, ours: RayPlugin) -> str | None:
    """Why a stock plugin class is not one we may repair; None when it is."""
    if getattr(plugin, "name", None) != key:
        return f"its name is {getattr(plugin, 'name', None)!r}"
    known = f"{_CREATE_NAMES} {_MODIFY_NAMES} {ours.known_names}".split()
    for method, parameters in (("create", _CREATE), ("modify_context", _MODIFY)):
        function = getattr(plugin, method, None)
        if not inspect.isfunction(function):
            return f"it has no method {method}"
        if list(inspect.signature(function).parameters) != parameters:
            return f"{method} takes other arguments than in Ray 2.49 to 2.60"
        more = sorted(set(function.__code__.co_names) - set(known))
        if more:
            return f"{method} does more than in Ray 2.49 to 2.60 ({', '.join(more)})"
    if not inspect.iscoroutinefunction(plugin.create):
        return "create is no coroutine"
    return None


def replace_methods(plugin: Any, backend: Backend, ours: RayPlugin) -> None:
    """Give a stock plugin class our two steps: prepare a wrap, which fails the worker's creation; then apply
    it.
    """
    from ray.exceptions import RuntimeEnvSetupError

    trials = Trials()
    # By context: environments are set up concurrently, and the plugin is one object for all of them.
    wraps: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    async def create(
        self: Any, uri: str | None, runtime_env: Any, context: Any, logger: logging.Logger
    ) -> int:
        try:
            folder = getattr(self, f"{backend.ray_key}_dir")
            wrap = await _prepare(backend, ours, runtime_env, context, logger, trials, folder)
        except (CannotProfile, ConfigError) as error:
            raise RuntimeEnvSetupError(f"rlprof: {error}") from None
        if wrap is not None:
            wraps[context] = wrap
        return 0

    def modify_context(
        self: Any, uris: list[str], runtime_env: Any, context: Any, logger: logging.Logger | None = None
    ) -> None:
        wrap = wraps.pop(context, None)
        if wrap is None:
            return
        if os.environ.get(
            env_names.REQUEST_JSON
        ):  # without a request children inherit, as a trainer knows it of Ray
            keep_to_itself(context, context.py_executable)
        wrap.apply(context)

    plugin.create, plugin.modify_context = create, modify_context


async def _prepare(
    backend: Backend,
    ours: RayPlugin,
    runtime_env: Any,
    context: Any,
    logger: logging.Logger,
    trials: Trials,
    folder: Path,
) -> Wrapped | None:
    config = runtime_env.get(backend.ray_key)
    if not config:
        return None
    given = ours.given(config)
    identity = identify(runtime_env, given.options)
    selection = select(identity, _request(logger), backend.name)
    if not selection.wanted or (selection.spec is not None and runtime_env.get("rlprof")):
        logger.info(
            "rlprof: %s starts without Ray's %s: %s",
            identity,
            backend.name,
            "the request takes it itself" if selection.wanted else "the request does not select it",
        )
        return None
    _give_variables(identity, selection.spec, context, logger)
    supervised = os.path.exists(os.path.join(os.environ.get(env_names.NODE_DIR, ""), SOCKET))
    try:
        wrap = await ours.prepare(
            given, identity, selection.spec, context, trials, os.environ, folder, supervised
        )
        find_libraries(identity.worker or "", context.env_vars)
        return wrap
    except CannotWrap as error:
        give_up(identity, selection.spec, context, str(error), logger)
    return None


def _give_variables(
    identity: Identity, spec: CaptureSpec | None, context: Any, logger: logging.Logger
) -> None:
    """The `env` of the capture that selects this worker, unless workers that it does not select share it."""
    if spec is None or identity.base is None or spec.ranks is None:
        context.env_vars.update(spec.env if spec else {})
    elif spec.env:
        logger.warning("rlprof: %s: env is left out, all of an engine's inner workers share one", identity)


def _request(logger: logging.Logger) -> ProfileRequest | None:
    """The job's request; None when there is none, or none that can be read (then nothing may be dropped)."""
    text = os.environ.get(env_names.REQUEST_JSON)
    if not text:
        return None
    try:
        from rlprof_ops.request import request_from_json

        request = request_from_json(text)
    except Exception as error:
        logger.warning("rlprof: the job's request cannot be read, so no worker is left out: %s", error)
        return None
    return request if request else None


class CannotProfile(Exception):
    """A selected worker cannot be profiled on this node, and nobody said to go on without."""


def give_up(
    identity: Identity,
    spec: CaptureSpec | None,
    context: Any,
    reason: str,
    logger: logging.Logger,
) -> None:
    """Let the worker start unprofiled where the request allows that; else raise `CannotProfile`, which fails
    its creation.

    `spec` is None when only the trainer asked: then going on in silence would be a surprise.
    """
    text = f"node {os.environ.get(env_names.NODE) or socket.gethostname()}, {identity}: {reason}"
    if spec is None or spec.on_error == "fail":
        raise CannotProfile(text)
    logger.warning("rlprof: %s; it starts unprofiled", text)
    context.env_vars[env_names.NOT_WRAPPED] = text
    if identity.worker is not None and os.environ.get(env_names.NODE_DIR):
        _tell_the_manifest(identity, spec, text)


def _tell_the_manifest(identity: Identity, spec: CaptureSpec, reason: str) -> None:
    from rlprof_ops.runtime.process.event_log import EventLog
    from rlprof_ops.runtime.process.worker_identity import find_identity

    place = find_identity(identity.worker, identity.rank, None, os.environ)
    log = EventLog(place.events / f"{place.stem}.jsonl")
    log.registered(dataclasses.replace(place, world_size=None), (spec.backend,))
    log.failed(spec, reason)
