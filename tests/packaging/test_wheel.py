"""`pip install .` gives the whole thing: the command line, ray.sub with its scripts and knobs, and `rlprof
init`.
"""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path

from rlprof_ops.version import __version__
from tests.needs import need
from tests.packaging.conftest import HOME, build_wheel, run

SCANNER = "rlprof_ops/analyze/readers/scan/_trace_scan.abi3.so"
NOT_IN_A_JOB = {"constraints.txt", "setup_test_machine.sh", "site.env"}


def tracked(folder: str) -> set[str]:
    files = (file for file in (HOME / folder).rglob("*") if file.is_file() and file.name not in NOT_IN_A_JOB)
    return {str(file.relative_to(HOME)) for file in files if "__pycache__" not in file.parts}


def test_the_wheel_holds_the_job(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    base = "rlprof_ops/job_files/"
    job = {name.removeprefix(base) for name in names if name.startswith(base)}
    assert job == {"ray.sub", "python/rlprof_ops/__init__.py"} | tracked("scripts") | tracked("env")
    assert modes["rlprof_ops/job_files/scripts/node.sh"] & 0o111
    assert "rlprof_ops/backends/nsight/nsys.sh" in modes
    package = {str(Path(name).relative_to("python")) for name in tracked("python")}
    assert {name for name in package if "egg-info" not in name} <= names


def test_without_a_compiler_the_scanner_alone_is_missing(wheel, tmp_path):
    need("scanner")
    without = build_wheel(tmp_path, CC="/bin/false")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(without) as lacking:
        assert set(whole.namelist()) - set(lacking.namelist()) == {SCANNER}
        assert set(lacking.namelist()) <= set(whole.namelist())
    assert "-cp310-abi3-" in wheel.name


def test_the_command_line_in_an_empty_environment(installed):
    assert run(installed / "rlprof", "--version").stdout.strip().endswith(__version__)
    found = re.findall(r"(?m)^  ([a-z-]+)  ", run(installed / "rlprof", "--help").stdout)
    assert len(found) > 20
    for name in found:
        run(installed / "rlprof", name, "--help")
    home = run(
        installed / "python", "-c", "from rlprof_ops.job import knobs; print(knobs.home())"
    ).stdout.strip()
    assert (Path(home) / "ray.sub").is_file() and home.endswith("rlprof_ops/job_files")


def test_the_door_shows_the_package_and_not_its_neighbours(installed, tmp_path):
    """PYTHONPATH=<home>/python: what ray.sub sets for the trainer's Python, which has another environment."""
    code = "from rlprof_ops.job import knobs; import sys; print(knobs.import_path()); import click"
    door = run(
        installed / "python", "-c", "from rlprof_ops.job import knobs; print(knobs.import_path())"
    ).stdout.strip()
    python = Path(run(installed / "python", "-c", "import sys; print(sys._base_executable)").stdout.strip())
    done = subprocess.run(
        [python, "-S", "-c", code],
        env={"PYTHONPATH": door},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == door
    assert "No module named 'click'" in done.stderr


def test_a_project(installed, tmp_path):
    project = tmp_path / "my project"
    run(installed / "rlprof", "init", project)
    assert (project / "ray.sub").stat().st_mode & 0o111
    run("bash", "-n", project / "ray.sub")
    for script in (project / "scripts").rglob("*.sh"):
        run("bash", "-n", script)
    shown = run(
        installed / "rlprof",
        "plan",
        project / "profile.yaml",
        "--world",
        "policy_worker=8,generation_worker=1",
        "--json",
    )
    assert json.loads(shown.stdout)
    # What ray.sub runs before anything else, with the project's own copy of the package.
    base = {
        "PYTHONPATH": str(project / "python"),
        "RLPROF_HOME": str(project),
        "RLPROF_REQUEST": str(project / "profile.yaml"),
        "CUDA_VISIBLE_DEVICES": "0",
    }
    run(installed / "python", "-m", "rlprof_ops.submit.preflight", **base)
    where = run(installed / "python", "-c", "import rlprof_ops; print(rlprof_ops.__file__)", **base).stdout
    assert where.startswith(str(project))


def test_a_project_keeps_what_its_user_changed(installed, tmp_path):
    run(installed / "rlprof", "init", "--no-package", tmp_path)
    assert not (tmp_path / "python").exists()
    (tmp_path / "profile.yaml").write_text("captures: []\n")
    assert "kept as it is: profile.yaml" in run(installed / "rlprof", "init", "--no-package", tmp_path).stdout

    (tmp_path / "ray.sub").write_text("changed\n")
    refused = subprocess.run(
        [installed / "rlprof", "init", "--no-package", tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2 and "ray.sub differ" in refused.stderr
    assert (tmp_path / "ray.sub").read_text() == "changed\n"

    run(installed / "rlprof", "init", "--no-package", "--force", tmp_path)
    assert (tmp_path / "ray.sub").read_bytes() == (HOME / "ray.sub").read_bytes()
    assert (tmp_path / "profile.yaml").read_text() == "captures: []\n"


def test_the_changelog_names_this_version():
    assert f"## {__version__}\n" in (HOME / "CHANGELOG.md").read_text()
