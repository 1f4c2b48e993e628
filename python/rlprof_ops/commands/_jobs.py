"""The argument by which every command names a job, and how a shell completes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Job ids that `rlprof submit` remembers, newest first."""
    from rlprof_ops.job.job_history import recall

    return [known.job for known in reversed(recall()) if known.job.startswith(incomplete)][:20]


def job_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """`JOB`: a job id, or a run folder."""
    return click.argument("job", shell_complete=complete)(function)
