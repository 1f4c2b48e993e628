"""The Slurm options that decide how a job can end, and whether its last reports come home."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping

from rlprof_ops.check_result import FAIL, OK, WARN, CheckResult, last_line, output
from rlprof_ops.errors import UsageError
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.site import read_site

_OLDEST = (22, 5)
_TEN = 10  # seconds that closing windows and the last sync take at least


def checks(settings: Settings) -> Iterator[CheckResult]:
    """Ask `scontrol show config`; nothing to say about Slurm where there is none."""
    if shutil.which("scontrol") is None:
        yield CheckResult(
            "slurm",
            WARN,
            "no scontrol on PATH",
            "run this on a login node, or use rlprof demo and submitit's local executor without Slurm",
        )
        return
    code, text = output(["scontrol", "show", "config"])
    if code:
        yield CheckResult(
            "slurm",
            FAIL,
            f"scontrol show config: {last_line(text.splitlines()[0])}",
            "ask the operator: slurmctld does not answer this machine",
        )
        return
    yield from judge(parse(text), settings)
    yield from _commands()


def site_file(env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Whether the site's file is there and every line of it sets something."""
    try:
        site = read_site(env)
    except UsageError as error:
        yield CheckResult("site file", FAIL, str(error).partition(". ")[0], str(error).partition(". ")[2])
        return
    for warning in site.warnings:
        yield CheckResult("site file", WARN, warning, "correct the line")
    if not site.warnings:
        yield CheckResult("site file", OK, str(site.path) if site.path else "none; the knobs' defaults")


def parse(text: str) -> dict[str, str]:
    """`Name = value` lines as a dict."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def judge(config: Mapping[str, str], settings: Settings) -> Iterator[CheckResult]:
    """What each option means for a profiled job. Pure."""
    yield _version(config.get("SLURM_VERSION", ""))
    yield _kill_wait(_seconds(config.get("KillWait", "")), settings.number("RLPROF_DRAIN_SECONDS"))
    yield _private_tmp(config)
    yield _signals(config)
    yield _requeue(config)
    yield _devices(config)
    accounting = config.get("AccountingStorageType", "")
    none = "none" in accounting or accounting in ("", "(null)")
    yield CheckResult(
        "accounting", OK, "no accounting, so sacct is empty: nothing here needs it" if none else accounting
    )


def _version(text: str) -> CheckResult:
    found = re.match(r"(\d+)\.(\d+)", text)
    if not found:
        return CheckResult("slurm version", WARN, f"not understood: {text!r}", "22.05 or newer is needed")
    fine = (int(found[1]), int(found[2])) >= _OLDEST
    return CheckResult(
        "slurm version",
        OK if fine else FAIL,
        text,
        "" if fine else "22.05 or newer is needed: older ones lack --signal for steps as ray.sub uses it",
    )


def _kill_wait(seconds: int | None, drain: int) -> CheckResult:
    """KillWait: seconds between SIGTERM and SIGKILL after scancel, man slurm.conf."""
    if seconds is None:
        return CheckResult("KillWait", WARN, "not told", "30 s is assumed")
    if seconds < _TEN:
        return CheckResult(
            "KillWait",
            FAIL,
            f"{seconds} s from scancel to SIGKILL",
            "end jobs with `scancel --signal=TERM <job>.0`, or have KillWait raised to 30",
        )
    if seconds < drain:
        fix = (
            "enough for small reports; for large ones end jobs with `scancel --signal=TERM <job>.0`, which"
            " has no limit but RLPROF_DRAIN_SECONDS"
        )
        return CheckResult(
            "KillWait", OK, f"{seconds} s from scancel to SIGKILL, below RLPROF_DRAIN_SECONDS={drain}", fix
        )
    return CheckResult("KillWait", OK, f"{seconds} s")


def _private_tmp(config: Mapping[str, str]) -> CheckResult:
    """job_container/tmpfs gives each job its own /tmp, gone with it: what is synced is safe, a node's
    leftovers are not.
    """
    if "tmpfs" in config.get("JobContainerType", ""):
        return CheckResult(
            "private /tmp",
            OK,
            "each job has a /tmp of its own, deleted with it",
            "what could not be copied cannot be looked for afterwards; RLPROF_NODE_ROOT on a local disk"
            " outside of /tmp keeps it",
        )
    return CheckResult("private /tmp", OK, "jobs on a node share /tmp; our folder in it is mode 0700")


def _signals(config: Mapping[str, str]) -> CheckResult:
    tracker = config.get("ProctrackType", "")
    if "cgroup" in tracker:
        return CheckResult(
            "signals", OK, f"{tracker}: signals reach a step's own processes, and nothing survives a job"
        )
    return CheckResult(
        "signals",
        WARN,
        f"{tracker or 'unknown'}: a signal to a step reaches Ray's processes too",
        "ask the operator for ProctrackType=proctrack/cgroup; until then windows that are open at the time"
        " limit may be lost",
    )


def _requeue(config: Mapping[str, str]) -> CheckResult:
    preempt = config.get("PreemptMode", "OFF")
    if "SUSPEND" in preempt or "GANG" in preempt:
        return CheckResult(
            "preemption",
            WARN,
            f"PreemptMode={preempt}: a job may be stopped for hours and go on; a step and a window that"
            " were open then are as long as the pause, and Ray gives up a node that goes on more than"
            " about 30 s late",
            "submit where jobs are requeued or not preempted at all (another partition or QOS)",
        )
    if "REQUEUE" not in preempt:
        return CheckResult("preemption", OK, f"PreemptMode={preempt}")
    if "send_user_signal" in config.get("PreemptParameters", ""):
        return CheckResult("preemption", OK, "requeues, after the job's own signal")
    return CheckResult(
        "preemption",
        WARN,
        "requeues with SIGTERM and GraceTime only",
        "set RLPROF_DRAIN_SECONDS below the partition's GraceTime; PreemptParameters=send_user_signal would"
        " help",
    )


def _devices(config: Mapping[str, str]) -> CheckResult:
    """ConstrainDevices of cgroup.conf: whether a job can open GPUs that are not its own."""
    constrain = config.get("ConstrainDevices", "no").lower() == "yes"
    counts = "gpu" in config.get("GresTypes", "")
    if constrain:
        return CheckResult("GPU devices", OK, "ConstrainDevices=yes: a job sees its own GPUs alone")
    if counts:
        return CheckResult(
            "GPU devices",
            OK,
            "ConstrainDevices=no: a job's GPUs are those of CUDA_VISIBLE_DEVICES, which Ray gets",
        )
    return CheckResult(
        "GPU devices",
        OK,
        "Slurm counts no GPUs (GresTypes): Ray gets all that nvidia-smi or rocm-smi sees on a node",
        "set GPUS_PER_NODE where jobs share nodes",
    )


def _seconds(text: str) -> int | None:
    found = re.match(r"(\d+)", text)
    return int(found[1]) if found else None


def _commands() -> Iterator[CheckResult]:
    missing = [name for name in ("sbatch", "srun", "scancel", "squeue") if shutil.which(name) is None]
    yield CheckResult(
        "slurm commands",
        FAIL if missing else OK,
        f"missing: {', '.join(missing)}" if missing else "sbatch, srun, scancel, squeue",
        "install Slurm's client commands here" if missing else "",
    )
