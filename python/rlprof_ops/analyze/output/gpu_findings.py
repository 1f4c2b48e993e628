"""What the GPUs of a worker did with their time, in words, with or without phases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlprof_ops.analyze.kernel_names import COMMUNICATION, COPY, kernel_class
from rlprof_ops.analyze.output.text import counted, duration, percent, size
from rlprof_ops.analyze.report_model import CopyRow, Finding, KernelClassRow, LaunchRow, NameRow
from rlprof_ops.analyze.run.merge import Merged, RankStep

MIN_SHARE = 0.03
MIN_MARKED = 0.5  # of a worker's time in phases, from which on they explain it better than its kernels
SHORT_NS = 10_000  # of a kernel: about what its launch takes
MAX_CLASSES = 3
MAX_NAME = 60

# kind, the time that it is about (of `GpuTimes` or `IdleSplit`), what stands before its share, and after it
TIMES = (
    ("communication", "exposed_communication_ns", "Communication that nothing hides takes", "{}'s GPU time"),
    ("copies", "exposed_memcpy_ns", "Copies that nothing hides take", "{}'s GPU time"),
    ("host", "host_ns", "{}'s GPUs wait for the host to launch work for", "the time"),
    (
        "queued",
        "queued_ns",
        "{}'s GPUs stand still before work that the host had launched already for",
        "the time",
    ),
    (
        "synchronise",
        "synchronising_ns",
        "{}'s GPUs stand still while the host is in a synchronise call for",
        "the time",
    ),
)


def gpu_findings(
    merged: Merged,
    classes: Sequence[KernelClassRow],
    kernels: Sequence[NameRow],
    copies: Sequence[CopyRow],
    launches: Sequence[LaunchRow],
) -> list[Finding]:
    """Exposed communication and copies and each kind of idle time, from `MIN_SHARE` on, and the kernels of a
    worker whose phases do not tell what its time was for.
    """
    found = []
    for worker in sorted({row.rank.worker for row in merged.steps}):
        rows = [
            row for row in merged.steps if row.rank.worker == worker and row.gpu and row.gpu.window_ns > 0
        ]
        computing = [r for r in classes if r.worker == worker and r.kernel_class not in (COPY, COMMUNICATION)]
        short = _short_kernels(computing)
        evidence = {
            "copies": _most_copies([row for row in copies if row.worker == worker]),
            "host": _launch_bound([row for row in launches if row.worker == worker]) or short,
            "queued": short,
        }
        for kind, field, before, after in TIMES if rows else ():
            cost, share = _time(rows, field)
            if share >= MIN_SHARE:
                text = f"{before} {percent(share)} of {after}: {duration(cost)} {unit(rows)}".format(worker)
                found.append(Finding(kind, f"{text}{evidence.get(kind, '')}.", cost, worker))
        marked = sum(row.in_phases_ns for row in rows)
        if computing and rows and marked < MIN_MARKED * sum(row.duration_ns for row in rows):
            found.append(_busy(worker, rows, computing, kernels))
    return found


def unit(rows: Sequence[RankStep]) -> str:
    """What a mean is of: a step, or a window of which nothing tells how many steps it holds."""
    return "a step" if any(row.marked or row.count for row in rows) else "of the window"


def _time(rows: Sequence[RankStep], field: str) -> tuple[int, float]:
    """A time of a worker's GPUs, in a step on one GPU, and its share of all."""
    of = [(getattr(row.gpu if hasattr(row.gpu, field) else row.idle, field, 0), row) for row in rows]
    steps = sum(row.count or 1 for row in rows)
    share = sum(time for time, _ in of) / sum(row.gpu.window_ns for row in rows if row.gpu)
    return round(sum(time / row.devices for time, row in of) / steps), share


def _most_copies(copies: Sequence[CopyRow]) -> str:
    """The direction that takes most, and its rate where sizes are known."""
    totals: Counter[str] = Counter()
    for row in copies:
        totals[row.direction] += row.total_ns
    for most, time in totals.most_common(1):
        mine = [row for row in copies if row.direction == most]
        moved = sum(row.size_bytes or 0 for row in mine)
        took = sum((row.size_bytes or 0) / row.gb_per_s for row in mine if row.gb_per_s)
        rate = f", {size(moved)} at {round(moved / took, 1)} GB/s" if took else ""
        share = percent(time / max(totals.total(), 1))
        return f"; {share} of all copying is {most}, {sum(row.count for row in mine)} times{rate}"
    return ""


def _launch_bound(launches: Sequence[LaunchRow]) -> str:
    """Most launches take longer than their work: no host is fast enough for such kernels."""
    count, shorter = (sum(getattr(row, field) for row in launches) for field in ("count", "shorter"))
    if not 0 < count < 2 * shorter:
        return ""
    return f"; {percent(shorter / count)} of {count} launches outlast their work"


def _short_kernels(computing: Sequence[KernelClassRow]) -> str:
    """Kernels that end before the next one can be launched."""
    count, total = (sum(getattr(row, field) for row in computing) for field in ("count", "total_ns"))
    if not 0 < total < SHORT_NS * count:
        return ""
    return f"; its {counted(count, 'kernel')} last {duration(total / count)} on average"


def _busy(
    worker: str, rows: Sequence[RankStep], computing: Sequence[KernelClassRow], kernels: Sequence[NameRow]
) -> Finding:
    """How busy the GPUs were, with what kinds of kernels, and which kernel takes most."""
    cost, share = _time(rows, "compute_ns")
    times: Counter[str] = Counter()
    for row in computing:
        times[row.kernel_class] += row.total_ns
    whole = max(times.total(), 1)
    kinds = ", ".join(f"{kind} {percent(time / whole)}" for kind, time in times.most_common(MAX_CLASSES))
    text = (
        f"{worker}'s GPUs are busy {percent(_time(rows, 'busy_ns')[1])} of the time and compute for"
        f" {percent(share)} of it: {duration(cost)} {unit(rows)}. Of the computing, {kinds}"
    )
    mine = (row for row in kernels if row.worker == worker)  # the longest first
    top = next((row for row in mine if kernel_class(row.name) not in (COPY, COMMUNICATION)), None)
    if top is not None:
        text += (
            f"; {top.name[:MAX_NAME]}{'…' * (len(top.name) > MAX_NAME)} alone takes"
            f" {percent(top.total_ns / whole)}, {counted(top.count, 'call')} of"
            f" {duration(top.total_ns / max(top.count, 1))}"
        )
    return Finding("kernels", f"{text}.", cost, worker)
