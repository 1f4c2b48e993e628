"""The line that leads a person into a running job, from the file that its head wrote
(supervisor/head.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.knobs import home

if TYPE_CHECKING:
    from rlprof_ops.job.run_folder import Job


def node_and_command(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """`[NODE] [-- COMMAND ...]` as typed: the node ("0", the head, when none is named) and the command's
    words.

    Raises:
        UsageError: a command without `--` before it, or an option that there is not.
    """
    words = list(words)
    dashes = words.index("--") if "--" in words else len(words)
    if dashes > 1:
        raise UsageError(
            f"{words[1]!r}: a command goes after `--`, as in: rlprof attach 4711 n2 -- nvidia-smi"
        )
    if dashes and words[0].startswith("-"):
        raise UsageError(f"no such option: {words[0]}. A command goes after `--`")
    return (words[0] if dashes else "0"), tuple(words[dashes + 1 :])


def into(
    job: Job, node: str, argv: Sequence[str], env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The line that leads into the job, and its environment. Raises RlprofError for a job that one cannot
    enter now.
    """
    if job.slurm is not None and (job.slurm.ended or job.slurm.waiting):
        raise RlprofError(f"job {job.id} is not running ({job.slurm.state}); rlprof status {job.id}")
    if job.run is None or not RunFolder(job.run).attach_env.exists():
        raise RlprofError(f"job {job.id}: its cluster is not up, or it is not yours; rlprof status {job.id}")
    line = ["bash", str(home() / "scripts" / "attach.sh"), str(job.run), node]
    # A COMMAND that happens to be set in this shell is nobody's order.
    return line, {**env, "COMMAND": shlex.join(argv)}
