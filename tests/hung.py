"""A file system that hangs: every call to it waits for an answer that never comes, as on a dead NFS server.

A FUSE mount whose server never answers. Only SIGKILL ends a caller; files that were open before go on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_MNT_FORCE, _MNT_DETACH = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def hung(path: Path) -> Iterator[None]:
    """While it is open nobody gets an answer from `path`; what lay there is back afterwards. Needs
    need("fuse").
    """
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    target = os.fsencode(path)
    try:
        if _libc.mount(b"hung", target, b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "cannot mount a file system that hangs", str(path))
        try:
            yield
        finally:
            _libc.umount2(target, _MNT_FORCE | _MNT_DETACH)
    finally:
        os.close(fd)
