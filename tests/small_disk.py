"""A file system of a few MiB, and one that is full."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of `size`, such as 4m, at `folder`, which is made; a test that cannot have one is skipped."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        if os.environ.get("RLPROF_TESTS_REQUIRE") == "all":
            pytest.fail(f"cannot mount a file system: {done.stderr.strip()}")
        pytest.skip(f"cannot mount a file system, which needs root: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)  # a test may have done so


def fill(ballast: Path) -> None:
    """Write `ballast` until nothing more fits, also not the page that a new file takes."""
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    try:
        Path(f"{ballast}.more").write_bytes(b"x")
    except OSError as error:
        assert error.errno == errno.ENOSPC
    else:
        raise AssertionError(f"{ballast} has left room")
