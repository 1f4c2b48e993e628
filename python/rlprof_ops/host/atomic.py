"""The one way to write a file that others read: whole or not at all, through a temporary name beside it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


def write(
    path: Path, data: str | bytes, *, mode: int = 0o666, durable: bool = False, dir_fd: int | None = None
) -> None:
    """Put `data` in the place of `path`; who has the old file open keeps it.

    The temporary name begins with a dot, so that no pattern of ours meets it. Where others may write in the
    folder, use `host.contained_dir`, which follows no link on the way.

    Args:
        data: text becomes UTF-8; what cannot be encoded is replaced.
        mode: of a new file, less the umask.
        durable: on the disk before this returns.
        dir_fd: an open folder that a relative `path` is below.

    Raises OSError; then the old file is as it was, and nothing is left behind.
    """
    content = data if isinstance(data, bytes) else data.encode("utf-8", errors="replace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        out = os.open(temporary, flags, mode, dir_fd=dir_fd)
    except FileExistsError:  # of a process that had our number and was killed here
        os.unlink(temporary, dir_fd=dir_fd)
        out = os.open(temporary, flags, mode, dir_fd=dir_fd)
    try:
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(out, left) :]
            if durable:
                os.fsync(out)
        finally:
            os.close(out)
        replace(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=dir_fd)
        raise
    if durable:
        _flush_folder(path.parent, dir_fd)


def replace(source: str | Path, target: str | Path, **folders: int | None) -> None:
    """`os.replace`, also where a file system does not rename over a file: then `target` is missing for a
    moment. `folders`: src_dir_fd and dst_dir_fd, both or neither.
    """
    try:
        os.replace(source, target, **folders)
        return
    except FileExistsError:
        pass
    there = folders.get("dst_dir_fd")
    target = Path(target)
    aside = target.with_name(f".{os.getpid()}-{os.urandom(4).hex()}.old")
    os.rename(target, aside, src_dir_fd=there, dst_dir_fd=there)
    try:
        os.rename(source, target, **folders)
    except BaseException:
        os.rename(aside, target, src_dir_fd=there, dst_dir_fd=there)
        raise
    os.unlink(aside, dir_fd=there)


def _flush_folder(folder: Path, dir_fd: int | None) -> None:
    """The name itself; file systems that cannot flush a folder say so, which is no failure of the write."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
