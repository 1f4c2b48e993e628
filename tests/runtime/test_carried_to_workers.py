"""What a driver hands to its workers: functions and classes that are annotated, and the profiler itself."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rlprof_ops.runtime import profiler
from rlprof_ops.runtime.null_profiler import NullProfiler

pytest.importorskip("ray.cloudpickle")

# Run as `__main__`, whose functions Ray carries by value.
DRIVER = """
import sys
import ray.cloudpickle as cloudpickle
from rlprof_ops.runtime import profiler

@profiler.annotate("early")
def early(x):
    return x

def made():
    prof = profiler.from_env(worker="controller", rank=0)

    @prof.annotate("late")
    def late(x):
        return x

    class Actor:
        prof = profiler.current()

        @prof.annotate("method")
        def train(self):
            with self.prof.range("direct"):
                return 1

        @prof.annotate("pieces")
        def pieces(self):
            yield 2

        @prof.annotate("awaited")
        async def awaited(self):
            return 3

    return late, Actor

before = cloudpickle.dumps(early)
later = made()
with open(sys.argv[1], "wb") as file:
    cloudpickle.dump((before, cloudpickle.dumps(early), cloudpickle.dumps(later[0])), file)
with open(sys.argv[2], "wb") as file:
    cloudpickle.dump(later[1], file)
"""
LOAD = """
import asyncio, pickle, sys
functions = [pickle.loads(data) for data in pickle.load(open(sys.argv[1], "rb"))]
"""
WORK = """
from rlprof_ops.runtime import profiler
prof = profiler.from_env(worker="policy_worker", rank=0)
actor = pickle.load(open(sys.argv[2], "rb"))()
with prof.step(1):
    assert [function(7) for function in functions] == [7, 7, 7]
    assert (actor.train(), list(actor.pieces()), asyncio.run(actor.awaited())) == (1, [2], 3)
print({name: times.count for name, times in sorted(prof.metrics().items())})
"""
BARE = """
import importlib.util
assert importlib.util.find_spec("rlprof_ops") is None
print([function(7) for function in functions])
"""


def python(code: str, *files: Path, bare: bool = False, **env: str) -> str:
    """What a fresh Python prints; `bare`: it has no package of ours."""
    done = subprocess.run(
        [sys.executable, *(["-S"] if bare else []), "-c", code, *map(str, files)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=files[0].parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def carried(tmp_path: Path) -> tuple[Path, Path]:
    """A driver's functions, and its actor class, as Ray pickles them where times are asked for."""
    files = tmp_path / "functions.pickle", tmp_path / "actor.pickle"
    python(DRIVER, *files, RLPROF_METRICS="1")
    return files


def test_they_are_recorded_by_the_workers_own_profiler(carried: tuple[Path, Path]) -> None:
    found = python(LOAD + WORK, *carried, RLPROF_METRICS="1")

    assert found == f"{ {'awaited': 1, 'direct': 1, 'early': 2, 'late': 1, 'method': 1, 'pieces': 1} }\n"


def test_they_run_where_nothing_is_asked(carried: tuple[Path, Path]) -> None:
    assert python(LOAD + WORK, *carried) == "{}\n"


def test_functions_run_where_the_package_is_not(carried: tuple[Path, Path]) -> None:
    found = python(LOAD + BARE, *carried, bare=True, PYTHONPATH=sysconfig.get_path("purelib"))

    assert found == "[7, 7, 7]\n"


def test_a_copy_of_a_profiler_is_the_profiler(recorder) -> None:
    prof, _ = recorder()

    assert copy.copy(prof) is copy.deepcopy({"prof": prof})["prof"] is prof
    assert pickle.loads(pickle.dumps(prof)) is profiler.current() is prof
    assert isinstance(pickle.loads(pickle.dumps(NullProfiler())), NullProfiler)
