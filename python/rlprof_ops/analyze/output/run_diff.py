"""What changed between two runs beyond their own step-to-step noise: steps, phases, kernels, operators,
stragglers, coverage.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from rlprof_ops.analyze.causes.step_noise import Difference, Steps, differences
from rlprof_ops.analyze.metrics.call_paths import INSIDE, MOST_PATHS
from rlprof_ops.analyze.output.text import counted, duration, percent, unmarked
from rlprof_ops.analyze.report_model import Answer, NameRow
from rlprof_ops.analyze.whole_run.run_data import OTHER_PHASES, WholeRun
from rlprof_ops.errors import UsageError
from rlprof_ops.host import foreign
from rlprof_ops.words import did_you_mean

FALSE_ALARMS = 0.02  # the chance that two equal runs differ in anything, shared among all that is compared
MIN_CHANGE = 0.01
TOLD_POWER = 0.10  # the change that the power is told of
STEP_SHARE = 0.3  # of those false alarms; the rest is shared among the phases
FEW_STEPS = 10  # hardly tell how alike neighbouring ones are
OF_FEW = 0.5  # of those false alarms is what is aimed at then
KERNEL_CHANGE = 0.05  # kernels are summed over all steps, so their noise is not known
KERNEL_SHARE = 0.005
MOST_OF_IT = 0.8  # of a path's change is that of one inside of it
_FIRST = 0.05  # of the whole run: what is still being compiled and warmed up
_WARM = 1.25  # times the median of the steps after them that the first steps of a window take, warming up
_WARM_PART = 3  # at most one in so many steps is that


@dataclass(frozen=True)
class Change:
    """One quantity in both runs, nanoseconds a step. `noise_ns`: what chance alone may make of it, None: not
    known.

    `real`: the difference exceeds that noise and 1 %; with a single step in a run there is no noise to hold
    it against, and nothing is called real. `uncaptured`: the run ("before", "after") in which its worker was
    not recorded, so that nothing can be said.
    `power`: the chance that 10 % more or less would have been called real. `more_steps`: where it cannot be
    told whether there is a change, by how many steps each run would have to be longer than the shorter one
    is, so that nine of ten such changes are found; None: by more than can be foreseen.
    """

    what: str
    before_ns: int | None
    after_ns: int | None
    noise_ns: int | None
    real: bool
    uncaptured: str = ""
    power: float | None = None
    more_steps: int | None = None

    @property
    def verdict(self) -> str:
        """In a word or two: "slower", "faster", "new", "gone", "in neither", "noise", "one step",
        "not captured before".
        """
        if self.uncaptured:
            return f"not captured {self.uncaptured}"
        if self.absent:
            return {"before": "new", "after": "gone"}.get(self.absent, "in neither")
        if self.noise_ns is None:
            return "one step"
        if not self.real:
            return "noise"
        return "slower" if self.difference_ns > 0 else "faster"

    @property
    def absent(self) -> str:
        """The runs that have none of it: "before", "after", "before or after"; empty where both have some."""
        sides = {"before": self.before_ns, "after": self.after_ns}
        return " or ".join(side for side, found_ns in sides.items() if found_ns is None)

    @property
    def difference_ns(self) -> int:
        return (self.after_ns or 0) - (self.before_ns or 0)

    @property
    def share(self) -> float | None:
        return self.difference_ns / self.before_ns if self.before_ns and self.after_ns is not None else None

    def to_dict(self) -> dict[str, object]:
        share = self.share
        return vars(self) | {
            "difference_ns": None if self.uncaptured else self.difference_ns,
            "verdict": self.verdict,
            "share": None if share is None else round(share, 5),
        }


@dataclass(frozen=True)
class Diff:
    """Everything that was compared; `missing` (or unread) reports and `ranks`: before and after.

    `harvested`: it is known which reports the run after planned, or it planned none.
    """

    step: Change
    phases: tuple[Change, ...]
    kernels: tuple[Change, ...]
    stragglers_new: tuple[str, ...]
    stragglers_gone: tuple[str, ...]
    missing: tuple[int, int]
    ranks: tuple[int, int]
    notes: tuple[str, ...]
    whole_run: tuple[Change, ...] = ()
    paths: tuple[Change, ...] = ()
    harvested: bool = True

    def to_dict(self) -> dict[str, object]:
        """What `rlprof diff --json` prints."""
        changes = {name: getattr(self, name) for name in ("phases", "kernels", "whole_run", "paths")}
        rows = {name: [change.to_dict() for change in found] for name, found in changes.items()}
        return {"schema": 1} | vars(self) | {"step": self.step.to_dict()} | rows


def compare(before: Answer, after: Answer, notes: Sequence[str] = ()) -> Diff:
    """The difference of two answers (`report.json`). Phases are compared by worker and phase, kernels by
    name as well. `notes`: what else is to be said of it.
    """
    notes = [*notes]
    warm = []
    for name, answer in (("before", before), ("after", after)):
        first, said = _warming_up(answer)
        warm.append(first)
        notes += [f"{name}: {said}"] if said else []
    lengths = [
        {s.step: s.duration_ns / (s.count or 1) for s in answer.steps if s.step >= first}
        for answer, first in zip((before, after), warm, strict=True)
    ]
    one, two = (_phase_samples(answer, first) for answer, first in zip((before, after), warm, strict=True))
    names = list(dict.fromkeys([*one, *two]))
    whole = [_every_step(answer.whole_run) for answer in (before, after)]
    alarms = FALSE_ALARMS / (2 if all(whole) else 1)
    captured = [{what.partition("/")[0] for what in samples} for samples in (one, two)]
    step, *phases = _changes(
        {"step": lengths[0]} | one, {"step": lengths[1]} | two, ["step", *names], alarms, captured
    )
    phases.sort(key=lambda c: (not c.real, -abs(c.difference_ns)))
    # Of a run without steps it is not known who they are.
    slow_before, slow_after = (set() if step.absent else _stragglers(run) for run in (before, after))
    if min(len(before.steps), len(after.steps)) < 2:
        notes.append(
            "A run has a single step or window, so its noise is not known: capture more steps to tell a"
            " change from chance."
        )
    for name, answer in (("before", before), ("after", after)):
        notes += [f"{name}: {sentence}" for sentence in unmarked(answer.steps)]
    if len(before.ranks) != len(after.ranks):
        notes.append(f"The runs have {len(before.ranks)} and {len(after.ranks)} ranks.")
    return Diff(
        step,
        tuple(phases),
        _kernels(before, after),
        tuple(sorted(slow_after - slow_before)),
        tuple(sorted(slow_before - slow_after)),
        (_missing(before), _missing(after)),
        (len(before.ranks), len(after.ranks)),
        tuple(notes),
        _whole_run(whole[0], whole[1], alarms),
        _paths(before, after),
        after.coverage.planned is not None or not foreign.an_object(after.run.get("request")).get("captures"),
    )


def _warming_up(answer: Answer) -> tuple[int, str]:
    """The first step that is not warming up, and a sentence where steps before it are left out: compiling,
    filling caches and opening connections happen once, and are no noise.
    """
    lengths = [row.duration_ns / (row.count or 1) for row in answer.steps]
    count = 0
    while count < len(lengths) // _WARM_PART:
        after = lengths[count + 1 :]
        if lengths[count] < max(_WARM * median(after), max(after)):
            break
        count += 1
    if not count:
        return min((row.step for row in answer.steps), default=0), ""
    times = lengths[0] / median(lengths[count:])
    which = "step" if count == 1 else f"{count} steps"
    return answer.steps[count].step, (
        f"the first {which} took {times:.1f} times as long as those after,"
        f" and {'is' if count == 1 else 'are'} left out as warm-up."
    )


def _whole_run(before: dict[str, Steps], after: dict[str, Steps], alarms: float) -> tuple[Change, ...]:
    """The median step and every phase over all steps; of a run without a record nothing was captured, and of
    one with more phases than it keeps those that it does not name.
    """
    names = [what for what in dict.fromkeys([*before, *after]) if not what.endswith(OTHER_PHASES)]
    changes = _changes(before, after, names, alarms)
    for side, found in (("before", before), ("after", after)):
        if any(what.endswith(OTHER_PHASES) for what in found):
            changes = [
                replace(change, real=False, uncaptured=side) if change.absent == side else change
                for change in changes
            ]
    if not (before and after):
        unrecorded = "after" if before else "before"
        changes = [replace(change, real=False, uncaptured=unrecorded) for change in changes]
    return tuple(sorted(changes, key=lambda c: (not c.real, -abs(c.difference_ns))))


def _every_step(run: WholeRun | None) -> dict[str, Steps]:
    """What is compared -> nanoseconds of each step (or group) of the record, but the first ones."""
    if run is None:
        return {}
    rows = range(max(1, round(_FIRST * len(run.steps))), len(run.steps))
    if len(rows) < 2:
        return {}
    columns = {"step": run.middle_ms}
    columns |= {f"{run.worker}/{phase.name}": phase.own_ms for phase in run.phases}
    return {what: {row: 1e6 * values[row] for row in rows} for what, values in columns.items()}


def _changes(
    before: Mapping[str, Steps],
    after: Mapping[str, Steps],
    names: Sequence[str],
    alarms: float,
    captured: Sequence[set[str]] = (),
) -> list[Change]:
    """One row a name, the chance of a false alarm in any of them being `alarms`; "step" comes first. Phases
    share theirs by the time that they take, so that a change is the sooner found where it costs more.
    """
    judged = [what for what in names if min(len(before.get(what, ())), len(after.get(what, ()))) > 1]
    pairs = [(before[what], after[what]) for what in judged]
    if any(min(len(one), len(two)) <= FEW_STEPS for one, two in pairs):
        alarms *= OF_FEW
    sizes = {w: fmean([*a.values(), *b.values()]) for w, (a, b) in zip(judged, pairs, strict=True)}
    step = (STEP_SHARE if len(sizes) > 1 else 1.0) if "step" in sizes else 0.0
    phases = max(sum(sizes.values()) - sizes.get("step", 0), 1e-300)
    shares = [step if what == "step" else (1 - step) * sizes[what] / phases for what in judged]
    noise = differences(pairs, [alarms * share for share in shares])
    told = dict(zip(judged, noise, strict=True))
    return [_change(what, before.get(what), after.get(what), told.get(what), captured) for what in names]


def _change(
    what: str,
    before: Steps | None,
    after: Steps | None,
    noise: Difference | None,
    captured: Sequence[set[str]],
) -> Change:
    first = round(fmean(before.values())) if before else None
    second = round(fmean(after.values())) if after else None
    worker = what.partition("/")[0]
    for name, workers in zip(("before", "after"), captured, strict=False):
        if what != "step" and worker not in workers:
            return Change(what, first, second, None, False, name)
    if first is None or second is None:
        return Change(what, first, second, None, real=True)  # the phase came or went
    if noise is None:
        return Change(what, first, second, None, real=False)
    apart, matters = abs(second - first), MIN_CHANGE * max(first, 1)
    real = apart > noise.noise and apart > matters
    more = noise.more_steps(apart) if matters < apart <= noise.noise else None
    return Change(
        what, first, second, round(noise.noise), real,
        power=round(noise.power(TOLD_POWER * first), 3), more_steps=more,
    )  # fmt: skip


def _phase_samples(answer: Answer, first: int) -> dict[str, Steps]:
    """worker/phase -> its mean over the ranks in each step from `first` on."""
    sums: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in answer.anatomy:
        rank = answer.ranks[row.rank]
        if rank.controller or row.step < first:
            continue
        for phase in row.phases:
            sums[f"{rank.worker}/{answer.phase_names[phase.phase]}"][row.step].append(
                phase.duration_ns / (row.count or 1)
            )
    return {what: {step: fmean(times) for step, times in steps.items()} for what, steps in sums.items()}


def _kernels(before: Answer, after: Answer) -> tuple[Change, ...]:
    one, two = (_times(answer, answer.kernels) for answer in (before, after))
    return _large(one, two, max(sum(one.values()), sum(two.values()), 1.0))[:20]


def _large(one: Mapping[str, float], two: Mapping[str, float], whole: float) -> tuple[Change, ...]:
    """What differs by so much of the whole and of itself, the most first; its noise is not known."""
    found = []
    for name in dict.fromkeys([*one, *two]):
        a, b = one.get(name), two.get(name)
        apart = (b or 0.0) - (a or 0.0)
        if abs(apart) >= KERNEL_SHARE * whole and abs(apart) >= KERNEL_CHANGE * max(a or 0.0, b or 0.0):
            found.append(
                Change(name, None if a is None else round(a), None if b is None else round(b), None, False)
            )
    return tuple(sorted(found, key=lambda c: -abs(c.difference_ns)))


def _paths(before: Answer, after: Answer) -> tuple[Change, ...]:
    """The paths of operators that came, went or changed, the most first."""
    runs = [_times(answer, answer.call_paths) for answer in (before, after)]
    if not all(runs):
        return ()
    # what is shorter may have been left out of one of the two
    least = max(0.0 if len(times) < MOST_PATHS else min(times.values()) for times in runs)
    whole = max(sum(time for name, time in times.items() if INSIDE not in name) for times in runs)
    changes = {change.what: change for change in _large(runs[0], runs[1], whole)}
    found = [change for name, change in changes.items() if _says_it(name, changes)]
    return tuple(change for change in found if max(change.before_ns or 0, change.after_ns or 0) > least)


def _says_it(name: str, changes: Mapping[str, Change]) -> bool:
    """Whether no path says it better: of what came or went the outermost, of what changed the innermost."""
    change, around = changes[name], changes.get(name.rpartition(INSIDE)[0])
    if change.verdict in ("new", "gone"):
        return around is None or around.verdict != change.verdict
    inside = (other for path, other in changes.items() if path.rpartition(INSIDE)[0] == name)
    return not any(other.difference_ns / change.difference_ns >= MOST_OF_IT for other in inside)


def _times(answer: Answer, rows: Sequence[NameRow]) -> dict[str, float]:
    """worker/phase: name -> time a step and rank."""
    ranks: dict[str, int] = defaultdict(int)
    for row in answer.anatomy:
        ranks[answer.ranks[row.rank].worker] += row.count or 1
    return {
        f"{row.worker}/{row.phase or '-'}: {row.name}": row.total_ns / max(ranks[row.worker], 1)
        for row in rows
        if row.name != "(others)"
    }


def _stragglers(answer: Answer) -> set[str]:
    found = set()
    for s in answer.stragglers:
        rank = answer.ranks[s.rank]
        on = f"rank {rank.rank}" if s.node is None else f"on node {s.node}"
        found.add(f"{rank.worker} {on} in {s.phase}")
    return found


def _missing(answer: Answer) -> int:
    return len(answer.coverage.missing) + len(answer.coverage.unread)


_RULE = re.compile(r"\s*([A-Za-z0-9_./ -]+?)\s*>\s*([0-9.]+)\s*(%|ns|us|µs|ms|s)?\s*")
_UNITS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_COUNTS = ("missing", "stragglers")
_RUN = "run/"  # before what is compared over the whole run


@dataclass(frozen=True)
class Rule:
    """A condition that fails a comparison: `step>5%`, `train>20ms`, `policy_worker/train>3%`, `missing>0`,
    `stragglers>0`.
    """

    text: str
    what: str
    limit: float  # a share, nanoseconds, or a count
    relative: bool


def parse_rule(text: str, diff: Diff) -> Rule:
    """Raises `UsageError` for a rule that cannot be read or that names nothing that was compared."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise UsageError(f"--fail-if {text!r}: write WHAT>LIMIT, e.g. 'step>5%', 'train>20ms', 'missing>0'")
    what, number, unit = match.groups()
    try:
        limit = float(number)
    except ValueError:
        raise UsageError(f"--fail-if {text!r}: {number!r} is no number") from None
    known = [
        "step",
        *_COUNTS,
        *(c.what for c in diff.phases),
        *(c.what.partition("/")[2] for c in diff.phases),
        _RUN + "step",
        *(_RUN + c.what for c in diff.whole_run),
    ]
    if what not in known:
        hint = did_you_mean(what, known)
        raise UsageError(
            f"--fail-if {text!r}: {what!r} is in neither run; known are"
            f" {', '.join(sorted(set(known)))}.{hint}"
        )
    if (unit is None) != (what in _COUNTS):
        allowed = "a bare number" if what in _COUNTS else "a limit in %, ns, us, ms or s"
        raise UsageError(f"--fail-if {text!r}: {what} takes {allowed}")
    relative = unit == "%"
    return Rule(text, what, limit / 100 if relative else limit * _UNITS.get(unit or "", 1), relative)


def violations(rules: Sequence[Rule], diff: Diff) -> list[str]:
    """What broke a rule, in words. A change within the noise breaks none, nor does what `unjudged` tells."""
    found = []
    for rule in rules:
        if rule.what in _COUNTS:
            count = diff.missing[1] if rule.what == "missing" else len(diff.stragglers_new)
            if count > rule.limit:
                missing = f"{counted(count, 'report')} missing or unread"
                found.append(
                    f"{rule.text}: {missing if rule.what == 'missing' else counted(count, 'new straggler')}"
                )
            continue
        for change in _named(rule, diff):
            grown = change.share if rule.relative else float(change.difference_ns)
            if change.real and grown is not None and grown > rule.limit and not _why_open(rule, change):
                found.append(f"{rule.text}: {change.what} {describe(change)}")
    return found


def _named(rule: Rule, diff: Diff) -> list[Change]:
    """What a rule is judged by: new stragglers by steps in both runs, missing reports by nothing else."""
    if rule.what in _COUNTS:
        return [diff.step] if rule.what == "stragglers" else []
    if rule.what.startswith(_RUN):
        found = [change for change in diff.whole_run if change.what == rule.what.removeprefix(_RUN)]
        return found or [Change("step", None, None, None, False, "before or after")]
    if rule.what == "step":
        return [diff.step]
    return [change for change in diff.phases if rule.what in (change.what, change.what.partition("/")[2])]


def unjudged(rules: Sequence[Rule], diff: Diff) -> list[str]:
    """Rules that neither held nor broke, with the reason."""
    reasons = [(rule, _why_open(rule, change)) for rule in rules for change in _named(rule, diff)]
    if not diff.harvested:
        held = [rule for rule in rules if rule.what == "missing" and diff.missing[1] <= rule.limit]
        reasons += [(rule, "nobody has harvested the second run (rlprof harvest)") for rule in held]
    return [f"{rule.text}: {reason}" for rule, reason in reasons if reason]


def _why_open(rule: Rule, change: Change) -> str:
    """Why a rule cannot be judged by a change; empty where it can. A phase that came or went took no time in
    the other run: that is a difference, and no share. A run without steps was not measured.
    """
    if change.uncaptured:
        return f"{change.what} was not captured {change.uncaptured}"
    if change.absent and (rule.relative or change.what == "step"):
        return f"there is no {change.what} {change.absent}"
    if change.verdict == "one step" and rule.what not in _COUNTS:
        return f"a run has a single step of {change.what}, its noise is not known"
    if rule.relative and change.real and change.share is None:
        return f"{change.what} took no time before"
    return ""


def signed_percent(share: float) -> str:
    return f"{'+' if share >= 0 else '−'}{percent(abs(share))}"


def describe(change: Change) -> str:
    """ "went from 1.20 s to 1.31 s (+9.2 %, noise ±8 ms)"."""
    if change.uncaptured:
        there = change.after_ns if change.uncaptured == "before" else change.before_ns
        return f"was not captured {change.uncaptured} ({duration(there or 0)} a step in the other run)"
    if change.before_ns is None and change.after_ns is None:
        return "is in neither run"
    if change.before_ns is None:
        return f"is new, {duration(change.after_ns or 0)} a step"
    if change.after_ns is None:
        return f"is gone, it was {duration(change.before_ns)} a step"
    share = change.share
    part = "" if share is None else f"{signed_percent(share)}, "
    noise = "noise unknown" if change.noise_ns is None else f"noise ±{duration(change.noise_ns)}"
    return f"went from {duration(change.before_ns)} to {duration(change.after_ns)} ({part}{noise})"


def resolution(change: Change) -> str:
    """How sure "noise" is: "A change of 10 % would be found in 83 of 100 such pairs; ..."; else nothing."""
    if change.verdict != "noise" or change.power is None:
        return ""
    text = f"A change of {percent(TOLD_POWER)} would be found in {100 * change.power:.0f} of 100 such pairs"
    if change.share is None or abs(change.share) <= MIN_CHANGE:
        return f"{text}."
    more = "more steps than can be foreseen"
    if change.more_steps is not None:
        more = f"about {counted(change.more_steps, 'more step')}"
    return f"{text}; to tell {signed_percent(change.share)} from noise, capture {more} in each run."
