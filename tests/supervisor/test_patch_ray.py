"""RLPROF_PATCH_RAY: Ray's own nsight plugin, patched in the installed file before a node's Ray starts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.supervisor.nodes import node_of, place_of

from rlprof_ops.errors import RlprofError
from rlprof_ops.job.knobs import import_path
from rlprof_ops.supervisor.node import node_ray

ray = pytest.importorskip("ray")
PLUGIN = Path("ray/_private/runtime_env/nsight.py")
BROKEN = 'context.py_executable = " ".join(self.nsight_cmd) + " python"'
PATCHED = 'context.py_executable = " ".join(self.nsight_cmd) + f" {context.py_executable}"'
PROGRAM = """
import sys
from pathlib import Path
from rlprof_ops.demo.local_job import run_local
sys.exit(run_local(Path(sys.argv[1]), {}, print).exit_code)
"""
# Says which Ray it has met, and whether the cluster answers.
DRIVER = "import ray; ray.init(); print('cluster of', len(ray.nodes()), 'by', ray.__file__)"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the installed Ray, whose nsight plugin is a file of its own and all others are links."""
    folder = tmp_path / "site"
    folder.mkdir()
    subprocess.run(["cp", "-rs", str(Path(ray.__file__).parent), str(folder)], check=True, timeout=120)
    plugin = folder / PLUGIN
    source = plugin.read_text()
    plugin.unlink()
    plugin.write_text(source)
    assert BROKEN in source, "the installed Ray is repaired already: this test needs its original file"
    return folder


def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: Path, **knobs: str) -> str:
    """Start a node's Ray, which is a stand-in that says how it found the plugin; what it said."""
    text = f"'patched' if {PATCHED!r} in open({str(installed / PLUGIN)!r}).read() else 'as it was'"
    argv = [
        sys.executable,
        "-c",
        f"import time; print({text}); print('Ray runtime started.', flush=True); time.sleep(60)",
    ]
    monkeypatch.setattr(node_ray, "start_argv", lambda *_: argv)
    env = {**os.environ, "PYTHONPATH": f"{import_path()}:{installed}"}
    node = node_of(place_of(tmp_path), lambda: env, RLPROF_RAY_START_TRIES="1", **knobs)

    async def scene() -> None:
        try:
            await node.ray.find_or_start(asyncio.get_running_loop().time() + 60)
        finally:
            await node.ray.stop()

    asyncio.run(scene())
    return (node.place.folder.logs / "ray_start.log").read_text()


def test_the_file_is_patched_before_ray_starts_and_once(monkeypatch, tmp_path, installed, capsys):
    assert "patched" in start(monkeypatch, tmp_path / "first", installed, RLPROF_PATCH_RAY="1")
    assert f"node n1: RLPROF_PATCH_RAY=1: Ray's nsight plugin: patched: {installed / PLUGIN}" in (
        capsys.readouterr().err
    )
    start(monkeypatch, tmp_path / "again", installed, RLPROF_PATCH_RAY="1")
    assert "already patched" in capsys.readouterr().err


def test_unasked_no_file_of_ray_is_changed(monkeypatch, tmp_path, installed):
    assert "as it was" in start(monkeypatch, tmp_path, installed)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda file: file.chmod(0o444), "is read-only (mode 444), left as it is"),
        (
            lambda file: file.write_text(file.read_text().replace(BROKEN, "pass")),
            "a shape this script does not",
        ),
    ],
    ids=["read-only", "another shape"],
)
def test_what_cannot_be_patched_ends_the_start(monkeypatch, tmp_path, installed, spoil, reason):
    file = installed / PLUGIN
    spoil(file)
    before = file.read_text()
    with pytest.raises(RlprofError) as caught:
        start(monkeypatch, tmp_path, installed, RLPROF_PATCH_RAY="1")
    assert "node n1: RLPROF_PATCH_RAY=1: " in str(caught.value) and reason in str(caught.value)
    assert file.read_text() == before
    assert [path.name for path in file.parent.glob("*nsight.py*")] == [file.name]


@pytest.mark.timeout(240)
def test_a_job_patches_the_ray_it_starts(tmp_path, installed):
    """A whole local job with the real Ray of the copy."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "RLPROF"))}
    env |= {
        "PYTHONPATH": f"{import_path()}:{installed}",
        "COMMAND": f'{sys.executable} -c "{DRIVER}"',
        "RLPROF_PATCH_RAY": "1",
        "RLPROF_NODE_ROOT": "/tmp",
        "RLPROF_REPORT_SECONDS": "0",
        "GPUS_PER_NODE": "0",
        "RLPROF_RECORD": "0",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Ray's nsight plugin: patched: {installed / PLUGIN}" in done.stderr
    assert f"cluster of 1 by {installed}/ray/__init__.py" in done.stdout
    assert PATCHED in (installed / PLUGIN).read_text()
    assert BROKEN in Path(ray.__file__).with_name("_private").joinpath("runtime_env/nsight.py").read_text()
