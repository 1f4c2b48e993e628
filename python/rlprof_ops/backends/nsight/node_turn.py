"""What only one process of a node may do at a time, such as sampling its GPUs' counters."""

from __future__ import annotations

import fcntl
import os
import tempfile

from rlprof_ops import env_names


class NodeTurn:
    """Whoever has it keeps it until it is given back, or until the process ends in whichever way.

    Where no file tells whose turn it is, it is everybody's: then what they do at a time says so itself.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def taken(cls, what: str) -> NodeTurn | None:
        """The turn of this node's processes of this job; None: another one has it."""
        folder = os.environ.get(env_names.NODE_DIR)
        if folder:
            path = os.path.join(folder, f".{what}.turn")
        else:
            path = os.path.join(tempfile.gettempdir(), f"rlprof-{os.getuid()}-{what}.turn")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return cls(None)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def give_back(self) -> None:
        """Also from children that inherited it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)
