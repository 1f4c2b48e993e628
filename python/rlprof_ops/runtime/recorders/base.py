"""The things that take one capture: each opens a window, closes it, and hands over one finished file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlprof_ops.backends import OK, Where, get, is_known, names, validate
from rlprof_ops.backends.contract import WindowRecorder as WindowRecorder
from rlprof_ops.backends.nsight import mask_reports, nsys_cli
from rlprof_ops.backends.torch import trace_check as torch_backend
from rlprof_ops.host.gpus import has_gpu
from rlprof_ops.redact import secret_values
from rlprof_ops.runtime.recorders.memory import memory_recorder
from rlprof_ops.runtime.recorders.torch import TorchRecorder

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec


def choose_taker(spec: CaptureSpec, all_specs: Sequence[CaptureSpec]) -> tuple[WindowRecorder | None, str]:
    """Who takes `spec` in this process, or None and the reason why nobody can."""
    refused = validate(spec, Where(gpu=has_gpu())).errors
    if refused:
        return None, "; ".join(refused)
    if spec.backend == "torch":
        conflict = first_cupti_user(all_specs)
        return (None, conflict) if conflict else (TorchRecorder(spec), "")
    if spec.backend == "memory":
        return memory_recorder(spec), ""
    return get(spec.backend).recorder(spec, all_specs)


def first_cupti_user(specs: Sequence[CaptureSpec]) -> str:
    """Why torch cannot record CUDA beside the others: CUPTI serves one profiler a process."""
    others = (get(spec.backend).holds_cupti(spec) for spec in specs if is_known(spec.backend))
    found = next(filter(None, others), "")
    return found if found and torch_backend.has_cuda_activity() else ""


def mirror(final: Path, output_dir: str, backend: str, worker: str, rank: int) -> Path:
    """Also put a finished report where the request's `output_dir` wants it, without the secrets of this
    node's processes; the path there. Raises OSError.

    torch traces lie as NeMo RL documents it (docs of NRL_TORCH_PROFILE_DIR): the controller's in the folder
    itself, those of generation workers in one folder each kind, of all others by kind and rank.
    """
    folder = Path(output_dir)
    name = names.safe_worker(worker)
    if backend != "torch":
        folder = folder / backend / name / f"rank{rank}"
    elif "controller" not in name:
        folder = folder / name if "generation" in name else folder / name / str(rank)
    target = folder / final.name
    folder.mkdir(parents=True, exist_ok=True)
    with _without_secrets(final) as source:
        try:
            os.link(source, target)
        except FileExistsError:
            pass
        except OSError:  # another file system, or one without links
            _copy(source, target)
    return target


@contextlib.contextmanager
def _without_secrets(report: Path) -> Iterator[Path]:
    """The report, or, where secrets stand in it, a masked copy beside it. Raises OSError when that is no
    report any more.
    """
    found: list[tuple[int, int]] = []
    if report.name.endswith(mask_reports.MASKED_SUFFIXES):
        values = mask_reports.maskable(mask_reports.secrets_of_processes() | secret_values(os.environ))
        with open(report, "rb") as stream:
            found = mask_reports.places(stream.fileno(), values)
    if not found:
        yield report
        return
    masked = report.with_name(f".masked-{os.getpid()}-{time.monotonic_ns()}-{report.name}")
    try:
        shutil.copyfile(report, masked)
        with open(masked, "r+b") as stream:
            mask_reports.mask(stream.fileno(), found)
        if nsys_cli.check(masked).state != OK:
            raise OSError(errno.EBADMSG, "with its secrets taken out it is no report any more", report.name)
        yield masked
    finally:
        masked.unlink(missing_ok=True)


def move_into_place(finished: Path, final: Path) -> Path:
    """Rename a finished report to where it belongs, never visible half-written; the name it got.

    A report that is there already is never replaced: a second window of the same steps gets a number before
    its suffix. Between file systems it is copied under a dotted name first and renamed after.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for ordinal in itertools.count():
        place = numbered(final, ordinal)
        try:
            os.link(finished, place)  # a rename would replace
        except FileExistsError:
            continue
        except OSError as error:  # another file system, or one without links
            if place.exists():
                continue
            if error.errno == errno.EXDEV:
                _copy(finished, place)
            else:
                os.rename(finished, place)
                return place
        finished.unlink(missing_ok=True)
        return place
    raise AssertionError("unreachable")


def numbered(path: Path, ordinal: int) -> Path:
    """`w_rank0_step3-4_n1_7.nsys-rep` -> `w_rank0_step3-4_n1_7.2.nsys-rep`; 0 leaves it."""
    suffix = next((known for known in names.SUFFIXES if path.name.endswith(known)), path.suffix)
    stem = path.name.removesuffix(suffix)
    return path.with_name(f"{stem}.{ordinal}{suffix}") if ordinal else path


def unused(path: Path) -> Path:
    """`path`, or it with the first number that no file has."""
    return next(place for place in map(partial(numbered, path), itertools.count()) if not place.exists())


def _copy(source: Path, target: Path) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        shutil.copyfile(source, partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
