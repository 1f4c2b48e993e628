"""GPUs of this machine, as their vendors' own tools count them, for clusters where Slurm does not."""

from __future__ import annotations

import json
import os
import re

from rlprof_ops.host.command import output_of


def has_nvidia_driver() -> bool:
    """Whether an NVIDIA driver is here, told without loading CUDA."""
    return os.path.exists("/dev/nvidiactl") or os.path.isdir("/proc/driver/nvidia/gpus")


def has_gpu() -> bool:
    """Whether an NVIDIA or AMD driver is here, told without loading anything."""
    return has_nvidia_driver() or os.path.exists("/dev/kfd")


def compute_capability() -> float:
    """The highest of NVIDIA's GPUs here, 9.0 of an H100; 0 without one, or where it is not told in 10 s, for
    a worker's start waits for it. Never raises.
    """
    told = output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", seconds=10.0)
    return max((float(found) for found in re.findall(r"^(\d+\.\d+)\s*$", told, re.MULTILINE)), default=0.0)


def visible_gpus() -> int:
    """How many GPUs a process here may use; 0 without a driver or its tool. Never raises."""
    return _of_nvidia() or _of_amd()


def _of_nvidia() -> int:
    """`nvidia-smi -L`: a line `GPU 0: name (UUID: …)` for each; slices of one stand below it, indented."""
    return len(re.findall(r"^GPU \d+:", output_of("nvidia-smi", "-L"), re.MULTILINE))


def _of_amd() -> int:
    """`rocm-smi --showid --json`: an object with a key `card0` for each."""
    try:
        found = json.loads(output_of("rocm-smi", "--showid", "--json"))
    except ValueError:
        return 0
    return sum(key.startswith("card") for key in found) if isinstance(found, dict) else 0
