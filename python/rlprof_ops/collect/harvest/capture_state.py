"""Whether a planned capture is whole, truncated, empty or missing, and why: its line in the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlprof_ops import backends
from rlprof_ops.backends.window_support import MAX_MB
from rlprof_ops.collect.event_logs import ProcessLog
from rlprof_ops.collect.harvest.expected import Planned
from rlprof_ops.collect.harvest.manifest import WHOLE, CaptureResult, Report
from rlprof_ops.collect.harvest.missing_reason import ended_because, why_missing
from rlprof_ops.collect.harvest.run_state import Observed
from rlprof_ops.words import duration


def result_of(item: Planned, reports: list[Report], observed: Observed) -> CaptureResult:
    """The capture's result: `missing` without a report, else by the best of its reports."""
    capture = item.capture
    base = CaptureResult(
        capture.id,
        capture.backend,
        capture.worker,
        capture.rank,
        capture.window.start,
        capture.window.stop,
        capture.phase,
        "missing",
        part=None if item.spec.part is None else str(item.spec.part),
        asked_by=item.asked_by,
    )
    if not reports:
        host = _host(item, observed)
        return replace(base, reason=why_missing(item, observed), host=host)
    order = {"ok": 0, "truncated": 1, "empty": 2}
    # nsys can write a window once more when its process ends: what came home in time says it all.
    best, *others = sorted(
        reports,
        key=lambda each: (each.partial, order.get(each.state, 3), each.recovered, -each.size_bytes),
    )
    state, reason = best.state, best.reason
    if state == "ok" and (cut := _cut_short(item, best, observed) or _lacks(item, best, observed)):
        state, reason = "truncated", cut
    elif state == "ok" and best.recovered:
        state, reason = "recovered", "its raw capture was turned into a report afterwards"
    assert state in (*WHOLE, "empty", "truncated")
    return replace(
        base,
        state=state,
        reason=reason,
        host=best.host or best.node,
        report=best.path,
        stop=capture.window.stop or best.stop,
        more_reports=tuple(report.path for report in others),
        taken_s=best.taken_s,
    )


def _cut_short(item: Planned, report: Report, observed: Observed) -> str:
    """Why the report holds less than its window; empty when it holds all of it."""
    stop = item.capture.window.stop
    if stop is None or item.capture.rank is None:
        return ""
    logs = observed.logs_of(item.capture.worker, item.capture.rank)
    # Another process of this rank may have gone further.
    own = [log for log in logs if (log.host, log.pid) == (report.host, report.pid)] or logs
    reached = max((log.last_step or 0 for log in own), default=0)
    label = (
        f"steps {item.capture.window.start} to {stop - 1}"
        if stop - item.capture.window.start > 1
        else f"step {item.capture.window.start}"
    )
    # A worker that closes a window says so; once all its node's events are here, a report of ours without
    # that word was closed for it, or by its end.
    all_told = not observed.running and (report.node or report.host) in observed.records
    unsaid = report.recovered or (report.kind == "rlprof" and report.mapped_by == "name" and all_told)
    untold = unsaid and reached == stop - 1 and not _last_step_ended(item, report, own, observed)
    if report.partial or untold or (unsaid and 0 < reached < stop - 1):
        if (
            report.partial
            and report.warning
            and (report.taken_s or report.backend != "nsight" or MAX_MB in report.warning)
        ):
            # A whole nsys window says nothing of itself: its warnings are of the file.
            return f"the window ({label}) was cut short: {report.warning}"
        seen = f" (last step seen: {reached}{', but not its end' if untold else ''})" if reached else ""
        return f"the window ({label}) was cut short{seen}" + (
            "" if observed.running else ended_because(observed, ": ")
        )
    return ""


def _last_step_ended(item: Planned, report: Report, own: Sequence[ProcessLog], observed: Observed) -> bool:
    """Whether the window's last step, which the report's process had entered, ended in it too: the process
    ended in order and its tool wrote then, or the job told the step's end before the report was written and
    before another process came in its place.
    """
    capture, stop = item.capture, item.capture.window.stop
    key, opened_ns = (capture.backend, capture.window.start, capture.phase), report.opened_ns or 0
    for log in own:
        told = [event for event in log.windows if event.key == key]
        if log.ended and told and told[-1].event == "opened":
            return True
        opened_ns = max([opened_ns, *(event.t_ns for event in told if event.event == "opened")])
    steps = observed.led.steps if observed.led is not None else {}
    if stop is None or stop - 1 not in steps:
        return False
    end_ns = steps[stop - 1][1]
    logs = observed.logs_of(capture.worker, capture.rank or 0)
    replaced = any(opened_ns < log.registered_ns < end_ns for log in logs if log not in own)
    # Lustre keeps whole seconds of a file's time.
    written_ns = report.mtime_ns + (0 if report.mtime_ns % 10**9 else 10**9 - 1)
    return end_ns <= written_ns and not replaced


def _lacks(item: Planned, report: Report, observed: Observed) -> str:
    return _lacks_another(item, report, observed) or _opened_late(item, report, observed)


def _opened_late(item: Planned, report: Report, observed: Observed) -> str:
    """Which steps were over when the window was open, where nothing waited for it: the driver's output tells
    the steps. Empty when none was.
    """
    window, led, opened_ns = item.capture.window, observed.led, report.opened_ns
    if led is None or not led.log or opened_ns is None or window.start not in led.steps:
        return ""
    over = [step for step, (_, end_ns) in led.steps.items() if step in window and end_ns <= opened_ns]
    if not over:
        return ""
    late = duration(opened_ns - led.steps[window.start][0])
    what = f"step {window.start} was" if len(over) == 1 else f"steps {window.start} to {max(over)} were"
    return (
        f"the window was open {late} after step {window.start} began, when {what} over: nothing waits for a"
        " window where the driver's output tells the steps; ask for more steps in one window"
    )


def _lacks_another(item: Planned, report: Report, observed: Observed) -> str:
    """What another process of this worker, in the window at the same time, says that it lacks; empty when
    none does. vLLM's engine is beside its server, and does the work. A session records all processes that
    are in it; where each records itself, one that came to work meanwhile and tells nothing has recorded
    nothing.
    """
    capture, opened_ns, closed_ns = item.capture, report.opened_ns, report.closed_ns
    if capture.rank is None or opened_ns is None or closed_ns is None:
        return ""
    key = (capture.backend, capture.window.start, capture.phase)
    by_itself = capture.phase is None and not backends.wraps(capture.backend)
    for log in observed.logs_of(capture.worker, capture.rank):
        told = [event for event in log.windows if event.key == key]
        if log.pid == report.pid:
            continue
        stop = capture.window.stop or log.began + 1
        came = log.follows and log.began < stop and opened_ns <= log.registered_ns <= closed_ns
        if by_itself and came and not told:
            return f"its process {log.pid} registered while the window was open and recorded nothing of it"
        if not any(opened_ns <= event.t_ns <= closed_ns for event in told):
            continue
        last = told[-1]
        if last.reason and (last.partial or last.event == "failed"):
            return f"its process {log.pid} has not recorded all of the window: {last.reason}"
    return ""


def _host(item: Planned, observed: Observed) -> str | None:
    if item.capture.rank is None:
        return None
    logs = observed.logs_of(item.capture.worker, item.capture.rank)
    return (logs[-1].host or logs[-1].node or None) if logs else None
