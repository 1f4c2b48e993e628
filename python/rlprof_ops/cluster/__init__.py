"""Around Ray on Slurm: nodes, ports, readiness, the node supervisor; and `RayJob` for submitit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlprof_ops.submitit_job.follow_up import HarvestRun, ReportRun, wait_for
    from rlprof_ops.submitit_job.ray_job import RayJob
    from rlprof_ops.submitit_job.run_summary import RunSummary

__all__ = ["HarvestRun", "RayJob", "ReportRun", "RunSummary", "wait_for"]

_HOMES = {"HarvestRun": "follow_up", "RayJob": "ray_job", "ReportRun": "follow_up", "RunSummary": "summary", "wait_for": "follow_up"}


def __getattr__(name: str) -> Any:
    """Imported when asked for: a node's supervisor needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
