"""What happens to a selected worker that cannot be profiled on its node: the request says stop, or go on
without.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from rlprof_ops import env_names
from rlprof_ops.backends.wrapping import Identity

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec


class CannotProfile(Exception):
    """A selected worker cannot be profiled on this node, and nobody said to go on without."""


def give_up(
    identity: Identity,
    spec: CaptureSpec | None,
    context: Any,
    reason: str,
    logger: logging.Logger,
    tell: bool = True,
) -> None:
    """Let the worker start unprofiled where the request allows that; else raise `CannotProfile`, which fails
    its creation.

    `spec` is None when only the trainer asked: then going on in silence would be a surprise. `tell` leaves
    the reason for the manifest; not needed for workers with our runtime, which do it themselves.
    """
    text = f"node {os.environ.get(env_names.NODE) or socket.gethostname()}, {identity}: {reason}"
    if spec is None or spec.on_error == "fail":
        raise CannotProfile(text)
    logger.warning("rlprof: %s; it starts unprofiled", text)
    context.env_vars[env_names.NOT_WRAPPED] = text
    if tell and identity.worker is not None and os.environ.get(env_names.NODE_DIR):
        _tell_the_manifest(identity, spec, text)


def _tell_the_manifest(identity: Identity, spec: CaptureSpec, reason: str) -> None:
    from rlprof_ops.runtime.process.event_log import EventLog
    from rlprof_ops.runtime.process.worker_identity import find_identity

    place = find_identity(identity.worker, identity.rank, None, os.environ)
    log = EventLog(place.events / f"{place.stem}.jsonl")
    log.registered(dataclasses.replace(place, world_size=None), (spec.backend,))
    for window in spec.windows():
        log.write(
            "failed", backend=spec.backend, steps=[window.start, window.stop], phase=None, reason=reason
        )
