"""rlprof-ops: profile RL post-training on Ray clusters inside Slurm jobs."""

from __future__ import annotations

from rlprof_ops.version import __version__

TYPE_CHECKING = False  # as checkers read it: typing itself is most of what a process pays for this package
if TYPE_CHECKING:
    from typing import Any

    from rlprof_ops.submitit_job.follow_up import HarvestRun, ReportRun, wait_for
    from rlprof_ops.submitit_job.ray_job import RayJob
    from rlprof_ops.submitit_job.run_summary import RunSummary

__all__ = ["HarvestRun", "RayJob", "ReportRun", "RunSummary", "__version__", "wait_for"]

_HOMES = {
    "HarvestRun": "follow_up",
    "RayJob": "ray_job",
    "ReportRun": "follow_up",
    "RunSummary": "run_summary",
    "wait_for": "follow_up",
}


def __getattr__(name: str) -> Any:
    """Import the names for submitit when they are asked for: a training process needs none of them.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.submitit_job.{_HOMES[name]}"), name)
