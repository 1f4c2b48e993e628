"""A trainer's script with a leader that takes turns: `recorder.turns` has a trainer's Python run it."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any


def is_on(step: int, turn: int) -> bool:
    return (step // turn) % 2 == 0


def inside(recorder: int, turn: int, argv: list[str]) -> int:
    """Run the script; `recorder` is the pid of the node's recorder, 0 for none."""
    from rlprof_ops.runtime.leader import Leader, PhaseSpan

    on = [True]
    begin, phase_begins = Leader.begin, Leader.phase_begins

    def turned(self: Any, step: int) -> bool:
        if on[0] != (now := is_on(step, turn)):
            on[0] = now
            if recorder:
                os.kill(recorder, signal.SIGCONT if now else signal.SIGSTOP)
        return begin(self, step) if now and recorder else False

    def gated(work: Any) -> Any:
        return lambda self, *args, **more: work(self, *args, **more) if on[0] and recorder else None

    Leader.begin = turned  # type: ignore[method-assign]
    for name in ("opened", "end", "phase_ends"):
        setattr(Leader, name, gated(getattr(Leader, name)))
    Leader.phase_begins = lambda self, name: (  # type: ignore[method-assign]
        phase_begins(self, name) if on[0] and recorder else PhaseSpan(name, 0, 0)
    )
    sys.argv = argv
    try:
        runpy.run_path(argv[0], run_name="__main__")
    finally:
        if recorder:
            os.kill(recorder, signal.SIGCONT)
    return 0


if __name__ == "__main__":
    sys.exit(inside(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
