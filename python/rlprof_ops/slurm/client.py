"""Slurm's commands as functions: ask for a job, list mine, signal, cancel. No sacct; argument lists, never
a shell.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.errors import RlprofError
from rlprof_ops.host import command
from rlprof_ops.words import limit

TIMEOUT_S = 30.0
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
_WHOLE_LINE = ("Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Comment", "AdminComment", "SystemComment")
_SEPARATOR = "\x1f"  # in no job's name that a shell could type
BESIDE = "rlprof-beside"  # name of each step of ours but that of the supervisors
MARK = "rlprof:"  # before a run folder in a job's comment
_RECORDED = re.compile(rf"(?:^|; ){MARK}(/.*)$")
_FIELDS = ("%i", "%T", "%M", "%l", "%D", "%N", "%r", "%j", "%Z", "%o", "%k", "%A")  # man squeue, --format


@dataclass(frozen=True)
class SlurmJob:
    """What Slurm knows of a job now. `exit_code` is a shell's view (143 for SIGTERM), None while the job
    runs.
    """

    id: str
    name: str
    state: str
    reason: str = ""
    elapsed: str = ""
    time_limit: str = ""
    node_count: int = 0
    nodes: str = ""
    work_dir: str = ""
    command: str = ""
    output: str = ""
    user: str = ""
    uid: int = -1
    comment: str = ""
    exit_code: int | None = None
    restarts: int = 0
    element: str = ""

    @property
    def alone(self) -> str:
        """The id by which Slurm's commands mean this job alone: `1_1` for an element of an array, since they
        take the number of its last element for the whole array; `1_[2-9]` for those that wait.
        """
        return self.element or self.id

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def waiting(self) -> bool:
        return self.state in WAITING

    @property
    def run_dir(self) -> str:
        """The run folder that the job recorded with Slurm; empty before it starts and for other jobs."""
        found = _RECORDED.search(self.comment)
        return found[1] if found else ""

    @property
    def is_ours(self) -> bool:
        """Whether it was started from a ray.sub, or recorded a run folder."""
        return os.path.basename(self.command) == "ray.sub" or bool(self.run_dir)


def available() -> bool:
    return shutil.which("scontrol") is not None and shutil.which("squeue") is not None


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """One of Slurm's commands. Raises RlprofError when it is not installed or does not answer in time."""
    if shutil.which(argv[0]) is None:
        raise RlprofError(
            f"{argv[0]} is not on PATH: this is no login node of a Slurm cluster, or its module is not loaded"
        )
    try:
        return command.finished(argv, timeout_s, env, cwd)
    except subprocess.TimeoutExpired:
        raise RlprofError(
            f"{argv[0]} did not answer within {limit(timeout_s)}; Slurm's controller may be busy: try again"
        ) from None


def squeue(*words: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """squeue with hidden partitions, and without the filters that its user may have in the environment
    (`SQUEUE_STATES`, `SQUEUE_PARTITION` …, man squeue): a job that they hide still runs. Raises as `run`.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    return run(["squeue", "--all", "--noheader", *words], env=env, timeout_s=timeout_s)


def show(job: str) -> SlurmJob | None:
    """The job, or None without Slurm, when Slurm has forgotten it, or cannot be asked."""
    return look_up(job)[0]


def look_up(job: str) -> tuple[SlurmJob | None, str]:
    """The job, or None and why: no Slurm here, no answer, or a number that Slurm does not know."""
    number = job.partition(".")[0]
    if not re.fullmatch(r"\d+(_\d+)?", number):
        return None, "it is no job of Slurm's"
    if not available():
        return None, "Slurm cannot be asked here (no scontrol on PATH)"
    try:
        done = run(["scontrol", "show", "job", number])
    except RlprofError as error:
        return None, str(error)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        if "nvalid job id" in said or not said:
            return None, f"Slurm does not know job {number}"
        return None, f"Slurm does not answer here ({said.splitlines()[-1]})"
    return parse_shown(record_of(done.stdout, number)), f"Slurm's answer on job {number} was not understood"


def counts_gpus(node: str) -> bool:
    """Whether Slurm counts the GPUs of a node, as job::addresses of scripts/lib/job.sh asks it; False where
    it does not answer.
    """
    shown = command.run(["scontrol", "show", "node", node], TIMEOUT_S).stdout
    return re.search(r"(Gres=|CfgTRES=.*gres/)gpu", shown) is not None


def kill_wait() -> str:
    """KillWait in whole seconds, as job::addresses asks it; empty where Slurm does not answer."""
    shown = command.run(["scontrol", "show", "config"], TIMEOUT_S).stdout
    found = re.search(r"^KillWait *= *(\d+)", shown, re.MULTILINE)
    return found[1] if found else ""


def record_run_folder(job: str, folder: Path) -> None:
    """Write a run folder into the job's comment, after what its user wrote there, as
    slurm::record_run_folder of scripts/lib/slurm.sh does. A Slurm that refuses is no error.
    """
    known = show(job)
    kept = _RECORDED.sub("", known.comment) if known else ""
    with contextlib.suppress(RlprofError):
        run(
            [
                *("scontrol", "update", f"JobId={known.alone if known else job}"),
                f"Comment={f'{kept}; ' if kept else ''}{MARK}{folder}",
            ]
        )


def record_of(shown: str, number: str) -> str:
    """The record of job `number` in what `scontrol show job` printed, with `-o` or without: asked for the
    job that an array's number names, it prints all elements. The first one where none has the number.
    """
    records = re.split(r"\n\s*(?=JobId=\d+ )", shown.strip())
    array, _, task = number.partition("_")
    wanted = rf"JobId=\d+ ArrayJobId={array} ArrayTaskId={task} " if task else f"JobId={number} "
    return next((record for record in records if re.match(wanted, record)), records[0])


def parse_shown(text: str) -> SlurmJob | None:
    """The job of a record that `scontrol show job` printed. Names and paths may hold spaces and equals
    signs.
    """
    lines = [line.strip() for line in text.strip().split("\n")]
    first = re.match(
        r"JobId=(?P<id>\S+)(?: ArrayJobId=(?P<array>\d+))?(?: ArrayTaskId=(?P<task>\S+))?"
        r"(?: ArrayTaskThrottle=\S+)?(?: HetJobId=\S+)?(?: HetJobOffset=\S+)?"
        r" JobName=(?P<name>.*)",
        lines[0],
    )
    if first is None:
        return None
    fields: dict[str, str] = {}
    for line in lines[1:]:
        if not line:
            break
        key, _, value = line.partition("=")
        if key in _WHOLE_LINE:
            fields.setdefault(key, value)
            continue
        for word in line.split():
            key, _, value = word.partition("=")
            fields.setdefault(key, value)
    state = fields.get("JobState", "")
    return SlurmJob(
        id=first["id"],
        name=first["name"],
        state=state,
        reason=_known(fields.get("Reason", "")),
        elapsed=fields.get("RunTime", ""),
        time_limit=fields.get("TimeLimit", ""),
        node_count=_number(fields.get("NumNodes", "")),
        nodes=_known(fields.get("NodeList", "")),
        work_dir=fields.get("WorkDir", ""),
        command=fields.get("Command", ""),
        output=fields.get("StdOut", "").replace("%j", first["id"]),
        user=fields.get("UserId", "").partition("(")[0],
        uid=_number(fields.get("UserId", "(-1").partition("(")[2], -1),
        comment=_known(fields.get("Comment", "")),
        exit_code=_exit_code(fields.get("ExitCode", ""), state),
        restarts=_number(fields.get("Restarts", "")),
        element=_element(first["array"], first["task"]),
    )


def _element(array: str | None, task: str | None) -> str:
    """`1_1`. Elements that wait have one record, `0-3%2`: they are `1_[0-3]`, and empty where the list is cut
    short.
    """
    numbers = (task or "").partition("%")[0]
    if not array or not re.fullmatch(r"[\d,:-]+", numbers):
        return ""
    return f"{array}_{numbers}" if numbers.isdigit() else f"{array}_[{numbers}]"


def _exit_code(text: str, state: str) -> int | None:
    """`7:0` -> 7, `0:15` -> 143; a state that is a failure never gives 0."""
    if state not in ENDED:
        return None
    code, _, number = text.partition(":")
    found = 128 + _number(number) if _number(number) else _number(code)
    if found or state == "COMPLETED":
        return found
    return {"CANCELLED": 143, "TIMEOUT": 140}.get(state, 1)


def _full_clock(elapsed: str) -> str:
    """`1:29` of squeue as scontrol and sacct write it: `00:01:29`."""
    return elapsed if elapsed.count(":") != 1 else f"00:{elapsed.zfill(5)}"


def _number(text: str, otherwise: int = 0) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else otherwise


def _known(text: str) -> str:
    return "" if text in ("None", "(null)", "N/A") else text


def mine(timeout_s: float = TIMEOUT_S) -> list[SlurmJob]:
    """My jobs that wait or run, oldest first. Raises RlprofError without squeue."""
    fields = f"--format={_SEPARATOR.join(_FIELDS)}"
    done = squeue(f"--user={os.getuid()}", "--sort=i", fields, timeout_s=timeout_s)
    if done.returncode:
        raise RlprofError(f"squeue failed: {done.stderr.strip()}")
    rows = (line.split(_SEPARATOR) for line in done.stdout.splitlines())
    return [
        SlurmJob(
            id=row[11],
            element=_element(*row[0].replace("[", "").replace("]", "").partition("_")[::2]),
            state=row[1],
            elapsed=_full_clock(row[2]),
            time_limit=row[3],
            node_count=_number(row[4]),
            nodes=row[5],
            reason=_known(row[6]),
            name=row[7],
            work_dir=row[8],
            command=row[9],
            comment=_known(row[10]),
        )
        for row in rows
        if len(row) == len(_FIELDS)
    ]


def signal_step(job: SlurmJob, signal: str) -> bool:
    """Signal the job's supervisors; False when there is no such step (not begun, or over)."""
    step = first_step(job.alone)
    return bool(step) and run(["scancel", f"--signal={signal}", step]).returncode == 0


def first_step(job: str) -> str:
    """The id of the supervisors' step, as slurm::step of scripts/lib/slurm.sh finds it; "" without one."""
    rows = squeue("--steps", f"--jobs={job}", "--format=%i %j").stdout
    steps = (row.strip().partition(" ")[::2] for row in rows.splitlines())
    found = [id for id, name in steps if id.rpartition(".")[2].isdigit() and name.strip() != BESIDE]
    return min(found, key=lambda id: int(id.rpartition(".")[2]), default="")


def cancel(job: SlurmJob) -> None:
    """Raises RlprofError with scancel's own words."""
    done = run(["scancel", job.alone])
    if done.returncode:
        raise RlprofError(f"scancel {job.alone} failed: {done.stderr.strip()}")
