"""Why a planned capture has no report: the truest sentence that events, node records and run.json allow."""

from __future__ import annotations

import signal

from rlprof_ops import backends
from rlprof_ops.backends import report_names
from rlprof_ops.collect.event_logs import ProcessLog, WindowEvent
from rlprof_ops.collect.harvest.expected import Planned
from rlprof_ops.collect.harvest.run_state import NodeRecord, Observed
from rlprof_ops.job.end_cause import EndCause


def why_missing(item: Planned, observed: Observed) -> str:
    """One sentence, never empty."""
    capture = item.capture
    if item.problem:
        return item.problem
    if capture.rank is None:
        return _not_answered(item, observed)
    if left := _left_on_a_node(item, observed):
        return left
    logs = observed.logs_of(capture.worker, capture.rank)
    if not logs:
        return _never_registered(item, observed)
    events = [
        (log, event)
        for log in logs
        for event in log.windows
        if (event.backend, event.start) == (capture.backend, capture.window.start)
        and event.phase == capture.phase
    ]
    for wanted, explain in (("closed", _lost_after_close), ("failed", _failed), ("opened", _left_open)):
        for log, event in reversed(events):
            if event.event == wanted:
                return explain(item, log, event, observed)
    return _never_opened(item, logs, observed)


def _not_answered(item: Planned, observed: Observed) -> str:
    reached = max((log.last_step or 0 for log in observed.logs if item.spec.matches(log.worker)), default=0)
    return (
        f"asked after step {item.capture.window.start - 1}, and no worker opened a window"
        f"{ended_because(observed, '; ')} (last step seen: {reached})"
    )


def _left_on_a_node(item: Planned, observed: Observed) -> str:
    """A report that its node had at the end but could not bring over."""
    capture = item.capture
    wanted = (
        report_names.safe_worker(capture.worker),
        capture.rank,
        capture.window.start,
        capture.phase and report_names.safe(capture.phase),
    )
    for record in observed.records.values():
        for path, file in record.files.items():
            parts = path.split("/")
            found = (
                report_names.parse(parts[-1]) if file.state == "left" and capture.backend in parts else None
            )
            if found is not None and (found.worker, found.rank, found.start, found.phase) == wanted:
                why = record.failed.get(path) or "the last sync did not bring it over"
                return (
                    f"its report was still on node {record.node} at the end, as {path!r} of the node folder:"
                    f" {why}"
                )
    return ""


def _failed(item: Planned, log: ProcessLog, event: WindowEvent, observed: Observed) -> str:
    return event.reason or "the worker marked the capture as failed and gave no reason"


def _lost_after_close(item: Planned, log: ProcessLog, event: WindowEvent, observed: Observed) -> str:
    record = observed.records.get(log.node)
    where = f"its report was complete on node {log.node}"
    if record is None:
        return (
            f"{where}, but {_lost(log.node, observed)} before it was copied{_gone(log.node, observed)}"
            if log.node in observed.lost_nodes
            else f"{where} and is not copied yet"
        )
    if event.path in record.failed:
        return (
            f"{where}, but copying failed: {record.failed[event.path]} (it may still be there as"
            f" {event.path!r})"
        )
    sent = record.files.get(event.path)
    if sent is not None and sent.state in ("copied", "removed"):
        return f"{where} and was copied to {sent.place!r}, but it is not in the run folder any more"
    return f"{where} ({event.path!r}), but it was gone before it could be copied"


def _left_open(item: Planned, log: ProcessLog, event: WindowEvent, observed: Observed) -> str:
    if log.node in observed.gone:
        return (
            f"the window was open when the node's events came over for the last time{_last_step(log)}"
            f"{_gone(log.node, observed)}"
        )
    if log.node in observed.lost_nodes:
        return f"{_lost(log.node, observed)} while the window was open{_last_step(log)}"
    if observed.running:
        return f"the window is open: the job is still running{_last_step(log)}"
    stop, cause = item.capture.window.stop, ended_because(observed, "; ")
    if backends.of_one_report(item.capture.backend) and stop is not None and (log.last_step or 0) >= stop:
        return (
            f"{item.capture.backend} writes its report when the process ends in order, and this one was ended"
            f" by force after its window{_last_step(log)}"
        ) + (cause or ("" if observed.driver.name else _BY_RAY))
    raw = [
        f"{path}: {reason}"
        for path, reason in _record_of(log, observed).failed.items()
        if (writer := backends.of_report(path)) is not None and writer.name == item.capture.backend
    ]
    text = f"the worker ended while the window was open{_last_step(log)}{cause}"
    return text + (f"; its raw capture could not be recovered ({raw[0]})" if raw else "")


_BY_RAY = (
    ", as Ray does with actors that are alive when the driver ends: let the trainer end its workers before"
    " (docs/wrapping.md)"
)


def _never_registered(item: Planned, observed: Observed) -> str:
    capture = item.capture
    who = f"{capture.worker} rank {capture.rank}"
    if observed.running:
        return f"{who} has not registered yet: the job is still running"
    if observed.lost_nodes:
        return (
            f"{who} never registered; it may have been on {_nodes(observed.lost_nodes)}, lost without a"
            " record"
        )
    failure = observed.never_begun.get((capture.worker, capture.rank or 0))
    if failure is not None and observed.driver.name:
        return f"{who} ran and marked no step{ended_because(observed, '; ')}{_NOBODY_TOLD}"
    if failure is not None:
        return f"{who} was created and never began under its profiler: {failure or _nobody_knows(observed)}"
    return f"{who} never registered with the profiler{ended_because(observed, ' before ')}"


def _nobody_knows(observed: Observed) -> str:
    unloaded = [node for node, record in observed.records.items() if record.plugin_loaded is False]
    if unloaded:
        return f"{_nodes(frozenset(unloaded))} did not load the runtime-env plugin"
    return (
        f"its process told nothing{ended_because(observed, ', and ')}; Ray's logs of the worker say more, and"
        " its Python may not have the PYTHONPATH of the job"
    )


def _never_opened(item: Planned, logs: tuple[ProcessLog, ...], observed: Observed) -> str:
    start = item.capture.window.start
    log = logs[-1]
    reached = max((log.last_step or 0 for log in logs), default=0)
    if reached < start:
        return _stopped_before(item, log, reached, start, observed)
    began = min(log.began for log in logs)
    if began >= start:
        return f"the worker began at step {began}, after step {start} had begun"
    resumed = log.last_step is not None and not any(event.start < start for event in log.windows)
    if log.node in observed.lost_nodes:
        return (
            f"node {log.node} left no record, and what came over of its events does not speak of the"
            f" window{_last_step(log)}{_gone(log.node, observed)}"
        )
    record = _record_of(log, observed)
    if record.plugin_loaded is False and backends.wraps(item.capture.backend):
        return f"the worker ran without the profiler: node {log.node} did not load the runtime-env plugin"
    text = f"the worker went through step {start} without opening the window{_last_step(log)}"
    if jumped := _jumped_over(start, observed):
        return f"{text}; the trainer told step {jumped[0]}, then step {jumped[1]}, and none between"
    return text + ("; it may have resumed after that step" if resumed else "")


def _jumped_over(step: int, observed: Observed) -> tuple[int, int] | None:
    """The steps told around one that was never told, where the trainer counts by more than one."""
    told = observed.led.steps if observed.led is not None else {}
    before, after = [each for each in told if each < step], [each for each in told if each > step]
    return (max(before), min(after)) if before and after and step not in told else None


def _stopped_before(item: Planned, log: ProcessLog, reached: int, start: int, observed: Observed) -> str:
    seen = f"(last step seen: {reached})" if reached else "(no step was seen)"
    if observed.running:
        return f"the job is still running and has not reached step {start} {seen}"
    if log.node in observed.lost_nodes:
        return f"{_lost(log.node, observed)} before step {start} {seen}{_gone(log.node, observed)}"
    furthest = max((other.last_step or 0 for other in observed.logs), default=0)
    if furthest >= start and furthest > reached:
        return f"the worker ended before step {start} {seen}, while others reached step {furthest}"
    rule = observed.request.steps_from
    untold = "" if furthest else _NOBODY_TOLD if rule is None else f"; nothing was printed as {rule}"
    because = ended_because(observed, "")
    if because:
        return f"{because} before step {start} {seen}{untold}"
    return f"training ended before step {start} {seen}{untold}"


# A trainer that trained all the same: its steps are known to nobody.
_NOBODY_TOLD = (
    "; no process of the job told its steps: that does an adapter of the trainer, or prof.step(n) of"
    " rlprof_ops.runtime in its driver, or steps_from of the request (docs/unmodified.md)"
)


def ended_because(observed: Observed, lead: str) -> str:
    """What ended the job, as a clause; empty when it ended in order."""
    driver, detail = observed.driver, observed.detail
    by_cause: dict[str, str] = {
        EndCause.TIME_LIMIT: "the time limit came",
        EndCause.SIGNAL: f"the job was stopped ({detail or 'by a signal'})",
        EndCause.HANG: f"the job hung ({detail or 'no detail'})",
        EndCause.NODE_LOST: f"the job lost a node ({detail or _nodes(observed.lost_nodes)})",
        EndCause.STARTUP_FAILED: f"the job failed to start ({detail or 'no detail'})",
    }
    if observed.cause in by_cause:
        return lead + by_cause[observed.cause]
    if driver.signal:
        return f"{lead}{driver} was ended by {signal_name(driver.signal)}"
    if driver.exit_code:
        return f"{lead}{driver} ended with exit code {driver.exit_code}"
    return ""


def signal_name(number: int) -> str:
    """`signal 15 (SIGTERM)`."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _lost(node: str, observed: Observed) -> str:
    return f"node {node} {'ended without a record' if node in observed.gone else 'was lost'}"


def _gone(node: str, observed: Observed) -> str:
    """What became of the folder of a node that was lost, as a clause; empty where it is not known."""
    return f"; on node {node} {observed.gone[node]}" if node in observed.gone else ""


def _last_step(log: ProcessLog) -> str:
    return f" (last step seen: {log.last_step})" if log.last_step else ""


def _record_of(log: ProcessLog, observed: Observed) -> NodeRecord:
    return observed.records.get(log.node, NodeRecord(log.node))


def _nodes(nodes: frozenset[str]) -> str:
    names = sorted(nodes)
    return ("node " if len(names) == 1 else "nodes ") + ", ".join(names[:8])
