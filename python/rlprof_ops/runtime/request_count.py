"""Tells the node's supervisor how far the requests of an engine in this process are, for windows inside steps
that begin or end by them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from rlprof_ops import env_names
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.runtime.process.event_log import log_once
from rlprof_ops.runtime.profiler import request_from_env
from rlprof_ops.runtime.step_clock import SupervisorLink

_EVERY_S = 0.1


def tell(read: Callable[[], tuple[int, int, int]]) -> None:
    """Tell what `read` gives from now on, on a thread of its own: how many requests have come and are done
    since the engine began, and the tokens of the longest answer that is being made.
    """
    OwnThread(_run, read).start()


def _run(read: Callable[[], tuple[int, int, int]]) -> None:
    told = None
    try:
        request = request_from_env(os.environ)
        if request is None or not any(spec.part and spec.part.counts for spec in request.captures):
            return
        link = SupervisorLink(os.environ[env_names.NODE_DIR])
        while True:
            if (now := read()) != told:
                told = now
                link.send({"pid": os.getpid(), "came": now[0], "done": now[1], "longest": now[2]})
            time.sleep(_EVERY_S)
    except Exception as error:  # nothing of ours may end an engine's process
        log_once(f"requests are not counted for windows: {type(error).__name__}: {error}", key="count")
