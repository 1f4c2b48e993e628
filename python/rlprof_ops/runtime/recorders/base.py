"""Who takes one capture in this process: each opens a window, closes it, and hands over one finished file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlprof_ops.backends import Where, get, validate
from rlprof_ops.backends.contract import WindowRecorder as WindowRecorder
from rlprof_ops.backends.window_support import AT_THE_END, ON_DEMAND, driver_of
from rlprof_ops.host.gpus import has_gpu

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec


def choose_taker(
    spec: CaptureSpec, beside: Sequence[CaptureSpec], asked_by: str | None = None
) -> tuple[WindowRecorder | None, str]:
    """Who takes `spec` in this process, or None and the reason why nobody can. `asked_by`: the id of a
    capture on demand.
    """
    driver = driver_of(asked_by)
    refused = validate(spec, Where(gpu=has_gpu(), driver=driver)).errors
    if refused:
        return None, "; ".join(refused)
    taker, impossible = get(spec.backend).recorder(spec, beside)
    if driver == ON_DEMAND and getattr(taker, "late", False):
        return None, f"this process was started with a capture range: {AT_THE_END}"
    return taker, impossible
