"""Calls adapters when a module that they wait for has been imported; costs a dictionary look-up an import
otherwise."""

from __future__ import annotations

import importlib
import os
import sys
from _thread import get_ident

from rlprof_ops import env_names

TYPE_CHECKING = False  # see rlprof_ops/__init__.py; every Python of a job begins with this file
if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# Of this package itself: module -> (whose it is, what is installed there).
_OURS = {
    "ray.actor": ("ray", "rlprof_ops.runtime.process.actor_labels"),
    "ray._private.function_manager": ("ray", "rlprof_ops.runtime.ranges.actor_calls"),
    "torch.cuda.profiler": ("torch", "rlprof_ops.runtime.process.cuda_profiler"),
}


class AdapterFinder:
    """A finder that is asked first: it finds nothing by itself, and puts a step behind the loading of few
    modules."""

    def __init__(self, modules: Mapping[str, tuple[str, str]]) -> None:
        self._modules = modules
        self._asking: set[tuple[int, str]] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        mark = (get_ident(), name)
        if name not in self._modules or mark in self._asking:
            return None
        self._asking.add(mark)  # another tool's finder may ask all others, us among them
        try:
            return self._found(name, path, target)
        finally:
            self._asking.discard(mark)

    def _found(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)  # an old finder has none
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, name, self._modules[name])  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """The module's own loader, with the adapter called once the module has been executed."""

    def __init__(self, loader: Any, name: str, adapter: tuple[str, str]) -> None:
        self._loader = loader
        self._name = name
        self._adapter = adapter

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        adapt(self._name, module, self._adapter)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader" or name.startswith("__"):  # `copy` asks one that has no attributes yet
            raise AttributeError(name)
        return getattr(self._loader, name)


def adapt(name: str, module: ModuleType, adapter: tuple[str, str]) -> None:
    """Let the adapter do its work on an imported module; whatever goes wrong is said once and stays here."""
    trainer, home = adapter
    try:
        importlib.import_module(home).install(name, module)
    except Exception as error:
        _tell(trainer, name, error)


def _tell(trainer: str, name: str, error: Exception) -> None:
    """One log line, and an event for the manifest."""
    try:
        from rlprof_ops.runtime import step_clock
        from rlprof_ops.runtime.process.event_log import log_once
        from rlprof_ops.runtime.process.hooks import UnknownShape

        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, UnknownShape):
            reason = f"{error}: another version of {trainer} than the adapter knows"
        version = _version(trainer)
        text = f"{trainer}{version}: {name} is left as it is: {reason}; its steps or phases are not seen"
        log_once(text)
        step_clock.note("adapter_unknown", trainer=trainer, module=name, reason=reason)
    except Exception:  # nothing of ours may end an import of the trainer
        return


def _version(trainer: str) -> str:
    from importlib import metadata

    try:
        return f" {metadata.version(trainer)}"
    except Exception:
        return ""


def install(adapters: Mapping[str, tuple[str, str]]) -> None:
    """Follow the imports of this process from now on: of the modules in `adapters` (module -> trainer and its
    adapter), and of Ray's and torch's that any trainer uses. Modules that are there already get their adapter
    at once."""
    if any(type(finder).__name__ == AdapterFinder.__name__ for finder in sys.meta_path):
        return
    followed = {**_OURS, **adapters}
    sys.meta_path.insert(0, AdapterFinder(followed))
    for name, adapter in followed.items():
        module = sys.modules.get(name)
        if module is not None:
            adapt(name, module, adapter)
    if env_names.NSYS_SESSION in os.environ or env_names.WORKER in os.environ:
        from rlprof_ops.runtime.process import beginning

        beginning.begins()
