"""Replaces nsys options with which workers have crashed or hung on new GPUs, unless the request names them.

Reported of compute capability 10 and up: `cuda` traces by hardware and crashes where a window begins late,
while `cuda-sw` works (NVIDIA-NeMo/RL 4090, NVIDIA/srt-slurm 373 and 418); workers hang with
`sample: process-tree`.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping

from rlprof_ops.backends.nsight.presets import LONG
from rlprof_ops.host.command import output_of
from rlprof_ops.host.gpus import compute_capability

_FROM = 10.0
_SOFTWARE = "cuda-sw"
_PROCESS_TREE = ("process-tree", "system-wide")


@functools.cache
def _node(nsys: str) -> tuple[float, bool]:
    """The highest compute capability here, and whether this nsys has a trace of CUDA by software alone."""
    capability = compute_capability()
    return capability, capability >= _FROM and _SOFTWARE in output_of(nsys, "launch", "--help")


def suited(options: Mapping[str, str], given: Container[str], nsys: str) -> tuple[dict[str, str], list[str]]:
    """`options` as this node's GPUs bear them, and what is to be said of the change.

    `given`: long names of those that the request has itself; they stay.
    """
    capability, software = _node(nsys)
    suits, notes = dict(options), []
    gpus = f"GPUs of compute capability {capability:g}"
    for name, value in options.items() if capability >= _FROM else ():
        what = LONG.get(name, name)
        traced = value.split(",")
        if what == "trace" and software and "cuda" in traced and what not in given:
            suits[name] = ",".join(_SOFTWARE if api == "cuda" else api for api in traced)
            notes.append(
                f"nsys traces CUDA by software ({_SOFTWARE}) on {gpus}: t: {value} asks for hardware"
            )
        elif what == "trace" and software and "cuda" in traced:
            notes.append(
                f"nsys traces {value} on {gpus}, as asked: where workers crash, {_SOFTWARE} may help"
            )
        elif what == "sample" and value in _PROCESS_TREE and what not in given:
            suits[name] = "none"
            notes.append(
                f"nsys samples no CPU on {gpus}, as workers have hung there: sample: {value} asks for it"
            )
    return suits, notes
