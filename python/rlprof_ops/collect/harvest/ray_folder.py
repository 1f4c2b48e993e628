"""Links to the reports where Ray's manual and trainers' own documents look for them: beside Ray's logs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from rlprof_ops.backends import report_names
from rlprof_ops.collect.harvest.manifest import Report
from rlprof_ops.collect.sync.routes import SESSION
from rlprof_ops.host.contained_dir import ContainedDir


def link_reports(run: ContainedDir, reports: Iterable[Report]) -> None:
    """Give each nsight report of whole steps a link in the newest `ray/<node>/session_*/logs/nsight/`.

    The name is NeMo RL's, `<worker>_<start>:<stop>_<pid>.nsys-rep`. What stands there already stays, and
    storage that takes no links has none: the reports themselves are in `profiles/` and in the manifest.
    """
    sessions: dict[str, str | None] = {}
    for report in reports:
        if report.backend != "nsight" or not report.path.startswith("profiles/") or report.phase:
            continue
        if not (report.node and report.worker and report.pid and report.start and report.stop):
            continue
        if report.node not in sessions:
            sessions[report.node] = _newest_session(run, report.node)
        if session := sessions[report.node]:
            folder = ("ray", report.node, session, "logs", "nsight")
            steps = f"{report.start}:{report.stop}"
            name = f"{report_names.safe_worker(report.worker)}_{steps}_{report.pid}.nsys-rep"
            with contextlib.suppress(OSError), run.folder(folder, create=True) as fd:
                os.symlink("../" * len(folder) + report.path, name, dir_fd=fd)


def _newest_session(run: ContainedDir, node: str) -> str | None:
    try:
        with run.folder(("ray", node)) as fd:
            return max(filter(SESSION.match, os.listdir(fd)), default=None)
    except OSError:
        return None
