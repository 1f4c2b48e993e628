"""Run by `make test-gpu` alone; skipped with words where there is no GPU.

RLPROF_GPU=1 asks for it; RLPROF_GPU=rehearse runs all of it on a machine without one, on the CPU, where
nothing is claimed of kernels. What was found is printed at the end, with the versions that it was found with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rlprof_ops.backends.nsight import nsys_cli

HERE = Path(__file__).parent
ASKED = os.environ.get("RLPROF_GPU", "")
found: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if HERE in item.path.parents and ASKED not in ("1", "rehearse")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def first_line(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return str(error)
    return (done.stdout.strip() or done.stderr.strip() or "-").splitlines()[0]


@pytest.fixture(scope="session")
def gpu() -> bool:
    """Whether there is a GPU (else this is a rehearsal)."""
    if ASKED == "rehearse":
        return False
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no GPU: nvidia-smi is not on PATH")
    torch = pytest.importorskip("torch", reason="no torch in this Python")
    if not torch.cuda.is_available():
        pytest.skip(f"no GPU for torch {torch.__version__}: torch.cuda.is_available() is false")
    return True


@pytest.fixture
def finding() -> Callable[[str], None]:
    """Says what was found, at once and at the end of the run."""

    def say(text: str) -> None:
        print(text, flush=True)
        found.append(text)

    return say


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not found:
        return
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    terminalreporter.section("found on the GPU" if ASKED == "1" else "rehearsed without a GPU")
    terminalreporter.line(f"GPU and driver: {first_line(*query)}")
    terminalreporter.line(f"nsys: {first_line(nsys_cli.find() or 'nsys', '--version')}")
    for line in found:
        terminalreporter.line(line)
