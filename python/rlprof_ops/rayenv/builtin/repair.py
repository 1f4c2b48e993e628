"""Repairs Ray's own nsight and rocprof_sys runtime-env plugins inside the agent's process; nothing is written
to disk.

For trainers that set `runtime_env={"nsight": …}` themselves. What is wrong with the stock plugins of Ray 2.49
to 2.60: the worker's interpreter is replaced by a bare `python`; options reach the shell unquoted; every
environment runs its own trial of the options, without a deadline and into one file that all share; report
names have no node and no rank.
"""

from __future__ import annotations

import inspect
import logging
import os
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlprof_ops import env_names
from rlprof_ops.backends import nsight, rocprof_sys
from rlprof_ops.rayenv.builtin import nsight_key
from rlprof_ops.rayenv.fallback import CannotProfile, give_up
from rlprof_ops.rayenv.inheritance_hook import keep_to_itself
from rlprof_ops.rayenv.worker_selection import identify, select
from rlprof_ops.rayenv.wrap import rocprof
from rlprof_ops.rayenv.wrap.option_trial import Trials, trial_env

if TYPE_CHECKING:
    from rlprof_ops.request import ProfileRequest

_REPAIRED = "_rlprof_repaired"
_CREATE = ["self", "uri", "runtime_env", "context", "logger"]
_MODIFY = ["self", "uris", "runtime_env", "context", "logger"]
# All that the methods we replace may touch: a Ray whose methods do more than these would lose that by our
# repair.
_CREATE_NAMES = "sys platform RuntimeEnvSetupError isinstance str warning Path get"
_MODIFY_NAMES = "info join py_executable executable"
_KNOWN_NAMES = {
    "_nsight": (
        f"{_CREATE_NAMES} {_MODIFY_NAMES} nsight NSIGHT_DEFAULT_CONFIG _check_nsight_script _nsight_dir"
        " parse_nsight_config nsight_cmd"
    ),
    "_rocprof_sys": (
        f"{_CREATE_NAMES} {_MODIFY_NAMES} rocprof_sys ROCPROFSYS_DEFAULT_CONFIG _check_rocprof_sys_script"
        " _rocprof_sys_dir parse_rocprof_sys_config rocprof_sys_cmd rocprof_sys_env env_vars update"
    ),
}


def install(logger: logging.Logger) -> None:
    """Repair the plugins that this Ray has and we know; one log line says which were left alone and why."""
    for name, load, repair in (
        ("_nsight", _load_nsight, _repair_nsight),
        ("_rocprof_sys", _load_rocprof, _repair_rocprof),
    ):
        try:
            plugin = load()
        except ImportError as error:
            logger.info("rlprof: Ray has no %s plugin to repair (%s)", name, error)
            continue
        if plugin.__dict__.get(_REPAIRED):
            continue
        unknown = why_unknown(plugin)
        if unknown:
            logger.warning("rlprof: Ray's %s plugin is left as it is: %s", name, unknown)
            continue
        repair(plugin)
        setattr(plugin, _REPAIRED, True)


def why_unknown(plugin: Any) -> str | None:
    """Why a stock plugin class is not one we may repair; None when it is."""
    known = _KNOWN_NAMES.get(getattr(plugin, "name", None) or "")
    if known is None:
        return f"its name is {getattr(plugin, 'name', None)!r}"
    for method, parameters in (("create", _CREATE), ("modify_context", _MODIFY)):
        function = getattr(plugin, method, None)
        if not inspect.isfunction(function):
            return f"it has no method {method}"
        if list(inspect.signature(function).parameters) != parameters:
            return f"{method} takes other arguments than in Ray 2.49 to 2.60"
        more = sorted(set(function.__code__.co_names) - set(known.split()))
        if more:
            return f"{method} does more than in Ray 2.49 to 2.60 ({', '.join(more)})"
    if not inspect.iscoroutinefunction(plugin.create):
        return "create is no coroutine"
    return None


def _load_nsight() -> Any:
    from ray._private.runtime_env.nsight import NsightPlugin

    return NsightPlugin


def _repair_nsight(plugin: Any) -> None:
    async def prepare(
        self: Any, runtime_env: Any, context: Any, logger: logging.Logger, trials: Trials
    ) -> nsight_key.Wrap | nsight_key.SessionWrap | None:
        return await _prepare_nsight(runtime_env, context, logger, trials, self._nsight_dir)

    _replace_methods(plugin, prepare)


def _load_rocprof() -> Any:
    from ray._private.runtime_env.rocprof_sys import RocProfSysPlugin

    return RocProfSysPlugin


def _repair_rocprof(plugin: Any) -> None:
    async def prepare(
        self: Any, runtime_env: Any, context: Any, logger: logging.Logger, trials: Trials
    ) -> rocprof.RocprofWrap | None:
        return await _prepare_rocprof(runtime_env, context, logger, trials, self._rocprof_sys_dir)

    _replace_methods(plugin, prepare)


def _replace_methods(plugin: Any, prepare: Any) -> None:
    """Give a stock plugin class our two steps: `prepare` a wrap, which fails the worker's creation; then
    apply it.
    """
    from ray.exceptions import RuntimeEnvSetupError

    trials = Trials()
    # By context: environments are set up concurrently, and the plugin is one object for all of them.
    wraps: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    async def create(
        self: Any, uri: str | None, runtime_env: Any, context: Any, logger: logging.Logger
    ) -> int:
        try:
            wrap = await prepare(self, runtime_env, context, logger, trials)
        except (CannotProfile, nsight_key.ConfigError) as error:
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


async def _prepare_nsight(
    runtime_env: Any, context: Any, logger: logging.Logger, trials: Trials, session_folder: Any
) -> nsight_key.Wrap | nsight_key.SessionWrap | None:
    config = runtime_env.nsight()
    if not config:
        return None
    options = nsight_key.clean_options(config)
    request = _request(logger)
    identity, selection = nsight_key.selection_of(runtime_env, options, request)
    if not selection.wanted:
        logger.info("rlprof: %s is not selected by the request and starts without nsys", identity)
        return None
    if selection.spec is not None and runtime_env.get("rlprof"):
        logger.info(
            "rlprof: %s uses our runtime: its nsight options give way to a session of the request", identity
        )
        return None
    nsys = nsight.find()
    if nsys is None:
        give_up(
            identity,
            selection.spec,
            context,
            f"no nsys: {nsight.why_missing(os.environ)} (set RLPROF_NSYS, or install nsight-systems-cli)",
            logger,
        )
        return None
    session = nsight_key.session_spec(options, identity, os.environ)
    if session is not None:
        from rlprof_ops.rayenv.wrap import nsys_request

        reason = await nsys_request.reason_against(session, trials, os.environ)
        if reason is None:
            return nsight_key.SessionWrap(identity, session, nsys)
        give_up(identity, selection.spec, context, reason, logger)
        return None
    wrap = nsight_key.make_wrap(options, identity, selection.spec, os.environ, session_folder, nsys)
    reason = await trials.reason_against((nsys, *wrap.options), wrap.trial(), nsight.client_env(trial_env()))
    if reason is not None:
        give_up(
            identity,
            selection.spec,
            context,
            f"`nsys profile {' '.join(wrap.options)}` does not work: {reason}",
            logger,
        )
        return None
    return wrap


async def _prepare_rocprof(
    runtime_env: Any, context: Any, logger: logging.Logger, trials: Trials, session_folder: Any
) -> rocprof.RocprofWrap | None:
    config = runtime_env.rocprof_sys()
    if not config:
        return None
    if config != "default" and not isinstance(config, Mapping):
        raise nsight_key.ConfigError(
            f'the runtime env\'s "_rocprof_sys" is {config!r}: expected "default" or {{"env": …, "args": …}}'
        )
    given = {"args": {"F": "true"}} if config == "default" else dict(config)
    options = nsight_key.clean_options(given.get("args") or {})
    identity = identify(runtime_env)
    selection = select(identity, _request(logger), "rocprof_sys")
    if not selection.wanted or (selection.spec is not None and runtime_env.get("rlprof")):
        logger.info(
            "rlprof: %s starts without Ray's rocprof-sys: %s",
            identity,
            "the request takes it itself" if selection.wanted else "it is not selected",
        )
        return None
    asked = rocprof.Asked(options, (), given.get("env") or {})
    try:
        return await rocprof.prepare(asked, identity, selection.spec, False, context, trials, session_folder)
    except rocprof_sys.FrontEndError as error:
        give_up(identity, selection.spec, context, str(error), logger)
    return None


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
