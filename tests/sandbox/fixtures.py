"""The sandbox as pytest fixtures, exported by tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.needs import need
from tests.sandbox.api import Sandbox


@pytest.fixture(scope="session")
def slurm_sandbox() -> Iterator[Sandbox]:
    """One sandbox of three nodes for the whole run, as earlier tests left it. Tests take `slurm` instead."""
    need("slurm")
    with Sandbox.up(
        nodes=3
    ) as sandbox:  # KillWait is Slurm's own 30 s: jobs are promised an orderly end within that
        yield sandbox


@pytest.fixture
def slurm(slurm_sandbox: Sandbox) -> Sandbox:
    """Three idle nodes, no job, a working shared folder: healed from whatever the test before did."""
    slurm_sandbox.heal()
    return slurm_sandbox
