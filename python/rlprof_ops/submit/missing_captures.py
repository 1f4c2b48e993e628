"""What is left to capture: a request made of the captures that did not end in a whole report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rlprof_ops.collect.harvest.manifest import WHOLE, CaptureResult, Manifest
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps, Window


def missing_request(manifest: Manifest, asked: ProfileRequest) -> ProfileRequest:
    """Ask again for each capture that is not whole, with the options it was asked with. Falsy when all are
    whole.

    Ranks that miss the same steps of a worker become one capture. In phase mode a step is asked again whole,
    since a phase cannot be asked alone. A pattern that no worker matched is asked again as it was, and so is
    the whole request when the manifest lists nothing.
    """
    if not manifest.captures:
        return asked
    steps: dict[tuple[int, str, int | None], set[tuple[int, int | None]]] = {}
    for capture in manifest.captures:
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
    return replace(asked, captures=tuple(specs), notes=())


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
