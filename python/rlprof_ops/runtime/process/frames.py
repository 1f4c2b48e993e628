"""Looking at the code that runs, without keeping alive what it has let go of.

Trainers free batches and buffers by dropping their last reference. verl 0.9 closes a shared memory right
after it (`BucketedWeightReceiver`), which fails while anybody still refers to its content.
"""

from __future__ import annotations

import faulthandler
import os
import re
from types import FrameType
from typing import Any

_CO_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the frame is a function's
_MOST_BYTES = 1 << 20
_THREAD_OR_FRAME = re.compile(r'(?m)^(?:Current thread|Thread) 0x([0-9a-f]+)|^  File "(.*)", line (\d+) in ')


def local_values(frame: FrameType, *names: str) -> tuple[Any, ...]:
    """Local variables of a frame, None where there are none.

    Before 3.13, Python fills a dict with all of a function's variables when `f_locals` is read, and keeps it
    with the frame: what the function deletes later would live until it returns.
    """
    found = frame.f_locals
    values = tuple(found.get(name) for name in names)
    if isinstance(found, dict) and frame.f_code.co_flags & _CO_OPTIMIZED:  # else it is the namespace itself
        found.clear()
    return values


def places() -> dict[int, list[tuple[str, int]]]:
    """File and line of each frame of each thread by its identifier, innermost first: at most 100 of a thread,
    and of the 100 youngest threads. Empty where there is no shared memory to write them to.

    `sys._current_frames` would hand out the frames, and with them all their variables, for as long as another
    thread has the GIL.
    """
    try:
        # In memory: it is written with the GIL held, and a disk may not answer.
        made = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return {}
    with os.fdopen(made, "r+b") as dump:
        faulthandler.dump_traceback(dump, all_threads=True)
        dump.seek(0)
        text = dump.read(_MOST_BYTES).decode("ascii", "replace")
    found: dict[int, list[tuple[str, int]]] = {}
    of_thread: list[tuple[str, int]] = []
    for thread, file, line in _THREAD_OR_FRAME.findall(text):
        if thread:
            of_thread = found.setdefault(int(thread, 16), [])
        else:
            of_thread.append((_with_its_letters(file), int(line)))
    return found


def _with_its_letters(path: str) -> str:
    """faulthandler writes what is not ASCII as `\\xe9`, `\\u4f60` or `\\U0001f600`."""
    return re.sub(
        r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))",
        lambda code: chr(int(code[1] or code[2] or code[3], 16)),
        path,
    )
