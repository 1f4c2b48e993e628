"""Do something once a module has been imported, or at once when it has been; costs a dictionary look-up an
import otherwise."""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False  # see rlprof_ops/__init__.py; every Python of a job begins with this file
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Action = Callable[[ModuleType], object]

_actions: dict[str, list[Action]] = {}


def after_import(name: str, action: Action) -> None:
    """Run `action(module)` each time that `name` has been imported, and at once when it is there. What
    `action` raises is said once and goes no further."""
    actions = _actions.setdefault(name, [])
    if action not in actions:
        actions.append(action)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        _run(action, module)


def _run(action: Action, module: ModuleType) -> None:
    from rlprof_ops.host.threads.time_limits import time_limits_wait

    with time_limits_wait():
        try:
            action(module)
        except Exception as error:
            from rlprof_ops.host.log_line import log_once

            log_once(f"{module.__name__}: {type(error).__name__}: {error}")


class _Finder:
    """A finder that is asked first: it finds nothing by itself, and puts a step behind the loading of few
    modules."""

    def __init__(self) -> None:
        self._asking: set[tuple[int, str]] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        mark = (get_ident(), name)
        if name not in _actions or mark in self._asking:
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
                    spec.loader = _Loader(spec.loader, name)  # type: ignore[assignment]
                return spec
        return None


_FINDER = _Finder()


class _Loader:
    """The module's own loader, with the actions run once the module has been executed."""

    def __init__(self, loader: Any, name: str) -> None:
        self._loader = loader
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for action in _actions[self._name]:
            _run(action, module)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader" or name.startswith("__"):  # `copy` asks one that has no attributes yet
            raise AttributeError(name)
        return getattr(self._loader, name)
