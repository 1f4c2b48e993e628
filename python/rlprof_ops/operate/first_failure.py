"""Of the processes of a job's process groups, the one that failed first, by time and kind: the others meet
its closed connections and fail after it. An error that the job outlived is told as that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from rlprof_ops.collect import event_logs
from rlprof_ops.collect.harvest.manifest_table import printable
from rlprof_ops.host import foreign
from rlprof_ops.runtime.process.failures import EXITED, IN_GROUP, OUT_OF_MEMORY, RAISED
from rlprof_ops.words import counted, duration, size

_MOST_BYTES = 1 << 20
_TRACE_LINES = 5
_SEEN_NS = 6 * 10**9  # the recorder looks after its processes every few seconds
_AFTER_NS = 60 * 10**9  # a rank's calls run ahead of its GPU, and clocks of nodes differ
_WAITED_NS = 3600 * 10**9  # longer than others wait for a rank or a server
# What torch and Ray raise where a peer is gone or was waited for in vain; a user's server may be gone too.
_ECHO = re.compile(
    r"\w*Actor\w*Error:|(?:RuntimeError|Dist\w*Error): .*(?:"
    r"connection\b.{0,30}\b(?:closed|reset|refused|aborted|lost)|closed by (?:remote )?peer|broken pipe"
    r"|remote process exited|ncclRemoteError|communicator was aborted|\bgot 0 bytes|watchdog caught"
    r"|timed out waiting \d+ ?ms)",
    re.IGNORECASE | re.DOTALL,
)
# The first that fits. NCCL quotes the call of CUDA that failed in it.
_KINDS = (
    (re.compile(r"\b(CUDA|HIP|NCCL)\b.*out of memory", re.IGNORECASE | re.DOTALL), " (GPU memory)"),
    (re.compile("out of memory|OutOfMemory|MemoryError", re.IGNORECASE), " (memory)"),
    (
        re.compile(r"NCCL.*\bCUDA\b (?:failure|function failed)", re.IGNORECASE | re.DOTALL),
        " (CUDA, called by NCCL)",
    ),
    (re.compile(r"NCCL", re.IGNORECASE), " (NCCL)"),
    (re.compile(r"\bCUDA|CUBLAS|CUDNN|CUSOLVER|AcceleratorError"), " (CUDA)"),
)
_Row = dict[str, Any]
_Ranks = dict[tuple[str, int], int | None]  # by node and pid


def first_failure(run: Path) -> Iterator[str]:
    """Who failed first, with the end of its trace; nothing where no process of a group has told a failure."""
    rows = [
        row
        for path in sorted(run.glob("nodes/*/events/notes_*.jsonl"))
        for row in foreign.read_rows(path, _MOST_BYTES)
        if row.get("event") in (RAISED, IN_GROUP, EXITED, OUT_OF_MEMORY)
    ]
    ranks = {_process(row): foreign.whole(row.get("rank")) for row in rows if row["event"] == IN_GROUP}
    failures = [row for row in rows if row["event"] == OUT_OF_MEMORY or _error(row)]
    failures.sort(key=_t_ns)
    outlived, until_ns = _outlived(run, failures)
    yield from _first(rows, failures[len(outlived) :], ranks)
    if outlived:
        last, more = outlived[-1], len(outlived) - 1
        what = f"raised {_error(last)}" if _error(last) else "was killed for lack of memory"
        before = f"; {counted(more, 'other error')} before it" if more else ""
        lasted = duration(until_ns - _t_ns(last))
        yield printable(f"earlier, and the job went on for {lasted}: {_who(last, ranks)} {what}{before}")


def last_exception(lines: Iterable[str]) -> str:
    """The last line of a log that names an exception; empty where none does."""
    return next((line for line in reversed([*lines]) if foreign.EXCEPTION.match(line)), "")


def _outlived(run: Path, failures: list[_Row]) -> tuple[list[_Row], int]:
    """The first of the failures, by time, that the job went on after, and until when it did.

    It went on where a whole step began after it. Where no step is told, it did where, longer after it than
    anybody waits, some process had an error of its own, or this one had another. After what the driver ended
    with, steps count as late: asynchronous trainers take some without the rank that failed.
    """
    step = _last_step(run) if failures else None
    own_ns = max((_t_ns(row) for row in failures if _is_own(row)), default=0)
    spoke_ns = {_process(row): max(_t_ns(row), own_ns) for row in failures}
    ended_with = last_exception(foreign.tail(run / "logs" / "driver.log").splitlines()).rstrip()
    final = [row for row in failures if _error(row) and ended_with.endswith(_error(row))][-1:]

    def outlived(row: _Row) -> bool:
        t_ns = _t_ns(row)
        may_wait = step is None or (final and t_ns >= _t_ns(final[0]))
        until_ns = spoke_ns[_process(row)] if step is None else step[1]
        began = step is None or step[0] > t_ns
        return began and until_ns - t_ns > (_WAITED_NS if may_wait else _AFTER_NS)

    found = [*takewhile(outlived, failures)]
    return found, step[1] if step is not None else spoke_ns[_process(found[-1])] if found else 0


def _last_step(run: Path) -> tuple[int, int] | None:
    """When the last whole step that was told began and ended."""
    logs = (log for folder in sorted(run.glob("nodes/*/events")) for log in event_logs.read_node(folder))
    return max((step for log in logs if log.led for step in log.led.steps.values()), default=None)


def _first(rows: list[_Row], failures: list[_Row], ranks: _Ranks) -> Iterator[str]:
    """Who failed first, of the failures by time that the job did not outlive."""
    raised = [row for row in failures if row["event"] == RAISED]
    own = next(filter(_is_own, raised), None)
    killed = _killed(rows, failures, None if own is None else _t_ns(own))
    if killed:
        yield from _out_of_memory(killed, ranks)
        return
    if own is None:
        yield from _without_a_word(rows, raised, ranks)
        return
    error = foreign.text(own.get("error")).strip()
    kind = next((word for pattern, word in _KINDS if pattern.search(error)), "")
    others = len({_process(row) for row in raised} - {_process(own)})
    after = f"; {counted(others, 'other process')} failed after it" if others == 1 else ""
    after = after or (f"; {others} other processes failed after it" if others else "")
    yield printable(f"{_who(own, ranks)} failed first{kind}, with {_error(own)}{after}:")
    lines = [line for line in foreign.text(own.get("trace")).splitlines() if line.strip()]
    yield from (f"  {printable(line)}" for line in lines[-_TRACE_LINES:])


def _killed(rows: list[_Row], failures: list[_Row], own_ns: int | None) -> list[_Row]:
    """Whom the kernel killed before anybody raised an error of its own; it is seen a little later."""
    ended = {_process(row) for row in rows if row["event"] == EXITED}
    killed = [row for row in failures if row["event"] == OUT_OF_MEMORY and _process(row) not in ended]
    return [row for row in killed if own_ns is None or _t_ns(row) - _SEEN_NS < own_ns]


def _out_of_memory(killed: list[_Row], ranks: _Ranks) -> Iterator[str]:
    limit = foreign.whole(killed[0].get("limit_bytes")) or 0
    reached = f" reached its limit of {size(limit)}" if limit else " had no memory left"
    more = ", ".join(_who(row, ranks) for row in killed[1:4])
    others = f"; killed with it: {more}" if more else ""
    group = foreign.text(killed[0].get("group"))
    yield printable(
        f"{_who(killed[0], ranks)} failed first (memory): the kernel killed it when its control group"
        f" {group}{reached}{others}"
    )


def _without_a_word(rows: list[_Row], raised: list[_Row], ranks: _Ranks) -> Iterator[str]:
    """Everybody met closed connections: who has told nothing was killed, or has ended too early."""
    if not raised:
        return
    told = {_process(row) for row in raised}
    silent = [row for row in rows if row["event"] == IN_GROUP and _process(row) not in told]
    worlds = {row.get("world") for row in rows if row["event"] == IN_GROUP and _process(row) in told}
    silent = [row for row in silent if row.get("world") in worlds]
    ended = {_process(row) for row in rows if row["event"] == EXITED}
    killed = [row for row in silent if _process(row) not in ended] or silent
    if not killed:
        return
    who = ", ".join(_who(row, ranks) for row in killed[:4])
    does = "has ended in order" if _process(killed[0]) in ended else "died without a word"
    first = f"{who} {does} first" if len(killed) == 1 else f"one of these {does} first: {who}"
    why = "" if _process(killed[0]) in ended else "; a process is killed so when memory is full"
    yield printable(f"{first}: the others met its closed connections{why}")


def _error(row: _Row) -> str:
    """The first line of what a process has raised; empty of any other row."""
    said = foreign.text(row.get("error")).strip() if row["event"] == RAISED else ""
    return said.splitlines()[0] if said else ""


def _is_own(row: _Row) -> bool:
    """Whether it is no echo of another process's failure."""
    return row["event"] == OUT_OF_MEMORY or not _ECHO.match(foreign.text(row.get("error")))


def _t_ns(row: _Row) -> int:
    return foreign.whole(row.get("t_ns")) or 0


def _process(row: _Row) -> tuple[str, int]:
    return foreign.text(row.get("host")), foreign.whole(row.get("pid")) or 0


def _who(row: _Row, ranks: _Ranks) -> str:
    node, pid = _process(row)
    rank = ranks.get(_process(row))
    return f"rank {rank} (node {node}, pid {pid})" if rank is not None else f"process {pid} of node {node}"
