"""With which version of the weights the samples of a step were made, as the trainer itself counts versions.

One line a batch that is trained on, in the notes of its process. Nothing is told where the versions are not
known, or where nobody asks for anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rlprof_ops.runtime import step_clock
from rlprof_ops.runtime.process.event_log import SAMPLES

_MOST = 200  # pairs of versions of one batch


def trained(step: int, version: int, made: Iterable[tuple[int, int]], unit: str = "samples") -> None:
    """Step `step` trains weights of `version` on samples. `made`: of each the versions that its first and its
    last token were made with.
    """
    counts = Counter((int(first), int(last)) for first, last in made)
    rows = [[first, last, count] for (first, last), count in counts.most_common(_MOST)]
    if rows:
        step_clock.note(SAMPLES, step=step, version=version, unit=unit, made=rows)
