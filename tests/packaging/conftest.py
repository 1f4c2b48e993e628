"""One wheel for all tests of packaging, built through the source archive as a package index would get it."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
PARTS = (
    "python",
    "scripts",
    "env",
    "ray.sub",
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
)
NEEDED = ("click", "yaml", "_yaml")  # the modules of what pyproject.toml lists under dependencies


def run(*argv: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run and return it, output as text; a failure shows both streams."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "RLPROF_HOME", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        list(map(str, argv)),
        cwd=cwd,
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{argv}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def build_wheel(folder: Path, **env: str) -> Path:
    """The wheel, built in `folder` from an unpacked sdist by the installed setuptools: no network."""
    pytest.importorskip("setuptools")
    source = folder / "checkout"
    source.mkdir()
    for part in PARTS:
        if (HOME / part).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
            shutil.copytree(HOME / part, source / part, symlinks=True, ignore=ignore)
        else:
            shutil.copy(HOME / part, source / part)
    build = "from setuptools import build_meta as b; b.build_{}('{}')"
    run(sys.executable, "-c", build.format("sdist", folder), cwd=source, **env)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder)
    unpacked = folder / archive.name.removesuffix(".tar.gz")
    run(sys.executable, "-c", build.format("wheel", folder), cwd=unpacked, **env)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as this machine builds it."""
    return build_wheel(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, click and PyYAML, and nothing else; gives its bin/ folder."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next((folder / "lib").glob("python*/site-packages"))
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "bin/python",
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        wheel,
    )
    link_needed(packages)
    return folder / "bin"


def link_needed(folder: Path) -> None:
    """Make the modules that a job's Python needs importable from `folder`."""
    import importlib.util

    for name in NEEDED:
        found = importlib.util.find_spec(name)
        if found and found.submodule_search_locations:
            (folder / name).symlink_to(next(iter(found.submodule_search_locations)))


@pytest.fixture(scope="session")
def other_python() -> Callable[[str], str]:
    """`other_python("3.13")`: an interpreter of that version, or a skip that says where it was looked for."""

    def find(version: str) -> str:
        places = [
            f"{home}/versions/{version}*/bin/python"
            for home in (os.environ.get("PYENV_ROOT", "~/.pyenv"), "/opt/pyenv")
        ]
        found = shutil.which(f"python{version}")
        candidates = [found] if found else []
        candidates += [path for place in places for path in sorted(glob.glob(os.path.expanduser(place)))]
        for candidate in candidates:  # a pyenv shim may stand there and do nothing
            said = subprocess.run(
                [candidate, "-c", "import sys; print(sys.version)"],
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
            if said.stdout.startswith(version):
                return candidate
        pytest.skip(f"no Python {version} (looked for python{version} on PATH and in {', '.join(places)})")

    return find
