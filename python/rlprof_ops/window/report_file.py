"""A finished report's way to its place, and without secrets to a second one."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from rlprof_ops.backends import contract, get, of_report, report_names
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.redact import own_secrets

_BLOCK = 64 << 20
_numbers = itertools.count()


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

    if not report.name.endswith(get(backend).masked):
        yield report
        return
    values = binary_files.maskable(binary_files.secrets_of_processes() | own_secrets())
    with ContainedDir(report.parent) as tree:
        masked = _masked_copy(tree, report.name, values, quick=True)
        try:
            yield report.with_name(masked or report.name)
        finally:
            if masked:
                tree.unlink(masked)


def exchange(
    tree: ContainedDir,
    path: str,
    values: Collection[bytes],
    stop: Callable[[], bool] = lambda: False,
    *,
    quick: bool = False,
) -> None:
    """Put a copy in which `values` are overwritten in the place of a finished report; see `_masked_copy`."""
    copy = _masked_copy(tree, path, values, stop, quick)
    if copy:
        tree.rename(copy, path)


def _masked_copy(
    tree: ContainedDir,
    path: str,
    values: Collection[bytes],
    stop: Callable[[], bool] = lambda: False,
    quick: bool = False,
) -> str:
    """A copy beside a finished report in which `values` are overwritten; its path in `tree`, "" where none of
    them stands in the report.

    The report may be the only one there is, so it is never written to. `stop` may raise. `quick`: only we
    look whether the copy is as good, not its tool.

    Raises:
        OSError: there is no room for a copy, or it could not be read any more.
    """
    from rlprof_ops.redact import binary_files

    fd = tree.open_read(path)
    try:
        found = binary_files.places(fd, values, stop)
        if not found:
            return ""
        before = os.fstat(fd)
        folder, slash, name = path.rpartition("/")
        copy = f"{folder}{slash}.masked-{os.getpid()}-{next(_numbers)}-{name}"
        out = tree.open_write(copy)
        try:
            try:
                while not stop() and os.sendfile(out, fd, None, _BLOCK):
                    pass
                binary_files.mask(out, found)
                os.fsync(out)
                os.utime(out, ns=(before.st_atime_ns, before.st_mtime_ns))
            finally:
                os.close(out)
            _check_masked(Path(tree.root, path), Path(tree.root, copy), quick)
        except BaseException:
            tree.unlink(copy)
            raise
        return copy
    finally:
        os.close(fd)


def _check_masked(report: Path, masked: Path, quick: bool) -> None:
    backend = of_report(report.name)
    if backend is None:
        return
    look = partial(contract.Backend.why_unreadable, backend) if quick else backend.why_unreadable
    if why := look(report, masked):
        raise OSError(errno.EBADMSG, f"without them {backend.title} could not read it any more ({why})")


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
