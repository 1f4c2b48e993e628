"""SIGKILL for our helpers at random moments of one job: training does not notice, nothing that had ended
is lost. tests/bench/kills does it until each of them was killed twenty times.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.killing import KINDS, STEPS, Killed, kill_helpers, lost
from tests.faults.lanes import Work
from tests.faults.table import TABLE

pytestmark = [pytest.mark.slurm, pytest.mark.nsys, pytest.mark.ray, pytest.mark.torch, pytest.mark.long]
KILLS = 20


@pytest.mark.timeout(1500)
@pytest.mark.lane(Work("kills", kill_helpers, 90))
def test_killing_helpers_at_random_moments_costs_training_nothing(lanes):
    found: Killed = lanes.result("kills")
    counts = Counter(kind for kind, _ in found.kills)
    TABLE.kills.update(counts)
    print(f"{len(found.kills)} kills: {dict(counts)}; (kind, step): {found.kills}")

    output, captures = found.job.output(), found.manifest.captures
    assert len(found.kills) >= KILLS
    assert set(counts) >= set(KINDS) - {"importer", "nsys sessions list"}, counts  # which live for a moment
    assert (found.state.state, found.state.exit_code) == ("COMPLETED", 0), output
    assert f"result {sum(range(STEPS + 1))}" in (found.job.folder / "logs/driver.log").read_text()
    shown = "\n".join(
        [
            *map(str, found.kills),
            *(f"{capture.id} {capture.state} {capture.reason}" for capture in captures),
            output,
        ]
    )
    assert not lost(found, STEPS), shown
    assert all(capture.reason for capture in captures if capture.state != "ok"), shown
    job_said = (found.job.base / f"slurm-{found.job.id}.out").read_text(
        errors="replace"
    )  # `output` is its end only
    for kind, said in (
        ("supervisor", "another one takes over"),
        ("sync", "sync ended with -9 while the job runs"),
        ("harvest", "harvest ended with -9"),
    ):
        assert said in job_said, f"{kind}\n{shown}"
