"""What changed between two runs beyond their own step-to-step noise: steps, phases, kernels, stragglers,
coverage.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, sqrt
from statistics import fmean, variance
from typing import TypedDict

from rlprof_ops.analyze.metrics.student import quantile
from rlprof_ops.analyze.output.text import counted, duration, percent, unmarked
from rlprof_ops.analyze.report_model import Answer
from rlprof_ops.analyze.whole_run.samples import samples
from rlprof_ops.errors import UsageError
from rlprof_ops.words import did_you_mean

FALSE_ALARMS = 0.02  # the chance that two equal runs differ in anything, shared among all that is compared
MIN_CHANGE = 0.01
KERNEL_CHANGE = 0.05  # kernels are summed over all steps, so their noise is not known
KERNEL_SHARE = 0.005


class ChangeRow(TypedDict):
    """One compared quantity, as data."""

    what: str
    before_ns: int | None
    after_ns: int | None
    noise_ns: int | None
    real: bool
    uncaptured: str
    difference_ns: int | None
    verdict: str
    share: float | None


class DiffAnswer(TypedDict):
    """What `rlprof diff --json` prints; `missing` and `ranks`: before and after."""

    schema: int
    step: ChangeRow
    phases: list[ChangeRow]
    kernels: list[ChangeRow]
    stragglers_new: list[str]
    stragglers_gone: list[str]
    missing: list[int]
    ranks: list[int]
    notes: list[str]
    whole_run: list[ChangeRow]


@dataclass(frozen=True)
class Change:
    """One quantity in both runs, nanoseconds a step. `noise_ns`: what chance alone may make of it, None: not
    known.

    `real`: the difference exceeds that noise and 1 %; with a single step in a run there is no noise to hold
    it against, and nothing is called real. `uncaptured`: the run ("before", "after") in which its worker was
    not recorded, so that nothing can be said.
    """

    what: str
    before_ns: int | None
    after_ns: int | None
    noise_ns: int | None
    real: bool
    uncaptured: str = ""

    @property
    def verdict(self) -> str:
        """In a word or two: "slower", "faster", "new", "gone", "noise", "not captured before", "one step"."""
        if self.uncaptured:
            return f"not captured {self.uncaptured}"
        if self.before_ns is None or self.after_ns is None:
            return "new" if self.before_ns is None else "gone"
        if self.noise_ns is None:
            return "one step"
        if not self.real:
            return "noise"
        return "slower" if self.difference_ns > 0 else "faster"

    @property
    def difference_ns(self) -> int:
        return (self.after_ns or 0) - (self.before_ns or 0)

    @property
    def share(self) -> float | None:
        return self.difference_ns / self.before_ns if self.before_ns and self.after_ns is not None else None

    def to_dict(self) -> ChangeRow:
        share = self.share
        return {
            "what": self.what,
            "before_ns": self.before_ns,
            "after_ns": self.after_ns,
            "noise_ns": self.noise_ns,
            "real": self.real,
            "uncaptured": self.uncaptured,
            "difference_ns": None if self.uncaptured else self.difference_ns,
            "verdict": self.verdict,
            "share": None if share is None else round(share, 5),
        }


@dataclass(frozen=True)
class Diff:
    """Everything that was compared."""

    step: Change
    phases: tuple[Change, ...]
    kernels: tuple[Change, ...]
    stragglers_new: tuple[str, ...]
    stragglers_gone: tuple[str, ...]
    missing_before: int
    missing_after: int
    ranks_before: int
    ranks_after: int
    notes: tuple[str, ...]
    whole_run: tuple[Change, ...] = ()

    def to_dict(self) -> DiffAnswer:
        return {
            "schema": 1,
            "step": self.step.to_dict(),
            "phases": [c.to_dict() for c in self.phases],
            "kernels": [c.to_dict() for c in self.kernels],
            "stragglers_new": list(self.stragglers_new),
            "stragglers_gone": list(self.stragglers_gone),
            "missing": [self.missing_before, self.missing_after],
            "ranks": [self.ranks_before, self.ranks_after],
            "notes": list(self.notes),
            "whole_run": [c.to_dict() for c in self.whole_run],
        }


def compare(before: Answer, after: Answer) -> Diff:
    """The difference of two answers (`report.json`). Phases are compared by worker and phase, kernels by
    name as well.
    """
    lengths = [[s["duration_ns"] / (s["count"] or 1) for s in a["steps"]] for a in (before, after)]
    one, two = _phase_samples(before), _phase_samples(after)
    names = list(dict.fromkeys([*one, *two]))
    level = FALSE_ALARMS / (1 + len(names))
    step = _change("step", lengths[0], lengths[1], level)
    captured = [{what.partition("/")[0] for what in samples} for samples in (one, two)]
    phases = [_change(what, one.get(what, []), two.get(what, []), level, captured) for what in names]
    phases.sort(key=lambda c: (not c.real, -abs(c.difference_ns)))
    slow_before, slow_after = _stragglers(before), _stragglers(after)
    notes = []
    if min(len(before["steps"]), len(after["steps"])) < 2:
        notes.append(
            "A run has a single step or window, so its noise is not known: capture more steps to tell a"
            " change from chance."
        )
    for name, answer in (("before", before), ("after", after)):
        notes += [f"{name}: {sentence}" for sentence in unmarked(answer["steps"])]
    if len(before["ranks"]) != len(after["ranks"]):
        notes.append(f"The runs have {len(before['ranks'])} and {len(after['ranks'])} ranks.")
    return Diff(
        step,
        tuple(phases),
        _kernels(before, after),
        tuple(sorted(slow_after - slow_before)),
        tuple(sorted(slow_before - slow_after)),
        _missing(before),
        _missing(after),
        len(before["ranks"]),
        len(after["ranks"]),
        tuple(notes),
        _whole_run(before, after),
    )


def _whole_run(before: Answer, after: Answer) -> tuple[Change, ...]:
    """The median step and every phase over all steps, where both runs have a record.

    Neighbouring steps are alike (answers grow, a node warms up), so that they are no independent samples: the
    means of stretches of each run are (batch means; Law and Kelton, Simulation Modeling and Analysis).
    """
    one, two = (samples(answer.get("whole_run")) for answer in (before, after))
    names = list(dict.fromkeys([*one, *two])) if one and two else []
    level = FALSE_ALARMS / max(len(names), 1)
    found = [_change(what, one.get(what, []), two.get(what, []), level) for what in names]
    return tuple(sorted(found, key=lambda c: (not c.real, -abs(c.difference_ns))))


def _change(
    what: str,
    before: Sequence[float],
    after: Sequence[float],
    level: float,
    captured: Sequence[set[str]] = (),
) -> Change:
    """Welch's t test at `level`, two-sided: the noise is the quantile times the standard error."""
    first = round(fmean(before)) if before else None
    second = round(fmean(after)) if after else None
    worker = what.partition("/")[0]
    for name, workers in zip(("before", "after"), captured, strict=False):
        if worker not in workers:
            return Change(what, first, second, None, False, name)
    if first is None or second is None:
        return Change(what, first, second, None, real=True)  # the phase came or went
    if len(before) < 2 or len(after) < 2:
        return Change(what, first, second, None, real=False)
    one, two = variance(before) / len(before), variance(after) / len(after)
    noise = 0.0
    if one + two > 0:
        freedom = (one + two) ** 2 / (one**2 / (len(before) - 1) + two**2 / (len(after) - 1))
        noise = quantile(1 - level / 2, max(floor(4 * freedom) / 4, 1.0)) * sqrt(one + two)
    apart = abs(second - first)
    return Change(what, first, second, round(noise), apart > noise and apart > MIN_CHANGE * max(first, 1))


def _phase_samples(answer: Answer) -> dict[str, list[float]]:
    """worker/phase -> its mean over the ranks, one sample a step."""
    sums: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in answer["anatomy"]:
        rank = answer["ranks"][row["rank"]]
        if rank["controller"]:
            continue
        for phase in row["phases"]:
            sums[f"{rank['worker']}/{answer['phase_names'][phase['phase']]}"][row["step"]].append(
                phase["duration_ns"] / (row["count"] or 1)
            )
    return {what: [fmean(lengths) for _, lengths in sorted(steps.items())] for what, steps in sums.items()}


def _kernels(before: Answer, after: Answer) -> tuple[Change, ...]:
    one, two = _kernel_times(before), _kernel_times(after)
    whole = max(sum(one.values()), sum(two.values()), 1.0)
    found = []
    for name in dict.fromkeys([*one, *two]):
        a, b = one.get(name), two.get(name)
        apart = (b or 0.0) - (a or 0.0)
        if abs(apart) >= KERNEL_SHARE * whole and abs(apart) >= KERNEL_CHANGE * max(a or 0.0, b or 0.0):
            found.append(
                Change(name, None if a is None else round(a), None if b is None else round(b), None, False)
            )
    return tuple(sorted(found, key=lambda c: -abs(c.difference_ns))[:20])


def _kernel_times(answer: Answer) -> dict[str, float]:
    """worker/phase: kernel -> time a step and rank."""
    ranks: dict[str, int] = defaultdict(int)
    for row in answer["anatomy"]:
        ranks[answer["ranks"][row["rank"]]["worker"]] += row["count"] or 1
    return {
        f"{k['worker']}/{k['phase'] or '-'}: {k['name']}": k["total_ns"] / max(ranks[k["worker"]], 1)
        for k in answer["kernels"]
        if k["name"] != "(others)"
    }


def _stragglers(answer: Answer) -> set[str]:
    return {
        f"{answer['ranks'][s['rank']]['worker']} rank {answer['ranks'][s['rank']]['rank']} in {s['phase']}"
        for s in answer["stragglers"]
    }


def _missing(answer: Answer) -> int:
    return len(answer["coverage"]["missing"]) + len(answer["coverage"]["unread"])


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
    """What broke a rule, in words. A change within the noise breaks none; see `unjudged` for the rest."""
    found = []
    for rule in rules:
        if rule.what in _COUNTS:
            count = diff.missing_after if rule.what == "missing" else len(diff.stragglers_new)
            if count > rule.limit:
                missing = f"{counted(count, 'report')} missing or unread"
                found.append(
                    f"{rule.text}: {missing if rule.what == 'missing' else counted(count, 'new straggler')}"
                )
            continue
        for change in _named(rule, diff):
            grown = change.share if rule.relative else float(change.difference_ns)
            if change.real and grown is not None and grown > rule.limit:
                found.append(f"{rule.text}: {change.what} {describe(change)}")
    return found


def _named(rule: Rule, diff: Diff) -> list[Change]:
    if rule.what.startswith(_RUN):
        return [change for change in diff.whole_run if change.what == rule.what.removeprefix(_RUN)]
    if rule.what == "step":
        return [diff.step]
    return [change for change in diff.phases if rule.what in (change.what, change.what.partition("/")[2])]


def unjudged(rules: Sequence[Rule], diff: Diff) -> list[str]:
    """Rules that neither held nor broke, with the reason."""
    found = []
    for rule in rules:
        for change in _named(rule, diff) if rule.what not in _COUNTS else ():
            if change.uncaptured:
                found.append(f"{rule.text}: {change.what} was not captured {change.uncaptured}")
            elif change.verdict == "one step":
                found.append(f"{rule.text}: a run has a single step of {change.what}, its noise is not known")
    return found


def signed_percent(share: float) -> str:
    return f"{'+' if share >= 0 else '−'}{percent(abs(share))}"


def describe(change: Change) -> str:
    """ "went from 1.20 s to 1.31 s (+9.2 %, noise ±8 ms)"."""
    if change.uncaptured:
        there = change.after_ns if change.uncaptured == "before" else change.before_ns
        return f"was not captured {change.uncaptured} ({duration(there or 0)} a step in the other run)"
    if change.before_ns is None:
        return f"is new, {duration(change.after_ns or 0)} a step"
    if change.after_ns is None:
        return f"is gone, it was {duration(change.before_ns)} a step"
    share = change.share
    part = "" if share is None else f"{signed_percent(share)}, "
    noise = "noise unknown" if change.noise_ns is None else f"noise ±{duration(change.noise_ns)}"
    return f"went from {duration(change.before_ns)} to {duration(change.after_ns)} ({part}{noise})"
