"""Which parts of the test machine are there: what tests need beyond Python, and the reason when they
cannot have it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
SLURM_PROGRAMS = (
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "scontrol",
    "munged",
    "ip",
    "unshare",
    "nsenter",
    "setpriv",
)

skipped: Counter[str] = Counter()
"""Reason -> number of tests skipped for it in this run."""

unmet: list[str] = []
"""Modules that `pytest.importorskip` did not find although every part is required."""


def required(part: str) -> bool:
    """Whether RLPROF_TESTS_REQUIRE is `all` or names the part."""
    return bool({"all", part} & set(os.environ.get("RLPROF_TESTS_REQUIRE", "").replace(",", " ").split()))


def _module(name: str) -> str:
    return "" if importlib.util.find_spec(name) else f"no module {name}; pip install it into this Python"


def _ray() -> str:
    return _module("ray")


def _torch() -> str:
    return _module("torch")


def _scanner() -> str:
    from rlprof_ops.analyze.readers.scan import batches

    why = batches.unused()
    return (
        f"{why}; run env/setup_test_machine.sh compiler as root and pip install --editable . again"
        if why
        else ""
    )


def _slurm() -> str:
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    absent = [program for program in SLURM_PROGRAMS if not shutil.which(program, path=path)]
    if absent:
        return f"no {', '.join(absent)}; run env/setup_test_machine.sh slurm as root"
    if os.getuid() != 0:
        return "not root: the sandbox makes namespaces, bridges and mounts"
    if not os.path.ismount("/sys/fs/cgroup"):
        return "no filesystem mounted on /sys/fs/cgroup, without which slurmd does not start"
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return f"namespaces are not allowed here: {probe.stderr.strip()}" if probe.returncode else ""


def _nsys() -> str:
    nsys = os.environ.get("RLPROF_NSYS") or shutil.which("nsys")
    if not nsys:
        return "no nsys on PATH; run env/setup_nsys.sh as root"
    try:
        answer = subprocess.run(
            [nsys, "--version"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{nsys} --version: {error}"
    return "nsys 2022 hangs on short programs; run env/setup_nsys.sh as root" if " 2022." in answer else ""


def _chromium() -> str:
    if any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        return ""
    return "no chromium; run env/setup_test_machine.sh chromium as root"


def _mount() -> str:
    if os.getuid() != 0:
        return "not root: a test mounts file systems"
    probe = subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, text=True, timeout=10, check=False
    )
    return f"root may not mount here (CAP_SYS_ADMIN): {probe.stderr.strip()}" if probe.returncode else ""


def _fuse() -> str:
    return _mount() or ("" if os.path.exists("/dev/fuse") else "no /dev/fuse: modprobe fuse as root")


def _strace() -> str:
    if not shutil.which("strace"):
        return "no strace; run env/setup_test_machine.sh slurm as root"
    done = subprocess.run(["strace", "-qq", "true"], capture_output=True, text=True, timeout=30, check=False)
    return "" if done.returncode == 0 else f"strace is not allowed here: {done.stderr.strip()}"


def _root() -> str:
    return "not root: a test gives files to a second user" if os.getuid() else ""


def _memory_cgroup() -> str:
    from tests.faults import memory

    return _root() or memory.lacking()


def _index() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "nvtx"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else "no package index is reachable"


def _upstream() -> str:
    from tests import upstream

    return upstream.missing()


def _study() -> str:
    from tests.bench.truth import study

    return study.missing()


PARTS: dict[str, Callable[[], str]] = {
    "slurm": _slurm,
    "nsys": _nsys,
    "chromium": _chromium,
    "mount": _mount,
    "fuse": _fuse,
    "root": _root,
    "memory_cgroup": _memory_cgroup,
    "strace": _strace,
    "ray": _ray,
    "torch": _torch,
    "scanner": _scanner,
    "index": _index,
    "upstream": _upstream,
    "study": _study,
}


@functools.cache
def lacking(part: str) -> str:
    """Why a part cannot be used here; empty when it can. A part is a key of PARTS, else a module's name."""
    return PARTS[part]() if part in PARTS else _module(part)


def need(*parts: str) -> None:
    """Skips the calling test when a part is missing; fails it when RLPROF_TESTS_REQUIRE is `all` or names
    the part.
    """
    for part in parts:
        why = lacking(part)
        if not why:
            continue
        if required(part):
            pytest.fail(f"{part} is required (RLPROF_TESTS_REQUIRE) and missing: {why}", pytrace=False)
        skipped[f"{part}: {why}"] += 1
        pytest.skip(f"{part}: {why}")
