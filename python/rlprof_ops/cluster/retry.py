"""The same job again with only what is missing: a request made of the captures that did not end in a whole report."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlprof_ops.cluster.knobs import read_knobs
from rlprof_ops.cluster.send import read_record
from rlprof_ops.cluster.submit import Asked
from rlprof_ops.collect.manifest import WHOLE, CaptureResult, Manifest
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.redact import MASK, is_secret_name
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps, Window
from rlprof_ops.request.environ import REQUEST_VARIABLES

_NOT_AGAIN = frozenset({*REQUEST_VARIABLES, "RLPROF_HOME", "RLPROF_JOB", "COMMAND"})


def missing_request(manifest: Manifest, asked: ProfileRequest) -> ProfileRequest:
    """Ask again for each capture that is not whole, with the options it was asked with. Falsy when all are whole.

    Ranks that miss the same steps of a worker become one capture. In phase mode a step is asked again whole, since a
    phase cannot be asked alone. A pattern that no worker matched is asked again as it was.
    """
    steps: dict[tuple[int, str, int | None], set[tuple[int, int | None]]] = {}
    for capture in manifest.captures:
        if capture.state in WHOLE:
            continue
        for number in _specs_of(capture, asked):
            steps.setdefault((number, capture.worker, capture.rank), set()).add((capture.start, capture.stop))
    ranks: dict[tuple[int, str, Steps], list[int | None]] = {}
    for (number, worker, rank), windows in steps.items():
        runs = Steps.of(tuple(Window(start, stop) for start, stop in sorted(windows, key=lambda window: window[0])))
        ranks.setdefault((number, worker, runs), []).append(rank)
    specs = []
    for (number, worker, runs), found in sorted(ranks.items(), key=lambda item: (item[0][0], item[0][1], str(item[0][2]))):
        spec = asked.captures[number]
        numbers = spec.ranks if None in found else tuple(sorted(rank for rank in found if rank is not None))
        specs.append(replace(spec, workers=(worker,), ranks=numbers, steps=runs, origins={}))
    return ProfileRequest(tuple(specs), output_dir=asked.output_dir)


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


def request_of(folder: Path) -> ProfileRequest:
    """What the job was asked, from its run.json. Raises RlprofError without one."""
    return ProfileRequest.from_dict(_run_record(folder).get("request") or {}, origin=f"{folder}/run.json")


def asked_again(folder: Path, env: Mapping[str, str]) -> tuple[Asked, list[str]]:
    """How to submit the job of a run folder once more, and what had to be guessed about it.

    Raises RlprofError when the run folder does not tell its command, UsageError when it is somebody else's.
    """
    if folder.stat().st_uid != os.getuid():
        raise UsageError(f"{folder} is another user's: its command would run as you; submit your own with rlprof submit")
    found = read_record(folder, env)
    if found is not None:
        return found, []
    record = _run_record(folder)
    command = str(record.get("command") or "")
    if MASK in command:
        raise RlprofError(f"{folder}/run.json holds the command with its secrets masked; give the command again after `--`")
    nodes = record.get("nodes")
    words = (f"--nodes={len(nodes)}",) if isinstance(nodes, list) and nodes else ()
    note = f"this job was not submitted by `rlprof submit`: it gets {' '.join(words) or 'no nodes'} and no other flag of sbatch; give those it needs"
    return Asked(sbatch=words, command=command or None, knobs=_knobs_of(folder)), [note]


def _run_record(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        data = json.loads((folder / "run.json").read_bytes())
        if isinstance(data, dict):
            return data
    raise RlprofError(f"{folder} has no readable run.json, so its command is not known")


def _knobs_of(folder: Path) -> dict[str, str]:
    """The knobs that the job ran with and that differ from the defaults, from the file that attaching uses."""
    knobs = read_knobs()
    found = {}
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / ".secrets" / "attach.env").read_text().splitlines():
            for word in shlex.split(line.removeprefix("export ")):
                name, _, value = word.partition("=")
                if name in knobs and name not in _NOT_AGAIN and value != knobs[name].default and not is_secret_name(name):
                    found[name] = value
    return found


def home_of(folder: Path) -> Path:
    """Where the first job was submitted, so that the second one's folder comes beside the first; else the folder's own parent."""
    with contextlib.suppress(RlprofError, OSError):
        named = str(_run_record(folder).get("submit_dir") or "")
        if named and os.path.isdir(named):
            return Path(named)
    return folder.parent
