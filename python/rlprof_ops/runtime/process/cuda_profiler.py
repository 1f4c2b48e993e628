"""`torch.cuda.profiler.start/stop` of a trainer in a process under `nsys launch`: a window of its session.

Without a capture range nsys takes no notice of cudaProfilerStart, so the call goes to the node's supervisor,
which opens and closes the window: its report is final while training goes on. A process without a session
keeps torch's.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import TYPE_CHECKING

from rlprof_ops import env_names

if TYPE_CHECKING:
    from rlprof_ops.runtime.process.hooks import Substitute


def install(name: str, module: ModuleType) -> None:
    """Route the two functions of `torch.cuda.profiler` where this process has a session and a supervisor."""
    if not os.environ.get(env_names.NSYS_SESSION) or not os.environ.get(env_names.NODE_DIR):
        return
    from rlprof_ops.runtime.process.hooks import Intercept, follow

    for what in ("stop", "start"):
        follow(module, what, Intercept("torch.cuda.profiler", prepare=functools.partial(_routed, what)))


def _routed(what: str, _: object, __: object) -> Substitute | None:
    from rlprof_ops.runtime.process.hooks import Substitute
    from rlprof_ops.runtime.step_clock import ask_window

    return Substitute(None) if ask_window(what) else None
