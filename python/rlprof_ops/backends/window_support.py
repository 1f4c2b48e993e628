"""What a window may be asked to be: of each backend, by who opens it. The plan, `submit`, the job, the
workers, `rlprof capture` and docs/request.md go by this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlprof_ops.backends.contract import Backend, Spec

PROCESS, SUPERVISOR, TRAINER, ON_DEMAND = "process", "supervisor", "trainer", "on_demand"
DRIVERS = {
    PROCESS: "our runtime, in the process",
    SUPERVISOR: "the node's supervisor, or the process at its tasks: a trainer that is not modified",
    TRAINER: "the trainer's own calls of its profiler",
    ON_DEMAND: "`rlprof capture`, in a running job",
}
EACH_STEP, EACH_PHASE, SEVERAL = "each: step", "each: phase", "several ranges of steps"
PART, COUNTED = "at, for", "after, tokens"
RANKS, OUTPUT_DIR, RETRY = "ranks", "output_dir", "rlprof retry"
MAX_MB, CAPTURE_RANGE = "max_mb", "capture-range"
OPTIONS = {MAX_MB: "torch or nsight", CAPTURE_RANGE: "nsight"}  # about the window, and whose they are of ours
FEATURES = (EACH_STEP, EACH_PHASE, PART, COUNTED, SEVERAL, RANKS, OUTPUT_DIR, *OPTIONS, RETRY)

ONE_WINDOW = (
    "a capture on demand is one window, of the next steps or of seconds: plan phases and other steps before"
    " the job"
)
NOT_PLANNED = "`rlprof retry` asks again for what the request planned, and nobody planned this window"
THEIRS = "such a window is from the trainer's start to its stop: its own settings decide what it holds"
NOT_OURS = "the trainer writes its own file, which `rlprof harvest` lists as it is"
COUNTS_VLLM = "in a job, by the requests of vLLM's engines (V1)"
AT_THE_END = "its one report comes when the process ends"


def counts_at_start(option: str) -> str:
    """Why a capture on demand cannot have an option."""
    return f"option {option!r} counts when a process is started: give it in the request, before the job"


_REFUSED_ON_DEMAND = {
    EACH_PHASE: ONE_WINDOW,
    SEVERAL: ONE_WINDOW,
    PART: ONE_WINDOW,
    COUNTED: ONE_WINDOW,
    CAPTURE_RANGE: counts_at_start(CAPTURE_RANGE),
    RETRY: NOT_PLANNED,
}
_REFUSED_OF_TRAINERS = {
    **dict.fromkeys((EACH_PHASE, PART, COUNTED, SEVERAL, MAX_MB), THEIRS),
    RETRY: NOT_PLANNED,
}


def driver_of(asked_by: str | None) -> str:
    """Who opens a window of this process: its steps, or a person. A capture that took itself is the
    request's.
    """
    from rlprof_ops.backends import report_names

    return ON_DEMAND if asked_by is not None and report_names.trigger_of(asked_by) is None else PROCESS


@dataclass(frozen=True)
class Support:
    """Whether a window can be this: `refused` says why not, `how` what is particular where it can."""

    refused: str = ""
    how: str = ""


def support(backend: Backend, driver: str, feature: str) -> Support:
    """One cell of the table."""
    refused = _refused(backend, driver, feature)
    return Support(refused) if refused else Support(how=_how(backend, driver, feature))


def _refused(backend: Backend, driver: str, feature: str) -> str:
    if driver == TRAINER and not backend.windows_from_outside:
        return NOT_OURS
    if driver == ON_DEMAND and not backend.on_demand:
        why = f": {AT_THE_END}" if backend.one_report else ""
        return f"{backend.name} takes no capture on demand{why}"
    if feature in OPTIONS and feature not in backend.window_options:
        return f"{backend.name} has no option {feature!r}: only {OPTIONS[feature]} takes it"
    parts = backend.parts_of_steps or backend.parts_at_ranges
    if feature in (PART, COUNTED) and driver in (PROCESS, SUPERVISOR) and not parts:
        return (
            f"{backend.name} takes no window inside a step ({feature}): it records whole steps, and phases"
            " with each: phase; nsight, torch and memory take a part of a step"
        )
    if driver == ON_DEMAND:
        return _REFUSED_ON_DEMAND.get(feature, "")
    if driver == TRAINER:
        return _REFUSED_OF_TRAINERS.get(feature, "")
    return ""


def _how(backend: Backend, driver: str, feature: str) -> str:
    if feature == OUTPUT_DIR and backend.one_report:
        return "copied when the node ends"
    if feature in (EACH_PHASE, SEVERAL) and backend.one_report:
        return "one report holds all of them"
    if feature == CAPTURE_RANGE:
        by = "; cudaProfilerApi: opened by the trainer's own calls" if driver == SUPERVISOR else ""
        return f"reports come when the process ends, and to `output_dir` when the node ends{by}"
    if feature in (PART, COUNTED):
        theirs = "phases are those of the process that leads the steps" if driver == SUPERVISOR else ""
        theirs = theirs if feature == PART else COUNTS_VLLM
        where = ("a task", "no task runs") if driver == SUPERVISOR else ("a range", "the step ends")
        seen = f"opens where {where[0]} begins or ends, closes there too or when {where[1]}"
        return "; ".join(filter(None, (seen if backend.parts_at_ranges else "", theirs)))
    if driver == SUPERVISOR and feature == EACH_PHASE:
        own = " in the worker's own process, not in its children: `at` takes those too"
        return f"at the tasks that an adapter marks{own if backend.windows_from_outside else ''}"
    if driver == SUPERVISOR and feature == EACH_STEP and not backend.windows_from_outside:
        return "from the first task of the step"
    return ""


def refusals(backend: Backend, spec: Spec, driver: str = "") -> tuple[str, ...]:
    """Why a capture cannot be taken; who opens its windows may not be known yet."""
    asked = [feature for feature in OPTIONS if feature in (*spec.options, *spec.flags)]
    asked.append(EACH_PHASE if spec.each == "phase" else EACH_STEP)
    if len(spec.windows()) > 1:
        asked.append(SEVERAL)
    if spec.part is not None:
        asked.append(COUNTED if spec.part.counts else PART)
    found = [support(backend, driver or PROCESS, feature).refused for feature in asked]
    if spec.when is not None:
        found.append(support(backend, ON_DEMAND, EACH_STEP).refused)
    return tuple(dict.fromkeys(filter(None, found)))
