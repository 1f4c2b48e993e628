"""A finished report's way to its place, and without secrets to a second one."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rlprof_ops.backends import OK, get, report_names
from rlprof_ops.redact import own_secrets


def place_of(final: Path, output_dir: str, backend: str, worker: str, rank: int) -> Path:
    """Where a report lies in the request's `output_dir`."""
    return Path(output_dir, get(backend).output_folder(report_names.safe_worker(worker), rank), final.name)


def mirror(final: Path, output_dir: str, backend: str, worker: str, rank: int) -> Path:
    """Also put a finished report where the request's `output_dir` wants it, without the secrets of this
    node's processes; the path there. Raises OSError.
    """
    target = place_of(final, output_dir, backend, worker, rank)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _without_secrets(final, backend) as source:
        try:
            os.link(source, target)
        except FileExistsError:
            pass
        except OSError:  # another file system, or one without links
            _copy(source, target)
    return target


@contextlib.contextmanager
def _without_secrets(report: Path, backend: str) -> Iterator[Path]:
    """The report, or, where secrets stand in it, a masked copy beside it. Raises OSError when that is no
    report any more.
    """
    from rlprof_ops.redact import binary_files

    found: list[tuple[int, int]] = []
    if report.name.endswith(get(backend).masked):
        values = binary_files.maskable(binary_files.secrets_of_processes() | own_secrets())
        with open(report, "rb") as stream:
            found = binary_files.places(stream.fileno(), values)
    if not found:
        yield report
        return
    masked = report.with_name(f".masked-{os.getpid()}-{time.monotonic_ns()}-{report.name}")
    try:
        shutil.copyfile(report, masked)
        with open(masked, "r+b") as stream:
            binary_files.mask(stream.fileno(), found)
        if get(backend).check(masked).state != OK:
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
    suffix = next((known for known in report_names.SUFFIXES if path.name.endswith(known)), path.suffix)
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
