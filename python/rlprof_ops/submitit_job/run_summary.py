"""What `RayJob` hands back: how the command ended and what was captured, over all attempts of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlprof_ops.collect.harvest.manifest import Manifest


@dataclass(frozen=True)
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
    """

    exit_code: int
    run_dir: str
    cause: str
    detail: str = ""
    rank: int = 0
    manifest: Manifest | None = None
    earlier: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """The command succeeded and no planned report is missing."""
        return self.exit_code == 0 and (self.manifest is None or self.manifest.complete)

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
