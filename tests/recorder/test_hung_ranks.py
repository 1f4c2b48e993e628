"""Real gloo ranks that hang, and the recorder that says which rank is missing and what it does instead.

Slow ones that move raise nothing.
"""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.needs import need
from tests.recorder.recorded_command import RecordedCommand, recorded
from tests.waits import wait_until

PROGRAM = Path(__file__).with_name("hung_ranks.py")
SECONDS = 240
HERE = re.escape(str(PROGRAM))
pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


def job(folder: Path, scenario: str) -> AbstractContextManager[RecordedCommand]:
    """A recorder beside the ranks of one scenario."""
    apart = ["unshare", "--net"] if scenario == "network" else []
    return recorded(folder, [*apart, sys.executable, str(PROGRAM), str(folder), scenario])


WHO, AT = r"rank {} \(node n1, pid \d+\) ", rf"at {re.escape(str(PROGRAM))}:\d+: "
WAITED = r"{} waited [\d.]+ s in {} #4 of default_pg"
# The first sentence of each cause; all are said after 15 s, a quarter of the timeout.
SENTENCE = {
    "sleeps": WHO.format(1) + "is in `time.sleep` " + AT + WAITED.format("rank 0 has", "all_reduce"),
    "leaves_early": WHO.format(2) + ".*" + AT + WAITED.format("ranks 0, 1 have", "all_reduce"),
    "other_collective": "ranks wait for each other: rank 0 in all_reduce #4 of default_pg; rank 1 in barrier"
    " #4 of default_pg",
    "other_shape": WHO.format(2) + "is in `time.sleep` " + AT + WAITED.format("ranks 0, 1 have", "broadcast"),
    "stopped": WHO.format(3) + r"is stopped \(SIGSTOP\): " + WAITED.format("ranks 0-2 have", "all_reduce"),
    "lock": WHO.format(1) + "is " + AT + WAITED.format("rank 0 has", "all_reduce"),
    "file_lock": WHO.format(1) + "is in `fcntl.flock` " + AT + WAITED.format("rank 0 has", "all_reduce"),
    "dead_mount": WHO.format(1)
    + "waits for an answer of a FUSE file system in `open` "
    + AT
    + WAITED.format("rank 0 has", "all_reduce"),
    "silent_server": WHO.format(1)
    + r"waits for an answer of 127\.0\.0\.1:\d+ in `client\.sendall` "
    + AT
    + WAITED.format("rank 0 has", "all_reduce")
    + r"; rank 1's connection to 127\.0\.0\.1:\d+ has [\d.]+ MiB unsent",
    "network": r"nobody is missing: ranks 0, 1 have waited 2[4-9]\.\d s in all_reduce #4 of default_pg;"
    r" suspect: rank \d's connection to 127\.0\.0\.1:\d+ has [\d.]+ \w+ unsent.*",
    "opposite_order": "ranks wait for each other: rank 0 in all_reduce #1 of tp; rank 1 in all_reduce #1 of"
    " dp",
}
QUICK = ("stopped",)


@pytest.mark.parametrize(
    "scenario",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in SENTENCE],
)
def test_who_is_missing_is_said_with_what_it_does_before_half_of_the_timeout(
    tmp_path: Path, scenario: str
) -> None:
    need(*{"dead_mount": ["fuse"], "network": ["slurm"]}.get(scenario, []))
    with job(tmp_path, scenario) as hung:
        wait_until(lambda: hung.found, SECONDS, hung.said)
        [finding] = hung.found
        print(f"{scenario}: after {finding['evidence']['still_s']:.0f} s: {finding['text']}")
        assert finding["kind"] == "hang"
        assert re.fullmatch(SENTENCE[scenario], finding["text"]), finding["text"]
        assert finding["evidence"]["still_s"] >= 15, finding


def test_a_rank_that_writes_its_checkpoint_is_no_hang(tmp_path: Path) -> None:
    """It takes most of the group's timeout: there is a word at half of it, and then the job goes on."""
    with job(tmp_path, "long_checkpoint") as slow:
        ended = wait_until(lambda: [s for s in slow.states() if s["rank"] == 0], SECONDS, slow.said)
        wait_until(lambda: slow.found, SECONDS, slow.said)
        before = max(state["since_ns"] for state in ended)
        wait_until(
            lambda: min(s["since_ns"] for s in slow.states()) > before + 15 * 10**9, SECONDS, slow.said
        )
        [finding] = slow.found
        assert finding["kind"] == "long_wait"
        writes = WHO.format(0) + r"is working \(.*MiB a second read and written\) .*" + AT
        waits = (
            "rank 1 has waited 1[0-9].[0-9] s in barrier #4 of default_pg, and the group's timeout is 24.0 s"
        )
        assert re.fullmatch(writes + waits, finding["text"]), finding["text"]


@pytest.mark.long
def test_a_slow_step_raises_nothing(tmp_path: Path) -> None:
    with job(tmp_path, "slow_step") as slow:
        wait_until(lambda: [s for s in slow.states() if s["at"]], SECONDS, slow.said)
        since = max(state["since_ns"] for state in slow.states())
        wait_until(lambda: min(s["since_ns"] for s in slow.states()) > since, SECONDS, slow.said)
        assert not slow.found
