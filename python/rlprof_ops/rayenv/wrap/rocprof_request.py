"""rocprof-sys for workers that use our runtime: from the request to a wrap that was tried."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof_ops import env_names
from rlprof_ops.backends import rocprof_sys
from rlprof_ops.rayenv.fallback import CannotProfile, give_up
from rlprof_ops.rayenv.worker_selection import Identity
from rlprof_ops.rayenv.wrap import rocprof
from rlprof_ops.rayenv.wrap.option_trial import Trials
from rlprof_ops.rayenv.wrap.rocprof import Asked, RocprofWrap

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec


async def prepare(
    spec: CaptureSpec, worker: str, rank: int | None, context: Any, trials: Trials, logger: logging.Logger
) -> RocprofWrap | None:
    """The wrap of one worker that `spec` selects; None when it is to start unprofiled.

    Raises `RuntimeError` when it cannot be profiled and its capture has `on_error: fail`.
    """
    flags = spec.flags if spec.flags or spec.options else rocprof.DEFAULT_FLAGS
    variables = {
        name: value
        for name, value in {**context.env_vars, **spec.env}.items()
        if name.startswith("ROCPROFSYS_")
    }
    identity = Identity(worker, rank)
    folder = Path(
        os.environ.get(env_names.NODE_DIR) or os.environ.get(env_names.RUN_DIR) or "rlprof-profiles"
    ).absolute()
    asked = Asked(spec.options, flags, variables)
    try:
        return await rocprof.prepare(
            asked, identity, spec, True, context, trials, folder / "profiles" / "rocprof_sys" / worker
        )
    except rocprof_sys.FrontEndError as error:
        try:
            give_up(identity, spec, context, str(error), logger, tell=False)
        except CannotProfile as refusal:
            raise RuntimeError(f"rlprof: {refusal}") from None
    return None
