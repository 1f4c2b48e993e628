"""Where code runs in this process: in which thread, and for which task of an event loop."""

from __future__ import annotations

import sys
import threading

Place = tuple[int, object]


def asyncio_task() -> object:
    """The task of the event loop that runs in this thread; None without one."""
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio and asyncio.current_task()
    except RuntimeError:
        return None


def here() -> Place:
    """The thread, and the task of its event loop."""
    return threading.get_ident(), asyncio_task()
