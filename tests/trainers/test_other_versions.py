"""TRL's and verl's own modules as another version might have them: training is what it was, one line each,
and the manifest says what was not seen. NeMo RL's and RLinf's are in their own files.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rlprof_ops.collect.event_logs import Notes
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.job.knobs import python_path
from rlprof_ops.request import load_request
from tests.trainers import environments

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(300)]

TRL = """
from types import SimpleNamespace
import trl
from trl.extras import profiling
from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import CallbackHandler

handler = CallbackHandler([], None, None, None, None)
handler.on_step_begin(SimpleNamespace(process_index=0, world_size=1), TrainerState(), TrainerControl())
with profiling.ProfilingContext("GRPOTrainer.compute_loss", []):
    print("trained")
"""
VERL = """
import verl.single_controller.ray.base
from verl.utils.profiler.performance import simple_timer
timing = {}
with simple_timer("gen", timing):
    print("trained", *timing)
"""


def in_other_words(text: str, renamed: dict[str, str]) -> str:
    """`text` with whole words renamed: `simple_timer` is not `_timer`."""
    return re.sub(r"\b\w+\b", lambda word: renamed.get(word[0], word[0]), text)


def run(
    trainer: str, program: str, folder: Path, renamed: dict[str, str], dropped: str = ""
) -> tuple[str, list[str], list[str]]:
    """A program with a changed copy of the trainer: its output, our lines, and the notes for the manifest."""
    installed = environments.ensure(trainer)
    [package] = installed.folder.glob(f"venv/lib/python3*/site-packages/{trainer}")
    copy, node = folder / "lib" / trainer, folder / "node"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    node.mkdir()
    for path in copy.rglob("*.py"):
        text = path.read_text()
        changed = in_other_words(text, renamed)
        if changed != text:
            path.write_text(changed)
    if dropped:
        (copy / dropped).unlink()
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": python_path(str(copy.parent)),
        "RLPROF_NODE_DIR": str(node),
        "RLPROF_REQUEST_JSON": load_request(env={"RLPROF_STEPS": "2", "RLPROF_WORKERS": "*"}).to_json(),
        "VERL_PLATFORM": "cpu",
    }
    done = subprocess.run(
        [str(installed.python), "-P", "-W", "ignore", "-c", program],
        env=env,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    notes = Notes()
    with ContainedDir(node) as tree:
        notes.read(tree, "events")
    lines = [line for line in done.stderr.splitlines() if line.startswith("[rlprof]")]
    return done.stdout + done.stderr[-2000:] * (done.returncode != 0), lines, notes.not_seen


@pytest.mark.parametrize(
    ("trainer", "program", "old", "said"),
    [
        ("trl", TRL, "ProfilingContext", "trl.extras.profiling has no ProfilingContext"),
        ("verl", VERL, "_timer", "verl.utils.profiler.performance has no _timer"),
        ("verl", VERL, "create_colocated_worker_cls", "base has no create_colocated_worker_cls"),
    ],
)
def test_a_renamed_function_is_one_line_and_a_note(
    trainer: str, program: str, old: str, said: str, tmp_path: Path
):
    renamed = {old: "another"}
    output, lines, notes = run(trainer, in_other_words(program, renamed), tmp_path, renamed)
    assert "trained" in output
    assert len(lines) == len(notes) == 1, (lines, notes)
    assert all(said in text for text in lines + notes)


@pytest.mark.parametrize(
    ("trainer", "dropped"),
    [("trl", "extras/profiling.py"), ("verl", "utils/profiler/performance.py")],
)
def test_a_module_that_is_not_there_is_one_line_and_a_note(trainer: str, dropped: str, tmp_path: Path):
    _, lines, notes = run(trainer, f"import {trainer}", tmp_path, {}, dropped)
    module = f"{trainer}.{dropped.removesuffix('.py').replace('/', '.')}"
    assert len(lines) == len(notes) == 1
    assert all(f"there is no {module}" in text for text in lines + notes), (lines, notes)
