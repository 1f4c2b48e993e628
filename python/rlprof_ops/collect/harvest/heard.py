"""One line that says which trainer was recognised, what was heard of it, and what not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rlprof_ops.collect.event_logs import Led
from rlprof_ops.collect.harvest.run_state import Observed
from rlprof_ops.words import counted, duration

_MOST_NAMES = 12


def heard_line(
    by: str,
    steps: tuple[int, int] | None,
    phases: Iterable[str],
    roles: Mapping[str, int],
    not_seen: Sequence[str] = (),
    remarks: Sequence[str] = (),
) -> str:
    """`by`: who told the steps, as the event `leads` says it; `steps`: the first and the last one; `roles`:
    ranks by worker; `not_seen`: what an adapter could not follow.
    """
    names = list(dict.fromkeys(phases))
    found = []
    if steps is not None:
        found.append(f"step {steps[0]}" if steps[0] == steps[1] else f"steps {steps[0]} to {steps[1]}")
    if names:
        found.append(f"phases {_some(names)}")
    if roles:
        found.append(f"roles {_some([_role(*each) for each in roles.items()])}")
    kinds = (("steps", steps), ("phases", names), ("roles", roles))
    missing = [kind for kind, there in kinds if not there]
    if not_seen:
        missing.append(f"{counted(len(not_seen), 'place')} that the adapter did not find")
    line = f"{by or 'no trainer recognised'}: {'; '.join(found) or 'nothing heard'}"
    said = [f"not heard: {', '.join(missing)}"] if missing and found else []
    return "; ".join([line, *said, *remarks])


def _role(worker: str, ranks: int) -> str:
    return worker if ranks == 1 else f"{worker} ({ranks})"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def heard(observed: Observed) -> str:
    """Of a whole job."""
    led = observed.led
    by = led.by if led is not None else ""
    if not by and observed.adapted:
        by = f"in the driver is {', '.join(observed.adapted)}"
    steps = led.span if led is not None else None
    phases = led.phases if led is not None else ()
    remarks = _by_log(led, observed) if led is not None and led.log else []
    return heard_line(by, steps, phases, observed.world, observed.not_seen, remarks)


def _by_log(led: Led, observed: Observed) -> list[str]:
    """How late it was known that a step begins, and how late windows were open."""
    found = []
    if led.late_s:
        found.append(f"a step was known at most {duration(led.late_s * 1e9)} after its line")
    opened = [
        event.t_ns - led.steps[event.start][0]
        for log in observed.logs
        for event in log.windows
        if event.event == "opened" and event.start in led.steps
    ]
    if opened:
        found.append(f"windows were open at most {duration(max(opened))} after their step began")
    return found
