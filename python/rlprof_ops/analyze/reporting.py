"""From a run folder to report.json, report.html and the terminal: the effects around the pure parts."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec

from rlprof_ops.analyze import collecting
from rlprof_ops.analyze.answer_file import is_answer, read_answer, written
from rlprof_ops.analyze.made_of import made_of, why_outdated
from rlprof_ops.analyze.model_size.utilisation import StatedModel
from rlprof_ops.analyze.output.answer import build
from rlprof_ops.analyze.report_model import Answer
from rlprof_ops.analyze.run.engine import Results, summarise_all
from rlprof_ops.analyze.run.identity import ReportFile, find_reports
from rlprof_ops.analyze.whole_run.records import has_records
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.job import own_files

Form = Literal["text", "json", "markdown"]
_DRAWN_EVERY_S = 0.1  # the progress bar


def report(
    root: Path,
    form: Form = "text",
    open_page: bool = False,
    engine: str = "local",
    jobs: int | None = None,
    output: Path | None = None,
    cache: bool = True,
    model: StatedModel | None = None,
) -> Answer:
    """Reads a run, writes `report.json` and `report.html`, prints the summary in `form`; returns the answer.

    Raises `UsageError` when there is nothing to read, `RlprofError` when the output folder cannot be written
    to: then the summary is printed all the same, for reading may have taken hours.
    """
    from rlprof_ops.analyze.page.html_page import render

    folder = own_files.output_folder(root, output)
    targets = folder / "report.json", folder / "report.html"
    for path in targets:  # before hours of reading
        own_files.check_ours(path)
    answer = answer_of(root, engine, jobs, cache, quiet=form != "text", model=model)
    gc.freeze()  # it stays until the end of the process, which would walk all of it again
    text = written(answer)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own_files.write(targets[0], text + "\n")
        own_files.write(targets[1], render(answer, timeline_files(folder)))
        unwritten = None
    except OSError as error:
        unwritten = RlprofError(
            f"{folder}: cannot write the report ({error.strerror}). Give another folder with --output."
        )
    if form == "json":
        # Indented by msgspec, which takes a tenth of the time of `json.dumps(indent=…)`: that is Python.
        sys.stdout.write(msgspec.json.format(text, indent=1) + "\n")
    elif form == "markdown":
        from rlprof_ops.analyze.output.markdown import markdown

        sys.stdout.write(markdown(answer))
    else:
        from rlprof_ops.analyze.output.terminal import show, standard_output

        console = standard_output()
        show(answer, console)
        if unwritten is None:
            console.print(f"\n{folder / 'report.html'}", soft_wrap=True, highlight=False, markup=False)
    if unwritten is not None:
        raise unwritten
    if open_page:
        from rlprof_ops.analyze.browser import open_in_browser

        open_in_browser((folder / "report.html").resolve().as_uri())
    return answer


def was_read(answer: Answer) -> bool:
    """Whether anything of a run could be read: a report, or what its recorder kept."""
    return bool(answer.coverage.reports or answer.whole_run)


def timeline_files(folder: Path) -> list[str]:
    """The files of the timeline that lie in a folder: a page beside them may lead there."""
    return [name for name in ("timeline.overview.pftrace", "timeline.ranks.zip") if (folder / name).is_file()]


def reports_on(folder: Path, root: Path) -> bool:
    """Whether the report.json of a folder is about `root`."""
    if not is_answer(folder / "report.json"):
        return False
    with contextlib.suppress(UsageError, OSError):
        here = root.resolve()
        return folder.resolve() == here or read_answer(folder / "report.json").run["path"] == str(here)
    return False


def render_again(folder: Path, root: Path) -> bool:
    """Writes the page of a folder's report.json anew, after the timeline of `root` was made; False where
    there is none.
    """
    from rlprof_ops.analyze.page.html_page import render

    page = folder / "report.html"
    if not page.is_file() or not reports_on(folder, root):
        return False
    try:
        own_files.write(page, render(read_answer(folder / "report.json"), timeline_files(folder)))
    except (OSError, UsageError):
        return False
    return True


def answer_of(
    root: Path,
    engine: str = "local",
    jobs: int | None = None,
    cache: bool = True,
    quiet: bool = False,
    model: StatedModel | None = None,
) -> Answer:
    """The answer to a run folder or a report, with a progress bar on a terminal's standard error.

    Raises UsageError where there is nothing to read, also for one report of which nothing can be read.
    """
    with collecting.paused():
        answer = _answer(root, engine, jobs, cache, quiet, model)
    if root.is_file() and (unread := answer.coverage.unread):
        raise UsageError(f"{root}: {unread[0].reason}")
    return answer


def _answer(
    root: Path, engine: str, jobs: int | None, cache: bool, quiet: bool, model: StatedModel | None
) -> Answer:
    of = made_of(root)
    reports = _reports(root)
    folder = root if root.is_dir() else root.parent
    readable = sum(report.readable for report in reports)
    if quiet or not sys.stderr.isatty() or readable < 2:
        return build(root, reports, summarise_all(folder, reports, engine, jobs, cache), model, of)
    from rich.console import Console
    from rich.progress import Progress

    # Drawn here: a thread that draws it would keep the workers from starting as copies of this process.
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("reading reports", total=readable)
        drawn = time.monotonic()

        def advance(done: int, _total: int, _result: Results) -> None:
            nonlocal drawn
            bar.update(task, completed=done)
            if time.monotonic() - drawn >= _DRAWN_EVERY_S:
                bar.refresh()
                drawn = time.monotonic()

        return build(root, reports, summarise_all(folder, reports, engine, jobs, cache, advance), model, of)


def _reports(root: Path) -> tuple[ReportFile, ...]:
    """The reports of a run; none where there is only what its recorder kept."""
    try:
        return find_reports(root)
    except UsageError:
        if not root.is_dir() or not has_records(root):
            raise
        return ()


def load_answer(path: Path, jobs: int | None = None) -> Answer:
    """The answer to a run: its report.json, given itself or kept in the folder, else read from the reports.

    Raises `UsageError` when the file is no report.json of this version.
    """
    if path.is_dir():
        return kept_answer(path, path) or answer_of(path, jobs=jobs)
    return read_answer(path) if path.suffix == ".json" and is_answer(path) else answer_of(path, jobs=jobs)


def kept_answer(folder: Path, root: Path) -> Answer | None:
    """The answer to `root` in the report.json of a folder; None where there is none, or it is outdated, which
    standard error is told.

    Raises `UsageError` when the file is no report.json of this version.
    """
    file = folder / "report.json"
    if not is_answer(file):
        return None
    answer = read_answer(file)
    if why := why_outdated(answer, root):
        print(f"rlprof: {file} is not used, {why}: the reports are read anew", file=sys.stderr)
        return None
    return answer


def is_kept(folder: Path, root: Path) -> bool:
    """Whether the report.json of a folder is about `root` and not outdated."""
    with contextlib.suppress(UsageError):
        return reports_on(folder, root) and kept_answer(folder, root) is not None
    return False
