"""Follows a running job: harvests again and again and says what has changed, until the job has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.collect.harvest.manifest_table import printable, summary
from rlprof_ops.collect.harvest.run_harvest import harvest
from rlprof_ops.collect.harvest.run_state import observe
from rlprof_ops.host.contained_dir import ContainedDir


def watch_job(
    folder: Path, *, every_s: float, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return when run.json says that the job has ended. Raises `RlprofError` as `harvest` does."""
    before: dict[str, str] = {}
    last = ""
    while _running(folder):
        # Raw captures are left alone: their collection may be under way.
        manifest = harvest(folder, recover=False, content_budget_s=0)
        now = {capture.id: capture.state for capture in manifest.captures}
        for name, state in now.items():
            if before.get(name, "missing") != state:
                say(printable(f"{time.strftime('%H:%M:%S')} {state}: {name}"))
        text = _progress(manifest)
        if text != last:
            say(f"{time.strftime('%H:%M:%S')} {text}")
        before, last = now, text
        sleep(every_s)


def _running(folder: Path) -> bool:
    with ContainedDir(folder) as run:
        return observe(run).running


def _progress(manifest: Manifest) -> str:
    return summary(manifest).replace(" missing", " to come")
