"""Who takes one capture in this process: each opens a window, closes it, and hands over one finished file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlprof_ops.backends import Where, get, validate
from rlprof_ops.backends.contract import WindowRecorder as WindowRecorder
from rlprof_ops.host.gpus import has_gpu

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec


def choose_taker(spec: CaptureSpec, all_specs: Sequence[CaptureSpec]) -> tuple[WindowRecorder | None, str]:
    """Who takes `spec` in this process, or None and the reason why nobody can."""
    refused = validate(spec, Where(gpu=has_gpu())).errors
    if refused:
        return None, "; ".join(refused)
    return get(spec.backend).recorder(spec, all_specs)
