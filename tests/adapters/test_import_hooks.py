"""Adapters are called behind real imports in fresh interpreters; nothing of theirs reaches the program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof_ops.job.knobs import adapters_path, import_path, python_path

TRAINER = '''
class ProfilingContext:
    """As trl.extras.profiling has it."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return False
'''


def run(code: str, *folders: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = ":".join([adapters_path(), import_path(), *map(str, folders)])
    full = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, **env}
    return subprocess.run(
        [sys.executable, "-c", code], env=full, capture_output=True, text=True, timeout=60, check=False
    )


def package(folder: Path, source: str) -> Path:
    """A package `trl` whose `trl.extras.profiling` is `source`."""
    home = folder / "trl" / "extras"
    home.mkdir(parents=True)
    (folder / "trl" / "__init__.py").touch()
    (home / "__init__.py").touch()
    (home / "profiling.py").write_text(source)
    return folder


def test_a_known_module_is_adapted_and_keeps_its_own_loader(tmp_path: Path):
    code = (
        "import trl.extras.profiling as p; c = p.ProfilingContext; "
        "print(c.__enter__._rlprof_wrapped, type(p.__loader__).__name__, type(p.__spec__.loader).__name__)"
    )
    done = run(code, package(tmp_path, TRAINER))
    assert done.stdout.split() == ["True", "SourceFileLoader", "SourceFileLoader"], done
    assert done.stderr == ""


def test_off_means_untouched(tmp_path: Path):
    code = (
        "import sys, trl.extras.profiling as p; "
        "print(hasattr(p.ProfilingContext.__enter__, '_rlprof_wrapped'), "
        "any('rlprof' in m for m in sys.modules))"
    )
    done = run(code, package(tmp_path, TRAINER), RLPROF_ADAPTERS="0")
    assert done.stdout.split() == ["False", "False"], done


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Renamed: ...", "has no ProfilingContext"),
        ("class ProfilingContext:\n    __enter__ = 1\n    __exit__ = 2", "is no function"),
    ],
)
def test_an_unknown_shape_is_left_alone_with_one_line_and_an_event(tmp_path: Path, source: str, said: str):
    (tmp_path / "node").mkdir()
    code = "import trl.extras.profiling as p; print('trained')"
    done = run(code, package(tmp_path / "lib", source), RLPROF_NODE_DIR=str(tmp_path / "node"))
    assert done.stdout == "trained\n"
    assert (
        len(done.stderr.splitlines()) == 1 and said in done.stderr and "trl.extras.profiling" in done.stderr
    )
    [events] = (tmp_path / "node" / "events").glob("*.jsonl")
    assert '"adapter_unknown"' in events.read_text() and said in events.read_text()


def test_a_module_that_fails_to_import_fails_as_it_would_without_us(tmp_path: Path):
    lib = package(tmp_path, "raise RuntimeError('no GPU here')")
    code = "try:\n    import trl.extras.profiling\nexcept RuntimeError as error:\n    print(error)"
    assert run(code, lib).stdout == "no GPU here\n"


def test_another_sitecustomize_is_run_as_well(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.was_here = __name__")
    code = "print(was_here); import sitecustomize; print(sitecustomize.__file__)"
    done = run(code, tmp_path)
    assert done.stdout.split() == ["sitecustomize", str(tmp_path / "sitecustomize.py")], done


def older_pythons() -> list[str]:
    """Interpreters of before 3.10 on this machine, by pyenv or on the path."""
    versions = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin/python")
    )
    named = [shutil.which(f"python{v}") for v in ("2.7", "3.6", "3.7", "3.8", "3.9")]
    found = [str(path) for path in versions if re.match(r"2\.|3\.[0-9]\.", path.parts[-3])]
    return found + [path for path in named if path and "shims" not in path]


@pytest.mark.parametrize("theirs", [True, False])
def test_an_older_python_runs_the_users_own_sitecustomize_and_says_nothing(tmp_path: Path, theirs: bool):
    pythons = older_pythons()
    if not pythons:
        pytest.skip("no Python before 3.10 here: pyenv or python2.7 to python3.9 on the path")
    if theirs:
        (tmp_path / "sitecustomize.py").write_text("import sys\nsys.stdout.write('theirs ')\n")
    path = ":".join([adapters_path(), import_path(), str(tmp_path)])
    for python in pythons:
        done = subprocess.run(
            [python, "-B", "-c", "print('on')"],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == ("theirs on\n" if theirs else "on\n", ""), python


def test_a_python_that_does_not_find_the_package_starts_in_silence():
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": adapters_path()}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path = [{adapters_path()!r}, *sys.path]; "
         "import sitecustomize; print('on')"],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("on\n", "")


def test_the_path_of_a_job_names_both_folders_once():
    once = python_path("/mine")
    assert once.split(":") == [adapters_path(), import_path(), "/mine"]
    assert python_path(once) == once
    assert python_path("/mine", adapters=False).split(":") == [import_path(), "/mine"]


def test_another_tools_finder_that_asks_all_others_does_not_meet_us_for_ever(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Other:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'trl.extras.profiling':\n"
        "            others = (f.find_spec(name, path, target) for f in sys.meta_path if f is not self)\n"
        "            return next(spec for spec in others if spec)\n"
        "sys.meta_path.insert(0, Other())\n"
    )
    code = "import trl.extras.profiling as p; print(p.ProfilingContext.__enter__._rlprof_wrapped)"
    done = run(code, package(tmp_path / "lib", TRAINER), tmp_path)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_loader_can_be_copied_before_its_module_is_loaded(tmp_path: Path):
    code = (
        "import copy, importlib.util as u; loader = u.find_spec('trl.extras.profiling').loader; "
        "print(type(copy.copy(loader)) is type(loader), copy.copy(loader).get_filename() == loader.path, "
        "copy.deepcopy(loader).name)"
    )
    done = run(code, package(tmp_path, TRAINER))
    assert done.stdout.split() == ["True", "True", "trl.extras.profiling"], done


def test_the_versions_that_ended_the_training(tmp_path: Path):
    """Each of these stopped a run: an argument more, no `name`, no place for one of ours, fewer arguments."""
    slots = TRAINER.replace("    def __init__", "    __slots__ = ('name',)\n\n    def __init__")
    for number, source in enumerate((TRAINER.replace("self.name = name", "pass"), slots)):
        code = "import trl.extras.profiling as p\nwith p.ProfilingContext('x') as c: print('trained')"
        done = run(code, package(tmp_path / str(number), source), RLPROF_NODE_DIR=str(tmp_path))
        assert (done.returncode, done.stdout) == (0, "trained\n"), done
    for trainer, folder, source, call in (
        ("transformers", "", "class CallbackHandler:\n    def on_step_begin(self, args): print('trained')\n"
         "    def on_step_end(self, args): ...", "m.CallbackHandler().on_step_begin(3)"),
        ("nemo_rl", "utils", "def wrap_with_nvtx_name(name, domain=None): return lambda f: f\n"
         "def maybe_gpu_profile_step(policy, step): ...",
         "m.wrap_with_nvtx_name('a', domain='b')(lambda: print('trained'))()"),
    ):  # fmt: skip
        home = tmp_path / trainer / trainer / folder
        home.mkdir(parents=True)
        for package_folder in {home, tmp_path / trainer / trainer}:
            (package_folder / "__init__.py").touch()
        name = "nsys" if folder else "trainer_callback"
        (home / f"{name}.py").write_text(source)
        path = f"{trainer}.{folder}.{name}" if folder else f"{trainer}.{name}"
        done = run(f"import {path} as m; {call}", tmp_path / trainer, RLPROF_NODE_DIR=str(tmp_path))
        assert (done.returncode, done.stdout) == (0, "trained\n"), done


SUBMITTED = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "RLPROF_NODE_DIR": "/node"}


@pytest.mark.parametrize(
    ("script", "env", "leads"),
    [
        ("default_worker.py", {"RLPROF_LEADS": "1"}, None),
        ("train.py", {"RLPROF_LEADS": "1"}, "1"),
        ("train.py", {"RLPROF_NODE_DIR": "/node"}, None),
        ("train.py", SUBMITTED, "1"),  # what `ray job submit` has started
        ("default_worker.py", SUBMITTED | {"RLPROF_LEADS": "1"}, "0"),
        ("train.py", SUBMITTED | {"RLPROF_LEADS": "0"}, "0"),  # what such a worker starts
    ],
)
def test_the_driver_alone_leads_the_job(tmp_path: Path, script: str, env: dict[str, str], leads: str | None):
    """NeMo RL gives the driver's whole environment to the job's runtime env, this variable too."""
    program = tmp_path / script
    program.write_text("import os; print(os.environ.get('RLPROF_LEADS'))")
    env = {"PYTHONPATH": ":".join([adapters_path(), import_path()]), **env}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(leads), done.stderr
