"""`report.json` as text: written for every reader, read back into the same rows."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import msgspec

from rlprof_ops.analyze.report_model import SCHEMA, AnatomyRow, Answer, GpuRow, MemoryRow, StragglerRow
from rlprof_ops.errors import UsageError
from rlprof_ops.host import foreign

_MOST_BYTES = 2 << 30


class _Version(msgspec.Struct):
    schema: object = None


def as_data(answer: Answer) -> dict[str, object]:
    """The answer by the names that stand in report.json."""
    data: dict[str, object] = msgspec.to_builtins(answer)
    return data


def written(data: object) -> str:
    """Rows of the report as JSON in one line. A name that is not UTF-8, as a path may be, has "?" for what is
    not: Python's own JSON takes it, a tenth as fast as msgspec.
    """
    with contextlib.suppress(UnicodeEncodeError):
        return msgspec.json.encode(data).decode()
    text = json.dumps(msgspec.to_builtins(data), separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def is_answer(file: Path) -> bool:
    """Whether a file begins as report.json does."""
    with contextlib.suppress(OSError), foreign.open_plain(file) as opened:
        return b'"made_by"' in opened.read(4096)
    return False


def read_answer(file: Path) -> Answer:
    """What a report.json holds. Raises `UsageError` where it is none of this version."""
    try:
        text = foreign.read_bytes(file, _MOST_BYTES)
        schema = msgspec.json.decode(text, type=_Version).schema
        if schema == SCHEMA:
            answer = msgspec.json.decode(text, type=Answer)
            _check_indices(answer)
            return answer
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise UsageError(
            f"{file}: cannot be read as report.json ({error}); make it anew with `rlprof report`"
        ) from error
    raise UsageError(
        f"{file}: its schema is {schema!r}, this is for {SCHEMA}; make it anew with `rlprof report`"
    )


def _check_indices(answer: Answer) -> None:
    """Raises ValueError where a row names a rank or a phase that the report does not list."""
    rows: tuple[AnatomyRow | StragglerRow | GpuRow | MemoryRow, ...]
    rows = (*answer.anatomy, *answer.stragglers, *answer.gpu, *answer.memory)
    ranks = {row.rank for row in rows} | {segment[0] for segment in answer.segments}
    phases = {part.phase for row in answer.anatomy for part in row.phases}
    phases |= {segment[2] for segment in answer.segments}
    for what, named, listed in (("rank", ranks, answer.ranks), ("phase", phases, answer.phase_names)):
        if unknown := named - {*range(len(listed))}:
            raise ValueError(f"a row names a {what} that is not there: {min(unknown)} of {len(listed)}")
