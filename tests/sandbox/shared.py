"""Faults of the shared folder: full, read-only, gone; and back. It is a tmpfs of its own, so nothing else
is touched.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from tests.sandbox.box import Box
from tests.sandbox.spec import SandboxError, Spec


def fill(spec: Spec, leave_bytes: int = 0) -> None:
    """Shrinks the filesystem to what is in it: full at once, without writing anything."""
    usage = os.statvfs(spec.shared)
    used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    _mount("-o", f"remount,size={max(used + leave_bytes, usage.f_frsize)}", str(spec.shared))


def cover(spec: Spec, boxes: Mapping[str, Box], how: str) -> None:
    """Puts a read-only view ("readonly") or an empty folder ("vanished") over the shared folder inside each
    box.

    A cover, not `remount,ro`: the kernel refuses that while any file is open for writing, and jobs have logs
    open.
    """
    if broken(spec):
        uncover(spec, boxes)
    (spec.dir / "broken").write_text(how)
    for box in boxes.values():
        if how == "readonly":
            _mount("--bind", str(spec.shared), str(spec.shared), box=box)
            _mount("-o", "remount,bind,ro", str(spec.shared), box=box)
        else:
            _mount("-t", "tmpfs", "-o", "ro,mode=755,size=4k", "rlprof-vanished", str(spec.shared), box=box)


def uncover(spec: Spec, boxes: Mapping[str, Box]) -> None:
    for box in boxes.values():
        _call(_inside(box, "umount", "-l", str(spec.shared)))
    (spec.dir / "broken").unlink(missing_ok=True)


def restore(spec: Spec, boxes: Mapping[str, Box]) -> None:
    if broken(spec):
        uncover(spec, boxes)
    _mount("-o", f"remount,size={spec.shared_mb}m", str(spec.shared))


def broken(spec: Spec) -> str:
    """ "readonly", "vanished", or empty when nothing covers the shared folder."""
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


def _call(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=15, check=False)
    if done.returncode != 0:
        raise SandboxError(f"{' '.join(argv)} failed: {done.stderr.strip()}")
