"""Every Python that is supported: the wheel compiles and imports there, and the rules of the request hold."""

from __future__ import annotations

import subprocess
import zipfile

import pytest

from tests.needs import need
from tests.packaging.conftest import HOME, link_needed, run
from tests.packaging.test_wheel import SCANNER

pytestmark = pytest.mark.whole

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
TESTS = (
    "tests/request/test_core.py",
    "tests/request/test_rules.py",
    "tests/backends",
    "tests/runtime/test_steps.py",
    "tests/runtime/test_profiler.py",
)
# All modules but those of packages that this place may lack; what those import is listed, not hidden.
IMPORT_ALL = """
import importlib, pathlib, sys
packages = pathlib.Path(sys.argv[1])
TABLES = ("rlprof_ops.operate.export.engine_requests", "rlprof_ops.operate.export.parquet")
foreign = set()
for file in sorted((packages / "rlprof_ops").rglob("*.py")):
    name = ".".join(file.relative_to(packages).with_suffix("").parts).removesuffix(".__init__")
    if name.startswith("rlprof_ops.job") or name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert not error.name.startswith("rlprof_ops"), (name, error)
        assert name.split(".")[1] in ("analyze", "demo", "rayenv") or name in TABLES, (name, error)
        foreign.add(error.name)
print(*sorted(foreign))
"""
FOREIGN = {"numpy", "ray", "torch", "rich", "msgspec", "isal", "pyarrow", "jinja2", "submitit"}


@pytest.mark.parametrize("version", VERSIONS)
def test_compiles_and_imports(version, wheel, other_python, tmp_path):
    python = other_python(version)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "packages")
    link_needed(tmp_path / "packages")
    run(python, "-W", "error", "-m", "compileall", "-q", tmp_path / "packages" / "rlprof_ops")
    done = run(python, "-c", IMPORT_ALL, tmp_path / "packages", PYTHONPATH=str(tmp_path / "packages"))
    assert set(done.stdout.split()) <= FOREIGN


LOAD = """
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader("_trace_scan", sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_trace_scan", loader))
loader.exec_module(module)
text = b'{"cat": "cpu_op", "name": "a", "ts": 1.5, "dur": 2}'
events, parts, names, tracks, collectives, shapes = module.TraceScanner(()).scan(text, len(text))
print(events, int.from_bytes(parts[0][1], sys.byteorder), names)
assert module.TraceScanner(()).scan(text, 5) is None
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_one_compiled_scanner_serves_all(version, wheel, other_python, tmp_path):
    need("scanner")
    with zipfile.ZipFile(wheel) as archive:
        scanner = archive.extract(SCANNER, tmp_path)
    assert run(other_python(version), "-c", LOAD, scanner).stdout == "1 1500 b'[\"a\"]'\n"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", (VERSIONS[0], VERSIONS[-1]))
def test_the_rules_hold(version, other_python, tmp_path):
    """The unit tests of request, backends and runtime under that Python, with a pytest of its own."""
    python = other_python(version)
    run(python, "-m", "venv", tmp_path / "venv")
    pip = [tmp_path / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    got = subprocess.run(
        [*pip, "click", "pyyaml", "pytest", "pytest-timeout", "hypothesis"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    if got.returncode:
        pytest.skip(f"pip of Python {version} cannot get pytest: {got.stderr.strip().splitlines()[-1:]}")
    options = ["-q", "-p", "no:cacheprovider", "-m", "not nsys and not ray and not torch and not slurm"]
    options += ["--ignore=tests/backends/nsight/test_nsys_sh.py"]  # a shell script has no Python
    tests = run(
        tmp_path / "venv/bin/python",
        "-m",
        "pytest",
        *options,
        *TESTS,
        cwd=HOME,
        PYTHONDONTWRITEBYTECODE="1",
        RLPROF_TESTS_REQUIRE="",
    )
    assert " passed" in tests.stdout
