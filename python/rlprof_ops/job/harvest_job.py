"""The job that harvests and reports another one, as that one's end submitted it
(scripts/lib/harvest_job.sh).
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from rlprof_ops.host import foreign
from rlprof_ops.slurm import client
from rlprof_ops.slurm.client import SlurmJob

NAME = "harvest_job.json"


def to_come(run: Path | None) -> SlurmJob | None:
    """The job that waits or runs; None when there is none, it is over, or Slurm cannot be asked.

    Its file goes when it is over, so that Slurm is not asked of jobs of the past; one that was killed may
    leave it.
    """
    number = named(run)
    known = client.show(number) if number else None
    return None if known is None or known.ended else known


def named(run: Path | None) -> str:
    """The number in the run folder; empty without one."""
    if run is None:
        return ""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        number = str(foreign.read(run / NAME)["job"])
        return number if re.fullmatch(r"\d{1,18}", number) else ""
    return ""
