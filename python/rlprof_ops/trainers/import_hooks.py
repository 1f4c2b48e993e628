"""Calls adapters when a module that they wait for has been imported."""

from __future__ import annotations

import importlib
import os

from rlprof_ops import env_names
from rlprof_ops.host.after_import import after_import

TYPE_CHECKING = False  # see rlprof_ops/__init__.py; every Python of a job begins with this file
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

# Of this package itself: module -> (whose it is, what is installed there).
_OURS = {
    "ray.actor": ("ray", "rlprof_ops.runtime.process.actor_labels"),
    "ray._private.function_manager": ("ray", "rlprof_ops.runtime.ranges.actor_calls"),
    "torch.cuda.graphs": ("torch", "rlprof_ops.backends.graph_captures"),
    "torch.cuda.profiler": ("torch", "rlprof_ops.runtime.process.cuda_profiler"),
    "torch.distributed.distributed_c10d": ("torch", "rlprof_ops.runtime.on_demand.torch_fr"),
}


def adapt(name: str, module: ModuleType, adapter: tuple[str, str]) -> None:
    """Let the adapter do its work on an imported module; whatever goes wrong is said once and stays here."""
    trainer, home = adapter
    try:
        importlib.import_module(home).install(name, module)
    except Exception as error:
        _tell(trainer, name, error)
    else:
        if os.environ.get(env_names.LEADS) == "1" and adapter not in _OURS.values():
            _recognised(trainer)


_RECOGNISED: set[str] = set()


def _recognised(trainer: str) -> None:
    """An event for the manifest, once in a driver's process."""
    if trainer in _RECOGNISED:
        return
    _RECOGNISED.add(trainer)
    try:
        from rlprof_ops.runtime import step_clock

        step_clock.note("adapted", trainer=with_version(trainer))
    except Exception:  # as below
        return


def _tell(trainer: str, name: str, error: Exception) -> None:
    """One log line, and an event for the manifest."""
    try:
        from rlprof_ops.runtime import step_clock
        from rlprof_ops.runtime.process.event_log import log_once
        from rlprof_ops.runtime.process.hooks import UnknownShape

        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, UnknownShape):
            reason = f"{error}: another version of {trainer} than the adapter knows"
        text = f"{with_version(trainer)}: {name} is left as it is: {reason}; its steps or phases are not seen"
        log_once(text)
        step_clock.note("adapter_unknown", trainer=trainer, module=name, reason=reason)
    except Exception:  # nothing of ours may end an import of the trainer
        return


def with_version(trainer: str) -> str:
    """The trainer's name, and its version where it has one."""
    from importlib import metadata

    try:
        return f"{trainer} {metadata.version(trainer)}"
    except Exception:
        return trainer


def install(adapters: Mapping[str, tuple[str, str]]) -> None:
    """Follow the imports of this process from now on: of the modules in `adapters` (module -> trainer and its
    adapter), and of Ray's and torch's that any trainer uses. Modules that are there already get their adapter
    at once."""
    for name, adapter in {**_OURS, **adapters}.items():
        _follow(name, adapter)
    if env_names.NSYS_SESSION in os.environ or env_names.WORKER in os.environ:
        from rlprof_ops.runtime.process import beginning

        beginning.begins()


def _follow(name: str, adapter: tuple[str, str]) -> None:
    after_import(name, lambda module: adapt(name, module, adapter))
