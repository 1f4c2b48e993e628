"""Keeps this package within reach of workers whose runtime env has a PYTHONPATH of its own.

Ray gives a worker the value of `env_vars` in the node's place: neither adapters nor runtime would be there,
nor in a submitted driver. slime's launch scripts hand such a value to `ray job submit`; where the environment
has a `working_dir` too, Ray itself puts the node's behind it (`set_pythonpath_in_context`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from typing import Any

from rlprof_ops.job.knobs import adapters_path, import_path, python_path

_VARIABLE = "PYTHONPATH"


def install(_: logging.Logger) -> None:
    """From now on each environment that Ray's agent makes in this process has our folders too.

    Raises what the import of an unknown Ray raises.
    """
    from ray._private.runtime_env.context import RuntimeEnvContext

    initialise = RuntimeEnvContext.__init__
    if hasattr(initialise, "__wrapped__"):
        return

    @functools.wraps(initialise)
    def with_our_path(self: Any, *arguments: Any, **named: Any) -> None:
        initialise(self, *arguments, **named)
        with contextlib.suppress(Exception):  # the worker has to start whatever happens here
            if _VARIABLE in self.env_vars:
                path = reached(self.env_vars[_VARIABLE], os.environ.get(_VARIABLE, ""))
                self.env_vars = {**self.env_vars, _VARIABLE: path}

    RuntimeEnvContext.__init__ = with_our_path  # type: ignore[method-assign]


def reached(given: str, node: str) -> str:
    """PYTHONPATH of a worker that is given one: the same, behind those of our folders that the node's has.
    Nothing is added where Ray will put the node's into it (`${PYTHONPATH}`).
    """
    ours = {os.path.realpath(folder) for folder in node.split(os.pathsep) if folder}
    if import_path() not in ours or f"${_VARIABLE}" in given.replace("{", ""):
        return given
    return python_path(given, adapters=adapters_path() in ours)
