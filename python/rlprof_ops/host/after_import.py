"""Do something as soon as a module has been imported, or at once when it has been."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rlprof_ops.host.log_line import log_once


def after_import(name: str, action: Callable[[ModuleType], object]) -> None:
    """Run `action(module)` once `name` is there. What `action` raises is said once and goes no further."""
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        sys.meta_path.insert(0, _Finder(name, action))
    else:
        _run(action, module)


def _run(action: Callable[[ModuleType], object], module: ModuleType) -> None:
    try:
        action(module)
    except Exception as error:
        log_once(f"{module.__name__}: {type(error).__name__}: {error}")


class _Finder:
    """Finds nothing by itself: it lets the others find the one module, and goes."""

    def __init__(self, name: str, action: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec: ModuleSpec | None = None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)  # an old finder has none
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._follow(spec)
        return spec

    def _follow(self, spec: ModuleSpec) -> None:
        """Only this spec's loader: a loader may be shared by modules, so its copy gets the step behind."""
        loader: Any = spec.loader
        execute, action = loader.exec_module, self._action

        def exec_module(module: ModuleType) -> None:
            execute(module)
            vars(loader).pop("exec_module", None)
            _run(action, module)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError) as error:
            log_once(f"{self._name} is not followed: its loader takes no attribute: {error}")
