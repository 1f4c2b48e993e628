"""`rlprof report --serve`: a run's report and timeline in the browser of whoever sits elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rlprof_ops.analyze.browser import advice, open_in_browser
from rlprof_ops.analyze.page.server import PERFETTO, ReportServer
from rlprof_ops.collect.harvest.manifest_table import printable_lines
from rlprof_ops.errors import RlprofError
from rlprof_ops.job import own_files

__all__ = ["advice", "view"]


def view(
    root: Path,
    was_there: bool = True,
    port: int = 0,
    perfetto: str = PERFETTO,
    output: Path | None = None,
    jobs: int | None = None,
    timeline: bool = True,
    open_page: bool = False,
) -> None:
    """Serve the report of a run until Ctrl-C; its timeline is made first where it is missing.

    Raises `RlprofError` when the port is taken.
    """
    folder = own_files.output_folder(root, output)
    if was_there:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime((folder / "report.json").stat().st_mtime))
        print(f"the report of {since}; `rlprof report` without --serve makes it anew", file=sys.stderr)
    try:
        server = ReportServer(folder, port, perfetto)
    except OSError as error:
        raise RlprofError(
            f"--port {port}: cannot listen on 127.0.0.1:{port} ({error.strerror}). Give another, or none."
        ) from error
    with server:
        if timeline and (not server.timelines() or (not was_there and folder.resolve() != root.resolve())):
            _make_timeline(root, output, jobs)
        for line in advice(server.port, server.url):
            print(line, flush=True)
        if open_page:
            open_in_browser(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nended")


def _make_timeline(root: Path, output: Path | None, jobs: int | None) -> None:
    from rlprof_ops.analyze.timeline.make import make

    print("making the timeline …", file=sys.stderr, flush=True)
    try:
        make(root, output, jobs)
    except RlprofError as error:  # the report is worth showing without it
        print(f"no timeline: {printable_lines(str(error))}", file=sys.stderr)
