"""`torch.cuda.profiler.start/stop` of a trainer in a process under `nsys launch`: a window of its session.

Without a capture range nsys takes no notice of cudaProfilerStart, so the call goes to the node's supervisor,
which opens and closes the window: its report is final while training goes on. A process without a session
keeps torch's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType

from rlprof_ops import env_names


def install(name: str, module: ModuleType) -> None:
    """Route the two functions of `torch.cuda.profiler` where this process has a session and a supervisor."""
    if not os.environ.get(env_names.NSYS_SESSION) or not os.environ.get(env_names.NODE_DIR):
        return
    from rlprof_ops.frameworks.adapter import wrap

    def routed(what: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
        def make(before: Callable[[], object]) -> Callable[[], object]:
            def call() -> object:
                from rlprof_ops.runtime.step_clock import ask_window

                return None if ask_window(what) else before()

            return call

        return make

    wrap(module, "start", routed("start"))
    wrap(module, "stop", routed("stop"))
