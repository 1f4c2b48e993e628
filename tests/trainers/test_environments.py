"""Every trainer's environment can be built. Where tests have workers this begins beside what uses the
machine, long before the first trainer is run; who needs one that is not finished waits for its lock.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.trainers import environments

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.share("environments"),
    pytest.mark.timeout(environments.INSTALL_DEADLINE_S + environments.LOCK_DEADLINE_S),
]


@pytest.mark.parametrize("name", environments.RECIPES)
def test_an_environment_is_ready_and_has_its_own_python(name: str, tmp_path: Path) -> None:
    if why := environments.lacking(name):
        pytest.skip(why)
    installed = environments.ensure(name)
    packages = sorted({word.partition(".")[0] for word in environments.RECIPES[name].imports})
    program = f"import sys, importlib.util as u; print(sys.prefix, *filter(u.find_spec, {packages}))"

    done = subprocess.run(
        [installed.python, "-P", "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    assert (installed.folder / "ready").is_file()
    assert done.stdout.split() == [str(installed.folder / "venv"), *packages]
