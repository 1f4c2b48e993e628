"""Has a profiled worker keep its profiling to itself from its first line on, also where it calls nothing
of ours.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from rlprof_ops.runtime.process.ray_children import HOOK, HOOK_VARIABLE

_PACKAGE = Path(__file__).parents[1].name


def keep_to_itself(context: Any, interpreter: str) -> None:
    """Let Ray call `children.keep_profiling` when the worker of this context starts, where it is sure to find
    it.

    A hook that cannot be imported would end the worker, so an interpreter of its own that PYTHONPATH does not
    lead to us is left alone; `profiler.from_env` does the same later. So is a worker with a hook of the
    trainer's.

    Args:
        interpreter: `context.py_executable` before anything was wrapped around it.
    """
    if HOOK_VARIABLE not in context.env_vars and _finds_us(context, interpreter):
        context.env_vars[HOOK_VARIABLE] = HOOK


def _finds_us(context: Any, interpreter: str) -> bool:
    path = str(context.env_vars.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")))
    if any(
        os.path.samefile(Path(folder, _PACKAGE), Path(__file__).parents[1])
        for folder in path.split(os.pathsep)
        if folder and Path(folder, _PACKAGE).is_dir()
    ):
        return True
    try:
        words = shlex.split(interpreter or "")
    except ValueError:
        return False
    return words[:1] in ([], [sys.executable]) and "PYTHONPATH" not in context.env_vars
