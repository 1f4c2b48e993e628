"""Empty packages in the stead of those that $EMPTY_PACKAGES names, which cannot be installed without a GPU:
every name in them is an empty class, and every name in that a function that does nothing.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types


class EmptyClass(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)

        def missing(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return EmptyClass(name, (), {})

        module.__getattr__ = missing
        return module

    def exec_module(self, module):
        pass


if os.environ.get("EMPTY_PACKAGES"):
    sys.meta_path.append(Empty(os.environ["EMPTY_PACKAGES"].split(",")))
