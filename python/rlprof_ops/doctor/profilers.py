"""What a node allows profilers, and who else uses them there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from rlprof_ops.check_result import OK, WARN, CheckResult
from rlprof_ops.host.gpus import has_nvidia_driver

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_NVIDIA_PARAMETERS = Path("/proc/driver/nvidia/params")
# Processes that hold a GPU's profiling counters, or record others: a second user of CUPTI gets nothing or an
# error.
_OTHER_USERS = {
    "nv-hostengine": "dcgmi profile --pause while you profile, and --resume after",
    "dcgm-exporter": "dcgmi profile --pause while you profile, and --resume after",
    "ncu": "end it: Nsight Compute takes the counters for itself",
    "nvprof": "end it",
}


def perf_event_paranoid() -> Iterator[CheckResult]:
    """2 allows a user to sample own processes, 1 the kernel's side too (kernel documentation,
    perf-security).
    """
    try:
        value = int(_PARANOID.read_text())
    except (OSError, ValueError):
        yield CheckResult(
            "perf_event_paranoid", WARN, "cannot be read", "CPU samples (nsys -s process-tree) may be missing"
        )
        return
    fine = value <= 2 or os.getuid() == 0
    yield CheckResult(
        "perf_event_paranoid",
        OK if fine else WARN,
        str(value),
        (
            ""
            if fine
            else (
                "above 2 nsys takes no CPU samples: sysctl kernel.perf_event_paranoid=2, or leave the option"
                " s off"
            )
        ),
    )


def cupti() -> Iterator[CheckResult]:
    """NVIDIA's rule: RmProfilingAdminOnly=1 keeps GPU counters to root
    (developer.nvidia.com/ERR_NVGPUCTRPERM).
    """
    if not has_nvidia_driver():
        yield CheckResult("GPU counters", OK, "no NVIDIA driver here, so nothing to permit")
        return
    try:
        found = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", _NVIDIA_PARAMETERS.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        yield CheckResult(
            "GPU counters",
            WARN,
            f"{_NVIDIA_PARAMETERS} does not tell",
            "CUDA traces need no counters; gpu-metrics-* do",
        )
        return
    closed = found[1] == "1" and os.getuid() != 0
    yield CheckResult(
        "GPU counters",
        WARN if closed else OK,
        "for administrators only" if closed else "allowed",
        (
            "CUDA and NVTX traces work; for gpu-metrics-* the operator sets"
            " NVreg_RestrictProfilingToAdminUsers=0"
            if closed
            else ""
        ),
    )


def other_users(proc: Path = Path("/proc")) -> Iterator[CheckResult]:
    """Processes that share a GPU's profiling interface with us."""
    names: dict[str, str] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                names[entry.name] = (entry / "comm").read_text().strip()
            except OSError:
                continue  # it has ended
    found = sorted({name for name in names.values() if name in _OTHER_USERS})
    if not found:
        yield CheckResult(
            "other profilers", OK, "no DCGM, ncu or nvprof runs here (as far as this user sees)"
        )
    for name in found:
        pids = [pid for pid, other in names.items() if other == name]
        yield CheckResult(
            "other profilers",
            WARN,
            f"{name} runs (pid {', '.join(pids[:3])}) and may hold the GPU's counters",
            _OTHER_USERS[name],
        )
