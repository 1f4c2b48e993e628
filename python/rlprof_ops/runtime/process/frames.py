"""Looking at the code that runs, without keeping alive what it has let go of.

Trainers free batches and buffers by dropping their last reference. verl 0.9 closes a shared memory right
after it (`BucketedWeightReceiver`), which fails while anybody still refers to its content.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from operator import attrgetter, itemgetter
from types import FrameType
from typing import Any

_CO_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the frame is a function's
_OURS = 3  # references to such a dict: the frame's, our variable's, and the call's that counts them
_MOST_FRAMES = 100
# Before 3.12 garbage is collected at any allocation, also at those of `_current_frames` while it has the
# interpreter's lock: with a finalizer that lets another thread run, the process stood still for good
# (python/cpython#106883, open in all of 3.11).
_COLLECTS_ANYWHERE = sys.version_info < (3, 12)


def local_values(frame: FrameType, *names: str) -> tuple[Any, ...]:
    """Local variables of a frame, None where there are none.

    Before 3.13, Python fills a dict with all of a function's variables when `f_locals` is read, and keeps it
    with the frame: what the function deletes later would live until it returns. It is emptied, unless
    somebody else has it too, as a function that called `locals()`.
    """
    found = frame.f_locals
    values = tuple(found.get(name) for name in names)
    is_copy = isinstance(found, dict) and frame.f_code.co_flags & _CO_OPTIMIZED  # else the namespace itself
    if is_copy and sys.getrefcount(found) <= _OURS:
        found.clear()
    return values


def places(thread: int) -> Iterator[tuple[str, int]]:
    """File and line of each frame of a thread, innermost first, each as it is when asked for; at most 100.

    Whoever has a frame has all its variables. Here C code alone has one, within one instruction of this
    thread, so that no other thread runs Python meanwhile. (`faulthandler` takes no frames, but no lock
    either: in 3.11 it may meet the state of a thread that is being made.)
    """
    of_thread = itemgetter(thread)
    for depth in range(_MOST_FRAMES):
        way = "f_back." * depth
        read = attrgetter(f"{way}f_code.co_filename", f"{way}f_lineno")
        collects = _COLLECTS_ANYWHERE and gc.isenabled()
        if collects:
            gc.disable()
        try:
            place = next(map(read, map(of_thread, iter(sys._current_frames, None))))
        except (AttributeError, KeyError):  # there are no more, or the thread has ended
            return
        finally:
            if collects:
                gc.enable()
        yield place
