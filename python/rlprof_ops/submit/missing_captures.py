"""What is left to capture: a request made of the captures that did not end in a whole report, for a new job
and for one that starts again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.backends.report_names import trigger_number
from rlprof_ops.collect.harvest.manifest import WHOLE, CaptureResult, Manifest
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import foreign
from rlprof_ops.job import attempt, run_json
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.request import (
    CaptureSpec,
    ProfileRequest,
    Steps,
    Window,
    load_request,
    request_from_dict,
)


def asked_now(job: str, run: Path, env: Mapping[str, str]) -> ProfileRequest:
    """What a job was asked, without what earlier attempts of it brought home whole; the arguments are those
    of `asked_at_first`.
    """
    return left_after(_earlier(job, run, env), asked_at_first(job, run, env))


def asked_at_first(job: str, run: Path, env: Mapping[str, str]) -> ProfileRequest:
    """The request of an environment; where it asks nothing, the one that the trainer's own configuration made
    in an earlier attempt.

    Args:
        job: with its attempt, as in the name of its run folder `run`; those of the others lie beside it.
        env: has the numbers of the attempts that have a manifest.
    """
    asked = load_request(env=env)
    told = () if asked else map(_told_by_trainer, _earlier(job, run, env))
    return next(filter(None, told), asked)


def _earlier(job: str, run: Path, env: Mapping[str, str]) -> list[Path]:
    """The run folders of earlier attempts, the first one first."""
    numbers = env.get(env_names.EARLIER_ATTEMPTS, "").split()
    names = (attempt.name(attempt.job_of(job), int(number)) for number in numbers)
    return [run.parent / attempt.folder_name(name) for name in names]


def _told_by_trainer(folder: Path) -> ProfileRequest:
    """One that cannot be read, or has secrets that the file does not, is none: the trainer tells it again,
    whole.
    """
    record = foreign.read_object(RunFolder(folder).run_json)
    if record.get("request_by") == run_json.BY_TRAINER:
        with contextlib.suppress(RlprofError):
            told = request_from_dict(record.get("request"), f"{folder}/run.json")
            return ProfileRequest() if run_json.masked_names(told) else told
    return ProfileRequest()


def left_after(earlier: Iterable[Path], asked: ProfileRequest) -> ProfileRequest:
    """What a job that goes on has still to take, with a note on each of its `earlier` run folders. An attempt
    whose manifest cannot be read, or was made while it ran, has taken nothing. What waits until something is
    found goes on waiting, with its whole budget.
    """
    known, notes = list[Manifest](), list(asked.notes)
    for folder in earlier:
        try:
            manifest = Manifest.load(folder)
        except (RlprofError, OSError) as error:
            notes.append(f"what an earlier attempt took is asked again: {error}")
            continue
        if manifest.running:
            notes.append(
                f"what an earlier attempt took is asked again: {folder} has a manifest from while it ran"
            )
            continue
        known.append(manifest)
        whole = sum(capture.state in WHOLE for capture in manifest.captures)
        notes.append(
            f"an earlier attempt brought {whole} of {len(manifest.captures)} captures home, which are not"
            f" taken again: {folder}"
        )
    if not known:
        return replace(asked, notes=tuple(notes))
    left = replace(asked, captures=tuple(replace(spec, when=None) for spec in asked.captures if spec.is_on))
    for manifest in known:
        left = missing_request(manifest, left)
    return replace(left, captures=(*left.captures, *_waiting(asked.captures)), notes=tuple(notes))


def missing_request(manifest: Manifest, asked: ProfileRequest) -> ProfileRequest:
    """Ask again for each capture that is not whole, with the options it was asked with. Falsy when all are
    whole.

    Ranks that miss the same steps of a worker become one capture. In phase mode a step is asked again whole,
    since a phase cannot be asked alone. What a `when` opened waits for it again, with its whole budget, and
    what a person asked of the running job is not asked again. A pattern that no worker matched is asked again
    as it was, and so is the whole request when the manifest lists nothing that was planned.
    """
    planned = [capture for capture in manifest.captures if not capture.asked_by]
    if not planned:
        return asked
    steps: dict[tuple[int, str, int | None], set[tuple[int, int | None]]] = {}
    for capture in planned:
        if capture.state in WHOLE:
            continue
        for number in _specs_of(capture, asked):
            steps.setdefault((number, capture.worker, capture.rank), set()).add((capture.start, capture.stop))
    ranks: dict[tuple[int, str, Steps], list[int | None]] = {}
    for (number, worker, rank), windows in steps.items():
        runs = Steps.of(Window(start, stop) for start, stop in windows)
        ranks.setdefault((number, worker, runs), []).append(rank)
    specs = []
    for (number, worker, runs), found in sorted(
        ranks.items(), key=lambda item: (item[0][0], item[0][1], str(item[0][2]))
    ):
        spec = asked.captures[number]
        numbers = spec.ranks if None in found else tuple(sorted(rank for rank in found if rank is not None))
        specs.append(replace(spec, workers=(worker,), ranks=numbers, steps=runs, origins={}))
    lost = {trigger_number(capture.asked_by) for capture in manifest.captures}
    lost -= {number + 1 for number, _, _ in ranks}  # these wait as they take their steps
    again = _waiting(spec for number, spec in enumerate(asked.captures, 1) if number in lost)
    return replace(asked, captures=(*specs, *again), notes=())


def _waiting(specs: Iterable[CaptureSpec]) -> tuple[CaptureSpec, ...]:
    """Those that wait until something is found, without their steps."""
    return tuple(replace(spec, steps=Steps()) for spec in specs if spec.waits)


def _specs_of(capture: CaptureResult, asked: ProfileRequest) -> Iterable[int]:
    """The entry of the request that the capture came from: the first that matches, as for a worker itself."""
    for number, spec in enumerate(asked.captures):
        if spec.backend == capture.backend and _is_of(capture, spec):
            return (number,)
    return ()


def _is_of(capture: CaptureResult, spec: CaptureSpec) -> bool:
    if capture.start not in spec.steps:
        return False
    return spec.matches(capture.worker, capture.rank) or capture.worker in spec.workers
