"""The Ray runtime-env plugin: starts the selected workers under their profiler, keeping the interpreter they
would have had.

Ray loads it in its runtime-env agent (one per node) from RAY_RUNTIME_ENV_PLUGINS; it needs the standard
library, PyYAML and Ray's own base class. Its priority puts it after uv, pip, conda and py_executable, so what
it finds in `context.py_executable` is final (ray/_private/runtime_env/plugin.py sorts by priority, 0 to 100).
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof_ops import backends, env_names
from rlprof_ops.backends.contract import wrap_of
from rlprof_ops.backends.option_trial import Trials
from rlprof_ops.backends.wrapping import CannotWrap, Identity
from rlprof_ops.host import atomic
from rlprof_ops.rayenv import KEY, PRIORITY
from rlprof_ops.rayenv.inheritance_hook import keep_to_itself
from rlprof_ops.rayenv.wrap.wrap_context import WrapError, wrap_context, wrapping_spec
from rlprof_ops.runtime.trainer_request import request_of, with_request

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec

try:
    from ray._private.runtime_env.plugin import RuntimeEnvPlugin
except ImportError:  # outside Ray, for `import` tests and documentation

    class RuntimeEnvPlugin:  # type: ignore[no-redef]
        """Stand-in for Ray's base class."""


# What a profiled worker gives its children (runtime/process/ray_children.py), so that they do not inherit who
# it is.
_NOBODY: dict[str, Any] = {}


class RlprofPlugin(RuntimeEnvPlugin):
    """`runtime_env={"rlprof": {"worker": "policy_worker", "rank": 0}}` says who the worker is; the request
    decides.
    """

    name = KEY
    priority = PRIORITY

    def __init__(self) -> None:
        self._refused: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._trials = Trials()
        _leave_marker()
        _amend_ray()

    @staticmethod
    def validate(runtime_env_dict: dict[str, Any]) -> None:
        """Raises `ValueError` unless the value names a worker, and its rank as a whole number or None."""
        value = runtime_env_dict.get(KEY)
        if value not in (None, _NOBODY):
            identity(value)

    async def create(self, uri: str | None, runtime_env: Any, context: Any, logger: logging.Logger) -> int:
        """Try the tool and the options that the request wants for this worker, once on this node for the same
        options.
        """
        if runtime_env[KEY] == _NOBODY:
            return 0
        worker, rank = identity(runtime_env[KEY])
        try:
            spec = wrapping_spec(_specs(worker, rank))
            if spec is None:
                return 0
            backend = backends.get(spec.backend)
            reason: str | None = "; ".join(backends.validate(spec).errors)
            wrap = wrap_of(backend)
            if not reason and wrap is not None:
                reason = await wrap.reason_against(
                    Identity(worker, rank), spec, context, self._trials, with_request(os.environ)
                )
            if reason:
                self._refused[context] = f"node {_node()}, worker {worker!r} rank {rank}: {reason}"
        except CannotWrap as error:
            self._refused[context] = f"node {_node()}, worker {worker!r} rank {rank}: {error}"
        except Exception as error:
            logger.warning(
                "rlprof: %s rank %s: options not tried: %s: %s", worker, rank, type(error).__name__, error
            )
        return 0

    def modify_context(self, uris: list[str], runtime_env: Any, context: Any, logger: logging.Logger) -> None:
        """Wrap `context.py_executable` when the request asks for a capture that needs it of this worker.

        Raises `RuntimeError`, which fails the actor's creation with its text, only for a profiler that does
        not work here, with `on_error: fail`. Anything unforeseen is logged and the worker starts unprofiled.
        """
        if runtime_env[KEY] == _NOBODY:
            return
        worker, rank = identity(runtime_env[KEY])
        try:
            interpreter = context.py_executable
            refused = self._refused.pop(context, None)
            wrapped = wrap_context(context, worker, rank, with_request(os.environ), refused)
            if env_names.WORKER in context.env_vars:
                _of_this_node(context)
                keep_to_itself(context, interpreter)
            if wrapped:
                said = f"{wrapped} profiling enabled for worker '{worker}' rank {rank}"
                logger.info("rlprof: %s (%s)", said, _selected_by(worker, rank))
        except WrapError as error:
            raise RuntimeError(f"rlprof: {error}") from None
        except Exception as error:
            logger.warning(
                "rlprof: %s rank %s starts unprofiled: %s: %s", worker, rank, type(error).__name__, error
            )


def _of_this_node(context: Any) -> None:
    """The node's own name, folder and token: a driver that hands on its variables hands on its own node's."""
    for name in env_names.OF_ONE_NODE:
        if os.environ.get(name):
            context.env_vars[name] = os.environ[name]


def _specs(worker: str, rank: int | None) -> tuple[CaptureSpec, ...]:
    request = request_of(os.environ)
    return tuple(request.for_worker(worker, rank)) if request else ()


def _selected_by(worker: str, rank: int | None) -> str:
    """Why this worker is started under its profiler, in NeMo RL's words (its docs, nsys-profiling.md)."""
    from rlprof_ops.request import first_match

    spec = wrapping_spec(_specs(worker, rank))
    return f"matched pattern {first_match(worker, spec.workers)!r}" if spec else "for captures on demand"


def _node() -> str:
    return os.environ.get(env_names.NODE) or socket.gethostname()


def identity(value: Any) -> tuple[str, int | None]:
    """The worker and rank in the runtime env's `rlprof` value; raises `ValueError` that says what is
    expected.
    """
    expected = f'the runtime env\'s "{KEY}" is {value!r}: expected {{"worker": "policy_worker", "rank": 0}}'
    if not isinstance(value, dict):
        raise ValueError(expected)
    unknown = sorted(set(value) - {"worker", "rank"})
    worker, rank = value.get("worker"), value.get("rank")
    if unknown or not isinstance(worker, str) or not worker:
        raise ValueError(expected + (f"; unknown keys: {', '.join(unknown)}" if unknown else ""))
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool) or rank < 0):
        raise ValueError(f"{expected}; rank must be a whole number from 0 on, or null")
    return worker, rank


def _amend_ray() -> None:
    """Make Ray's own profiler plugins usable in this process, and keep our folders on a PYTHONPATH that a
    runtime env sets; never raises, the agent must live.
    """
    log = logging.getLogger(__name__)
    for module, what in (
        ("builtin.repair", "Ray's own profiler plugins are"),
        ("worker_path", "a PYTHONPATH that a runtime env sets is"),
    ):
        try:
            importlib.import_module(f"rlprof_ops.rayenv.{module}").install(log)
        except Exception as error:
            log.warning("rlprof: %s left alone: %s: %s", what, type(error).__name__, error)


def _leave_marker() -> None:
    """Tell the node's supervisor that the agent loaded us; never raises, the agent must live."""
    node_dir = os.environ.get(env_names.NODE_DIR)
    if not node_dir:
        return
    try:
        marker = {"pid": os.getpid(), "python": sys.executable}
        atomic.write(Path(node_dir, "plugin_loaded"), json.dumps(marker))
    except OSError as error:
        logging.getLogger(__name__).warning("rlprof: cannot write %s: %s", node_dir, error)
