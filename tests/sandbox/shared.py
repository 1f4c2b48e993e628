"""Faults of the shared folder: full, read-only, gone, hung; and back. It is a tmpfs of its own, so
nothing else is touched.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from tests.sandbox.box import Box
from tests.sandbox.spec import LOGIN, SandboxError, Spec

_hung: dict[str, list[int]] = {}
"""Name of a sandbox -> descriptors of its file systems that hang; closing one ends it."""


def fill(spec: Spec, leave_bytes: int = 0) -> None:
    """Shrinks the filesystem to what is in it: full at once, without writing anything."""
    usage = os.statvfs(spec.shared)
    used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    _mount("-o", f"remount,size={max(used + leave_bytes, usage.f_frsize)}", str(spec.shared))


def cover(spec: Spec, boxes: Mapping[str, Box], how: str) -> None:
    """Puts a read-only view ("readonly"), an empty folder ("vanished") or a file system that never answers
    ("hung", on nodes alone, as long as this process lives) over the shared folder inside each box.

    A cover, not `remount,ro`: the kernel refuses that while any file is open for writing, and jobs have logs
    open.
    """
    if broken(spec):
        uncover(spec, boxes)
    (spec.dir / "broken").write_text(how)
    for box in _met(boxes, how):
        if how == "readonly":
            _mount("--bind", str(spec.shared), str(spec.shared), box=box)
            _mount("-o", "remount,bind,ro", str(spec.shared), box=box)
        elif how == "hung":
            _mount_hung(spec, box)
        else:
            _mount("-t", "tmpfs", "-o", "ro,mode=755,size=4k", "rlprof-vanished", str(spec.shared), box=box)


def _met(boxes: Mapping[str, Box], how: str) -> list[Box]:
    return [box for name, box in boxes.items() if how != "hung" or name != LOGIN]


def _mount_hung(spec: Spec, box: Box) -> None:
    """A FUSE file system whose server, this process, never reads what is asked."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    _hung.setdefault(spec.name, []).append(fd)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
    argv = _inside(box, "mount", "-i", "-t", "fuse", "-o", options, "rlprof-hung", str(spec.shared))
    _call(argv, fds=(fd,))


def uncover(spec: Spec, boxes: Mapping[str, Box]) -> None:
    how = broken(spec)
    for fd in _hung.pop(spec.name, []):
        os.close(fd)  # who waits for an answer gets an error now
    for box in _met(boxes, how):
        _call(_inside(box, "umount", "-l", str(spec.shared)))
    (spec.dir / "broken").unlink(missing_ok=True)


def restore(spec: Spec, boxes: Mapping[str, Box]) -> None:
    if broken(spec):
        uncover(spec, boxes)
    _mount("-o", f"remount,size={spec.shared_mb}m", str(spec.shared))


def broken(spec: Spec) -> str:
    """ "readonly", "vanished", "hung", or empty when nothing covers the shared folder."""
    try:
        return (spec.dir / "broken").read_text()
    except FileNotFoundError:
        return ""


def _inside(box: Box, *argv: str) -> list[str]:
    # All namespaces: mount and umount read /proc/self, which the box's /proc has only for the box's own
    # processes.
    return [*box.enter(), *argv]


def _mount(*args: str, box: Box | None = None) -> None:
    _call(["mount", *args] if box is None else _inside(box, "mount", *args))


def _call(argv: list[str], fds: tuple[int, ...] = ()) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, pass_fds=fds)
    if done.returncode != 0:
        raise SandboxError(f"{' '.join(argv)} failed: {done.stderr.strip()}")
