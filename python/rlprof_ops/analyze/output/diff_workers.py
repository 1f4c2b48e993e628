"""Which worker of a run is which of another: traces from elsewhere are named after their files."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from rlprof_ops.analyze.report_model import Answer
from rlprof_ops.errors import UsageError
from rlprof_ops.words import did_you_mean


def matched(before: Answer, after: Answer, given: Sequence[str]) -> tuple[Answer, list[str]]:
    """`before` with its workers called as in `after`, and sentences that say so.

    given: BEFORE=AFTER, as a user types them; without any, one worker a side is the same worker, except of
    jobs, whose workers have their names from the trainer

    Raises `UsageError` for a name that is in neither run.
    """
    here, there = (
        sorted({rank.worker for rank in run.ranks if not rank.controller}) for run in (before, after)
    )
    names = dict(_pair(text, here, there) for text in given)
    of_jobs = (before.run.keys() | after.run.keys()) - {"path"}
    if not names and not of_jobs and len(here) == len(there) == 1 and here != there:
        names = {here[0]: there[0]}
    rows = {field: getattr(before, field) for field in Answer.__struct_fields__}
    renamed: dict[str, object] = {
        field: [structs.replace(row, worker=names.get(row.worker, row.worker)) for row in value]
        for field, value in rows.items()
        if isinstance(value, list) and value and hasattr(value[0], "worker")
    }
    if before.whole_run is not None:
        run = before.whole_run
        renamed["whole_run"] = structs.replace(run, worker=names.get(run.worker, run.worker))
    said = [f"{old} before and {new} after are compared as one worker." for old, new in names.items()]
    return structs.replace(before, **renamed), said


def _pair(text: str, here: list[str], there: list[str]) -> tuple[str, str]:
    old, sign, new = text.partition("=")
    if not sign:
        raise UsageError(
            f"--as {text!r}: write BEFORE=AFTER, a worker of the first run and one of the second"
        )
    for name, known, which in ((old, here, "first"), (new, there, "second")):
        if name not in known:
            raise UsageError(
                f"--as {text!r}: {name!r} is no worker of the {which} run, which has"
                f" {', '.join(known) or 'none'}.{did_you_mean(name, known)}"
            )
    return old, new
