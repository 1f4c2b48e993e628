"""Request x world -> the captures that must each end in a report, their number, their size, and what looks
wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rlprof_ops import backends
from rlprof_ops.backends.contract import LEADERS
from rlprof_ops.request.model import ANY_PHASE, PHASES, Capture, CaptureSpec, ProfileRequest, share_steps
from rlprof_ops.request.problems import Problem, RequestError, nearest, words
from rlprof_ops.request.selectors import first_match, is_pattern, ranks_overlap
from rlprof_ops.request.step_part import StepPart
from rlprof_ops.request.steps import Steps, Window
from rlprof_ops.request.when import When
from rlprof_ops.words import limit

MANY_REPORTS = 256
STEP_S = 60.0  # of the rule of thumb: a window of so many seconds is as large as one of a step
LONG_WINDOW = 10  # steps; NeMo RL's docs advise at most 10 to keep files small


@dataclass(frozen=True)
class PlanRow:
    """One capture of the request for one worker (or for its patterns while the world is unknown).

    Attributes:
        index: the capture's place in the request, from 0.
        ranks: how many; None when unknown.
        reports: how many reports; None when unknown, and then `formula` says of what it is the product.
        size_bytes: estimate by `size_rule`; None when unknown.
        part: of each step, what a window holds; None for whole steps.
        when: what opens windows that nobody can count before; None for a row of steps.
    """

    index: int
    backend: str
    worker: str
    ranks: int | None
    ranks_text: str
    windows: tuple[Window, ...]
    each: str
    reports: int | None
    formula: str
    size_bytes: int | None
    part: StepPart | None = None
    when: When | None = None


@dataclass(frozen=True)
class Plan:
    """`captures` is complete only when `exact`: the world is known and no window is open. What `when` opens
    is a row, but no planned report.
    """

    captures: tuple[Capture, ...]
    rows: tuple[PlanRow, ...]
    warnings: tuple[str, ...]
    exact: bool

    @property
    def reports(self) -> int | None:
        """Number of reports; None while something is unknown."""
        counts = [row.reports for row in self.rows if row.when is None]
        return None if any(n is None for n in counts) else sum(n for n in counts if n is not None)

    @property
    def size_bytes(self) -> int | None:
        sizes = [row.size_bytes for row in self.rows if row.when is None]
        return None if any(n is None for n in sizes) else sum(n for n in sizes if n is not None)


def plan(
    request: ProfileRequest,
    world: Mapping[str, int] | None = None,
    steps_total: int | None = None,
    resume_from: int | None = None,
    phases: Mapping[str, Sequence[str]] | None = None,
) -> Plan:
    """What this request will give.

    Args:
        world: worker name -> number of its ranks; None when unknown, then counts are symbolic.
        steps_total: the last training step.
        resume_from: the first step that will run.
        phases: worker name -> the phases it runs, for `each: phase`; unknown ones are planned as `ANY_PHASE`.

    Raises:
        RequestError: a pattern matches no worker, a rank does not exist, every step is out of the run, or one
            process
            would be in step and phase mode at once.
    """
    if not request:
        return Plan((), (), _off(request), True)
    for name, count in (world or {}).items():
        if not isinstance(count, int) or count < 0:
            raise RequestError(f"world: {name}={count!r} is not a number of ranks")
    problems: list[Problem] = []
    warnings: list[str] = []
    asked: list[tuple[int, CaptureSpec]] = []
    for index, spec in enumerate(request.captures):
        if not spec.is_on and not spec.waits:
            warnings.append(f"capture {index + 1} is off: it has no {'steps' if not spec.steps else 'ranks'}")
            continue
        spec = _in_run(spec, steps_total, resume_from, problems, warnings)
        if spec.is_on:
            asked.append((index, spec))
    waiting = [(index, spec) for index, spec in enumerate(request.captures) if spec.waits]
    captures: list[Capture] = []
    if world is None:
        rows = [_row(index, spec, " ".join(spec.workers), None, steps_total, None) for index, spec in asked]
    else:
        world = _with_leader(world, [*asked, *waiting])
        rows = _rows(asked, world, steps_total, phases or {}, captures, problems, warnings)
    exact = world is not None and all(row.reports is not None for row in rows)
    rows = sorted([*rows, *_waiting_rows(waiting, world, problems)], key=lambda row: row.index)
    if problems:
        raise RequestError(problems)
    warnings += _phases_counted_from(asked, phases or {})
    warnings += _first_step_from_log(request, asked)
    warnings += _sizes(rows, world)
    return Plan(tuple(captures), tuple(rows), tuple(dict.fromkeys(warnings)), exact)


def _rows(
    asked: Sequence[tuple[int, CaptureSpec]],
    world: Mapping[str, int],
    total: int | None,
    phases: Mapping[str, Sequence[str]],
    captures: list[Capture],
    problems: list[Problem],
    warnings: list[str],
) -> list[PlanRow]:
    """Rows by capture and worker; fills `captures` process by process, as `ProfileRequest.for_worker`
    deals them.
    """
    found: dict[tuple[int, str], PlanRow] = {}
    selected = {index: set(_workers(spec, world, problems)) for index, spec in asked}
    for worker, count in world.items():
        specs = [(index, spec) for index, spec in asked if worker in selected[index]]
        _conflicts(specs, worker, problems, warnings)
        places = {id(spec): index for index, spec in specs}
        ranks = {index: set(_ranks(spec, worker, count, problems)) for index, spec in specs}
        if specs and not count:
            warnings.append(f"workers: {worker!r} has no ranks in this run: nothing of it is profiled")
        made: dict[tuple[int, ...], list[tuple[int, CaptureSpec, tuple[Window, ...]]]] = {}
        for rank in range(count):
            key = tuple(index for index, _ in specs if rank in ranks[index])
            if key not in made:  # ranks that take the same captures share their windows
                shares = share_steps([spec for index, spec in specs if index in key])
                made[key] = [(places[id(s)], s, replace(s, steps=left).windows(total)) for s, left in shares]
            for index, spec, windows in made[key]:
                names = (tuple(phases.get(worker, ())) or (ANY_PHASE,)) if spec.each == "phase" else (None,)
                new = [
                    Capture(spec.backend, worker, rank, window, phase)
                    for window in windows
                    for phase in names
                ]
                captures += new
                old = found.get((index, worker)) or _row(index, spec, worker, 0, total, 0)
                open_phases = spec.each == "phase" and any(window.stop is None for window in windows)
                unknown = open_phases or names == (ANY_PHASE,) or old.reports is None
                reports = None if unknown else (old.reports or 0) + len(new)
                if backends.of_one_report(spec.backend):
                    reports = (old.ranks or 0) + 1
                found[index, worker] = replace(
                    old,
                    ranks=(old.ranks or 0) + 1,
                    reports=reports,
                    size_bytes=_plus(old.size_bytes, _size(spec, windows)),
                )
    rows = [found[index, worker] for index, _ in asked for worker in world if (index, worker) in found]
    return [replace(row, formula=_formula(row.backend, row.ranks, row.windows, row.each)) for row in rows]


def _waiting_rows(
    waiting: Sequence[tuple[int, CaptureSpec]], world: Mapping[str, int] | None, problems: list[Problem]
) -> Iterator[PlanRow]:
    """Rows of what opens when something is found, by capture and worker. What is wrong with the workers and
    ranks of one with steps too is said there.
    """
    for index, spec in waiting:
        when, said = spec.when, [] if spec.is_on else problems
        selected = [" ".join(spec.workers)] if world is None else _workers(spec, world, said)
        for worker in selected:
            ranks = None if world is None else len(_ranks(spec, worker, world[worker], said))
            row = _row(index, replace(spec, steps=Steps()), worker, ranks, None, None)
            count = "ranks" if row.ranks is None else row.ranks
            most = f"up to {when.at_most if when else 0} x {count}"
            yield replace(row, reports=None, formula=most, size_bytes=None, when=when)


def _with_leader(world: Mapping[str, int], asked: Sequence[tuple[int, CaptureSpec]]) -> Mapping[str, int]:
    """The world with the process that leads the steps, where a capture names it: every run has one."""
    named = any(name in spec.workers for _, spec in asked for name in LEADERS)
    return {**world, LEADERS[0]: 1} if named and not any(name in world for name in LEADERS) else world


def _formula(backend: str, ranks: int | None, windows: Sequence[Window], each: str) -> str:
    """What the number of reports is the product of."""
    if backends.of_one_report(backend):
        return "ranks" if ranks is None else str(ranks)
    unknown_steps = each == "phase" and any(window.stop is None for window in windows)
    factors = ["ranks" if ranks is None else str(ranks), "steps" if unknown_steps else str(len(windows))]
    return " x ".join([*factors, "phases"] if each == "phase" else factors)


def _phases_counted_from(
    asked: Sequence[tuple[int, CaptureSpec]], phases: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """That `at` names a phase that nobody is known to have: a program of the user's own may."""
    known = dict.fromkeys([*PHASES, *(name for names in phases.values() for name in names)])
    for index, spec in asked:
        phase = spec.part.phase if spec.part is not None else None
        if phase is not None and phase not in known:
            yield (
                f"capture {index + 1}: at: {phase!r} is none of the known phases, {words(known)}; where the"
                f" program has none of that name the window is missing.{nearest(phase, list(known))}"
            )


def _first_step_from_log(request: ProfileRequest, asked: Sequence[tuple[int, CaptureSpec]]) -> Iterator[str]:
    """That the driver's output tells of step 1 when it is over."""
    rule = request.steps_from
    if rule is None or rule.when != "ends":
        return
    for index, spec in asked:
        if 1 in spec.steps:
            yield (
                f"capture {index + 1}: steps_from: a line ends its step, so nothing tells when step 1 begins"
                " unless the output says 0 before it, as tqdm does; else the window misses step 1"
            )


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def size_rule() -> str:
    """How the disk space of reports is estimated, a rule of thumb."""
    by_size: dict[int, list[str]] = {}
    for backend in backends.every():
        by_size.setdefault(backend.bytes_per_rank_step >> 20, []).append(backend.name)
    rates = [f"{mib} MiB ({', '.join(found)})" for mib, found in sorted(by_size.items())]
    return f"reports x steps in each x {words(rates)}; `for`: of a step of {limit(STEP_S)}"


def _size(spec: CaptureSpec, windows: Sequence[Window]) -> int | None:
    """Of one rank, by `size_rule`; None for an open window."""
    if any(window.stop is None for window in windows):
        return None
    length_s = spec.part.length_s if spec.part is not None else None
    share = 1.0 if length_s is None else min(1.0, length_s / STEP_S)
    steps = sum(len(window) for window in windows)
    return int(steps * share * backends.get(spec.backend).bytes_per_rank_step)


def _off(request: ProfileRequest) -> tuple[str, ...]:
    if not request.enabled:
        return ("the request is off: enabled is false",)
    if request.steps_from is not None:
        return ("the request asks for no report: it says alone where steps are known from",)
    return ("the request asks for nothing: no capture has steps, workers and ranks",)


def _in_run(
    spec: CaptureSpec, total: int | None, resume: int | None, problems: list[Problem], warnings: list[str]
) -> CaptureSpec:
    """The spec with the steps that this run can reach; all out of reach is a problem, some is a warning."""
    where = spec.origin("steps")
    steps = spec.steps
    for reachable, edge in (
        (
            Steps.of([Window(1, total + 1)]) if total is not None and total > 0 else None,
            f"the run ends after step {total}",
        ),
        (
            Steps.of([Window(resume, None)]) if resume is not None and resume > 0 else None,
            f"the run resumes at step {resume}",
        ),
    ):
        if reachable is None or not steps:
            continue
        kept = steps.intersect(reachable)
        lost = steps.minus(reachable)
        if not kept:
            problems.append(
                Problem(
                    f"steps '{spec.steps}' will never run: {edge}; {_fix(spec.steps, total, resume)}", where
                )
            )
            return replace(spec, steps=Steps())
        if lost and not (spec.steps.is_open and lost.is_open):
            warnings.append(f"{where + ': ' if where else ''}steps '{lost}' will never run: {edge}")
        steps = kept
    if spec.each == "phase" and (many := steps.too_many_windows("each: phase")):
        problems.append(Problem(many, where))
    return spec if steps == spec.steps else replace(spec, steps=steps)


def _fix(steps: Steps, total: int | None, resume: int | None) -> str:
    """A window of the same length that the run does reach."""
    first = resume or 1
    length = min(steps.count() or 1, 10)
    if total is not None and first > total:
        return f"no step is left between {first} and {total}"
    start = first if total is None else max(first, total - length + 1)
    stop = start + length if total is None else min(start + length, total + 1)
    return f"write e.g. '{Window(start, stop)}'"


def _workers(spec: CaptureSpec, world: Mapping[str, int], problems: list[Problem]) -> list[str]:
    """The workers of the world that the spec selects; each pattern must select one."""
    for pattern in spec.workers:
        if not any(first_match(worker, (pattern,)) for worker in world):
            kind = "pattern" if is_pattern(pattern) else "worker"
            near = nearest(pattern.strip("*?"), list(world))
            known = words(sorted(world)) if world else "none"
            problems.append(
                Problem(
                    f"workers: {kind} {pattern!r} matches no worker of this run; it has {known}.{near}",
                    spec.origin("workers"),
                )
            )
    return [worker for worker in world if spec.matches(worker)]


def _ranks(spec: CaptureSpec, worker: str, count: int, problems: list[Problem]) -> tuple[int, ...]:
    if spec.ranks is None:
        return tuple(range(count))
    outside = [rank for rank in spec.ranks if rank >= count]
    if outside:
        has = f"has ranks 0 to {count - 1}" if count else "has no ranks"
        problems.append(
            Problem(
                f"ranks: {worker!r} {has}, so {words(map(str, outside))} cannot be profiled",
                spec.origin("ranks"),
            )
        )
    return tuple(rank for rank in spec.ranks if rank < count)


def _conflicts(
    specs: Sequence[tuple[int, CaptureSpec]], worker: str, problems: list[Problem], warnings: list[str]
) -> None:
    """Captures of one process. Two modes of a backend are a problem; the same step twice, and a profiler that
    will find CUPTI held by another, are warnings.
    """
    for place, (index, spec) in enumerate(specs):
        for number, other in specs[:place]:
            if not ranks_overlap(spec.ranks, other.ranks):
                continue
            if other.backend != spec.backend:
                warnings += _refused_on_gpus(worker, (number, other), (index, spec))
                continue
            if other.each != spec.each:
                problems.append(
                    Problem(
                        f"each: {worker!r} would be in {other.each} mode by capture {number + 1} and in"
                        f" {spec.each} mode by capture {index + 1}; one process takes one of them",
                        spec.origin("each"),
                    )
                )
            shared = other.steps.intersect(spec.steps)
            if shared:
                warnings.append(
                    f"steps '{shared}' of {worker!r} are asked twice of {spec.backend}; capture {number + 1}"
                    f" takes them, not {index + 1}"
                )


def _refused_on_gpus(worker: str, *pair: tuple[int, CaptureSpec]) -> Iterator[str]:
    """That one capture of the pair will find CUPTI held by the other, in whichever steps."""
    for (_, holder), (index, spec) in (pair, pair[::-1]):
        held = backends.get(holder.backend).holds_cupti(holder)
        if held and backends.get(spec.backend).records_cuda:
            named = [set(each.ranks) for _, each in pair if each.ranks is not None]
            of = f" ranks {words(map(str, sorted(set.intersection(*named))))}" if named else ""
            yield f"capture {index + 1} ({spec.backend}) of {worker!r}{of} is refused on a GPU: {held}"


def _row(
    index: int, spec: CaptureSpec, worker: str, ranks: int | None, total: int | None, reports: int | None
) -> PlanRow:
    """One row; `ranks` None when the world is unknown, then the number of reports is a formula."""
    windows = spec.windows(total)
    if (
        ranks is None
        and spec.ranks is not None
        and len(spec.workers) == 1
        and not is_pattern(spec.workers[0])
    ):
        ranks = len(spec.ranks)
        if backends.of_one_report(spec.backend):
            reports = ranks
        elif spec.each == "step":
            reports = ranks * len(windows)
    each_size = _size(spec, windows)
    size = None if ranks is None or each_size is None else ranks * each_size
    text = "all" if spec.ranks is None else ",".join(map(str, spec.ranks))
    return PlanRow(
        index,
        spec.backend,
        worker,
        ranks,
        text,
        windows,
        spec.each,
        reports,
        _formula(spec.backend, ranks, windows, spec.each),
        size,
        spec.part,
    )


def _sizes(rows: Sequence[PlanRow], world: Mapping[str, int] | None) -> list[str]:
    found = []
    total = sum(row.reports or 0 for row in rows)
    if total > MANY_REPORTS:
        found.append(
            f"{total} reports are a lot to write and to look at; name ranks, e.g. ranks: [0], or fewer steps"
        )
    for row in rows:
        for window in row.windows:
            if window.stop is None:
                found.append(
                    f"{row.backend} {row.worker} {window.label}: the window stays open until the run ends;"
                    " name a stop"
                )
            elif len(window) > LONG_WINDOW:
                found.append(
                    f"{row.backend} {row.worker} {window.label}: {len(window)} steps in one report; reports"
                    f" of more than {LONG_WINDOW} steps are slow to open"
                )
    if world is None:
        found.append(
            "the world is unknown, so patterns and ranks are unchecked and counts are symbolic; give --world"
        )
    return found
