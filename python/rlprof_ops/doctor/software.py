"""The Python of a node: Ray, our plugin in it, the state of Ray's own nsight plugin, nvtx, torch."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator

from rlprof_ops import rayenv
from rlprof_ops.check_result import FAIL, OK, WARN, CheckResult, last_line, output
from rlprof_ops.extras import installed_version
from rlprof_ops.version import __version__

_OLDEST_RAY = (2, 49)


def python() -> Iterator[CheckResult]:
    text = f"{platform.python_version()} ({sys.executable}), rlprof-ops {__version__}"
    fine = sys.version_info >= (3, 10)
    yield CheckResult(
        "python",
        OK if fine else FAIL,
        text,
        "" if fine else "3.10 or newer is needed: set RLPROF_VENV or RLPROF_PYTHON",
    )
    if installed_version("pyyaml") is None:
        yield CheckResult("python", FAIL, f"{sys.executable} lacks PyYAML", "pip install pyyaml there")


def ray() -> Iterator[CheckResult]:
    version = installed_version("ray")
    if version is None:
        yield CheckResult(
            "ray",
            FAIL,
            f"not installed for {sys.executable}",
            "set RLPROF_VENV to the trainer's environment, or install ray there",
        )
        return
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    fine = numbers >= _OLDEST_RAY
    yield CheckResult(
        "ray",
        OK if fine else WARN,
        version,
        "" if fine else "2.49 or newer is tested; older ones may lack what the plugin needs",
    )
    reason = rayenv.check_import(dict(os.environ))
    yield CheckResult(
        "ray plugin",
        FAIL if reason else OK,
        last_line(reason) if reason else "loads in Ray's runtime-env agent",
        "nsight windows need it: put rlprof-ops (python/ of the checkout) on the nodes' PYTHONPATH"
        if reason
        else "",
    )
    yield _patch_state()


def _patch_state() -> CheckResult:
    """Exit codes of scripts/patch_ray_nsight.sh --check: 0 repaired, 1 needs it, 2 unknown."""
    code, text = output(["bash", rayenv.PATCH_SCRIPT, "--python", sys.executable, "--check"])
    said = last_line(text).removeprefix("patch_ray_nsight: ")
    if code == 0:
        return CheckResult("ray's nsight", OK, said)
    if code == 1:
        return CheckResult(
            "ray's nsight",
            OK,
            "has the bare-python fault in its file; our plugin repairs it in memory",
            "where the plugin cannot be registered: RLPROF_PATCH_RAY=1, or rlprof patch-ray",
        )
    return CheckResult(
        "ray's nsight", WARN, said, "its file is of no known shape; captures through our plugin do not use it"
    )


def nvtx() -> Iterator[CheckResult]:
    version = installed_version("nvtx")
    if version is not None:
        yield CheckResult("nvtx", OK, version)
    elif installed_version("torch") is not None:
        yield CheckResult(
            "nvtx",
            WARN,
            "not installed",
            "pip install nvtx==0.2.10: without it only CUDA builds of torch write ranges",
        )
    else:
        yield CheckResult(
            "nvtx",
            WARN,
            "neither nvtx nor torch is installed: reports will have no ranges",
            "pip install nvtx==0.2.10",
        )
