"""The request's `output_dir`: a copy of every finished report, whoever has opened its window."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rlprof_ops import backends
from rlprof_ops.backends import report_names
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.request import ProfileRequest
from rlprof_ops.window.reason import failure_of
from rlprof_ops.window.report_file import mirror, place_of
from rlprof_ops.words import limit

Folders = str | Mapping[str, str]  # one for all reports, or one for each backend that has one
COPIES_S = 20.0  # for copies that are under way when a process, or a node's windows, end


def folder_of(request: ProfileRequest, cwd: Path) -> Folders:
    """Where a node copies reports; "" for nowhere. `cwd`: what a relative path counts from."""
    return request.in_folder(str(cwd)).output_dir or ""


class OutputDir:
    """Copies reports beside the training: storage that hangs keeps no step waiting, and the end only so long.

    `folders` "": the request names no folder, and nothing is copied.
    """

    def __init__(self, folders: Folders, say: Callable[[str], None]) -> None:
        self.folders = folders
        self._say = say
        self._copying: list[OwnThread] = []

    def folder(self, backend: str) -> str:
        return self.folders if isinstance(self.folders, str) else self.folders.get(backend, "")

    def copy(self, final: Path, backend: str, worker: str, rank: int) -> None:
        """Copy a report that is in its place, on a thread of its own."""
        if not self.folder(backend):
            return
        try:
            thread = OwnThread(self._copy, final, backend, worker, rank).start()
        except RuntimeError:  # no new threads at interpreter exit
            self._copy(final, backend, worker, rank)
        else:
            self._copying.append(thread)

    @property
    def copies(self) -> bool:
        """Whether copies are under way."""
        return any(thread.is_alive() for thread in tuple(self._copying))

    def copy_rest(self, root: Path) -> None:
        """Copy, on one thread, what came after its window: reports that a tool writes when its process ends,
        and those that were recovered. `root`: the node's folder; nobody writes there any more.
        """
        if self.folders:
            self._copying.append(OwnThread(self._copy_rest, root).start())

    def finish(self, seconds: float | None = None) -> None:
        """Wait a while for the copies that are under way."""
        seconds = COPIES_S if seconds is None else seconds
        until = time.monotonic() + seconds
        for thread in self._copying:
            thread.join(max(0.0, until - time.monotonic()))
        self._copying = [thread for thread in self._copying if thread.is_alive()]
        if self._copying:
            self._say(
                f"the request's output_dir {self.folders} did not take all reports within {limit(seconds)};"
                " they are in the job's own folder"
            )

    def _copy_rest(self, root: Path) -> None:
        with self._said(root), ContainedDir(root) as tree:
            for path in (path for folder in ("profiles", "inplace") for path, _ in tree.files(folder)):
                _, name, worker = [*path.split("/"), "", ""][:3]
                if not backends.is_known(name) or not path.endswith(backends.get(name).suffixes):
                    continue
                parsed = report_names.parse(path.rpartition("/")[2])
                rank = parsed.rank or 0 if parsed is not None else 0
                folder = self.folder(name)
                there = not folder or place_of(root / path, folder, name, worker, rank).exists()
                if not there and backends.get(name).check(root / path).state == backends.OK:
                    mirror(root / path, folder, name, worker, rank)

    def _copy(self, final: Path, backend: str, worker: str, rank: int) -> None:
        with self._said(final.parent):
            mirror(final, self.folder(backend), backend, worker, rank)

    @contextlib.contextmanager
    def _said(self, where: Path) -> Iterator[None]:
        """Storage that takes nothing costs a line."""
        try:
            yield
        except OSError as error:
            self._say(
                f"cannot copy reports to the request's output_dir {self.folders}: {failure_of(error)};"
                f" they are in {where}"
            )
