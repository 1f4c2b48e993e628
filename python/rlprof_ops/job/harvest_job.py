"""The job that harvests and reports another one, as that one's end submitted it
(scripts/lib/harvest_job.sh).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from rlprof_ops.host import foreign
from rlprof_ops.job.knobs import Settings
from rlprof_ops.slurm import client
from rlprof_ops.slurm.client import SlurmJob

NAME = "harvest_job.json"


def is_wanted(settings: Settings, nodes: int, env: Mapping[str, str]) -> bool:
    """Whether a job of `nodes` has it submitted, as `job::who_harvests` of scripts/lib/job.sh decides."""
    asked = settings["RLPROF_HARVEST_JOB"]
    wanted = asked == "1" or (asked == "auto" and nodes > 1)
    sbatch = shutil.which("sbatch", path=env.get("PATH"))
    return wanted and settings.number("RLPROF_HARVEST_SECONDS") > 0 and sbatch is not None


def harvest_words(run: Path, seconds: float) -> tuple[str, ...]:
    """The harvest of a run folder that is ended after `seconds`, and that writes its manifest before, as
    `job::_harvest` of scripts/lib/job.sh says it.
    """
    return ("harvest", "--until", str(int(time.time() + seconds)), str(run))


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
