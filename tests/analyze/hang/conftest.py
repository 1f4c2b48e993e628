"""Dumps of real ranks that have hung, written once for all who read them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.needs import lacking

HERE = Path(__file__).parent
SECONDS = 240


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder a scenario, of real gloo processes that have hung."""
    pytest.importorskip("torch")
    from tests.analyze.hang.ranks import SCENARIOS, expected_files

    folder = tmp_path_factory.mktemp("dumps")
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "200", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    scenarios = [name for name in SCENARIOS if name != "dead_mount" or not lacking("fuse")]
    command = [sys.executable, "-m", "tests.analyze.hang.ranks", str(folder), *scenarios]
    process = subprocess.Popen(
        command, env=env, cwd=HERE.parents[2], start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + SECONDS
        wanted = [name for name in expected_files() if name.partition("/")[0] in scenarios]
        while missing := sorted(name for name in wanted if not (folder / name).exists()):
            assert time.monotonic() < until and process.poll() is None, f"not written: {missing}"
            time.sleep(0.2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    yield folder
