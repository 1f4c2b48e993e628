"""Ray's own plugin modules as they are on disk, whatever this process has repaired before."""

import importlib.util
from types import ModuleType


def pristine(name: str) -> ModuleType:
    """A fresh copy of the module ray._private.runtime_env.<name>."""
    found = importlib.util.find_spec(f"ray._private.runtime_env.{name}")
    spec = importlib.util.spec_from_file_location(f"pristine_{name}", found.origin)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
