"""What `RayJob` hands back: how the command ended and what was captured, over all attempts of the job."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlprof_ops.collect.harvest.manifest import Manifest


@dataclass(frozen=True, repr=False)
class RunSummary:
    """One attempt of one job, as one of its tasks saw it.

    Attributes:
        exit_code: the command's on the first task; elsewhere 0 unless the node never got up. 143: told to
            end, 140: out of time.
        run_dir: the run folder, see docs/contracts.md.
        cause: `end.cause` of run.json: driver_exit, signal, time_limit, node_lost, startup_failed.
        detail: more of it, where there is more.
        rank: the task; only rank 0 has a manifest.
        manifest: None also when the job's end had no time for the harvest; `HarvestRun(run_dir)` makes it up.
        earlier: run folders of attempts before a requeue, with their own manifests.
        harvest_job: the job that makes manifest and report after this one, where RLPROF_HARVEST_JOB asks for
            it; `rlprof_ops.wait_for` waits for it and fills in the manifest.
        asked: whether this attempt was to capture anything, as the first task knows.
    """

    exit_code: int
    run_dir: str
    cause: str
    detail: str = ""
    rank: int = 0
    manifest: Manifest | None = None
    earlier: tuple[str, ...] = ()
    harvest_job: str = ""
    asked: bool = False

    def __repr__(self) -> str:
        """`RunSummary(exit code 0, 5 of 5 captures, /shared/me/4711-logs/report.html)`."""
        return f"RunSummary({', '.join(self._words())})"

    def _repr_html_(self) -> str:
        """The same for a notebook, with a link to the report and the captures that are not whole."""
        from rlprof_ops.collect.harvest.manifest import WHOLE

        report = self.report
        words = [html.escape(word) for word in self._words()[:-1]]
        where = html.escape(report or self.run_dir)
        link = f'<a href="{html.escape(Path(report).as_uri())}">{where}</a>' if report else where
        missing = [item for item in self.captures().items() if item[1] not in WHOLE]
        lines = "".join(f"<li>{html.escape(name)}: {html.escape(state)}</li>" for name, state in missing)
        return f"<b>{'&#10003;' if self.ok else '&#10007;'} {', '.join(words)}</b><br>{link}<ul>{lines}</ul>"

    def _words(self) -> list[str]:
        """Exit code, cause where it is not the driver's own, captures, and where to look."""
        from rlprof_ops.collect.harvest.manifest import WHOLE

        found = [f"exit code {self.exit_code}"]
        if self.cause != "driver_exit":
            found.append(self.cause + (f": {self.detail.partition(chr(10))[0]}" if self.detail else ""))
        states = list(self.captures().values())
        if states:
            whole = sum(state in WHOLE for state in states)
            found.append(f"{whole} of {len(states)} captures")
        if self.asked and self.manifest is None:
            found.append("not harvested")
        return [*found, self.report or self.run_dir]

    @property
    def report(self) -> str | None:
        """The path of report.html; None where none was made."""
        path = Path(self.run_dir).absolute() / "report.html"
        return str(path) if path.is_file() else None

    @property
    def ok(self) -> bool:
        """The command succeeded and no planned report is missing; False as long as nobody has harvested what
        was asked.
        """
        harvested = not self.asked if self.manifest is None else self.manifest.complete
        return self.exit_code == 0 and harvested

    def captures(self) -> dict[str, str]:
        """Capture id -> state over this and the earlier attempts; a whole one wins over what an attempt
        missed.
        """
        from rlprof_ops.collect.harvest.manifest import WHOLE, Manifest
        from rlprof_ops.errors import RlprofError

        manifests = []
        for folder in self.earlier:
            try:
                manifests.append(Manifest.load(folder))
            except RlprofError:
                continue
        found: dict[str, str] = {}
        for manifest in [*manifests, *([self.manifest] if self.manifest else [])]:
            for capture in manifest.captures:
                if found.get(capture.id) not in WHOLE:
                    found[capture.id] = capture.state
        return found
