"""Puts ray.sub, scripts/ and env/ into the wheel as rlprof_ops/job_files, where
`rlprof_ops.job.knobs.home` looks for them, and compiles the scanner of traces where there is a compiler.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
# What only a checkout needs: the test machine's set-up.
LEFT_OUT = {"constraints.txt", "setup_test_machine.sh", "site.env"}

# PYTHONPATH=<home>/python must give this package and nothing else that lies beside it in site-packages, or
# the libraries of rlprof's environment would shadow those of a trainer's.
DOOR = '''"""The installed rlprof_ops, on a PYTHONPATH that holds nothing else."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[3])]
exec(compile((Path(__path__[0]) / "__init__.py").read_text(), "rlprof_ops", "exec"))
'''


def job_files() -> list[Path]:
    """Files of a job's set, relative to the checkout."""
    found = [HERE / "ray.sub", *(HERE / "scripts").rglob("*"), *(HERE / "env").glob("*")]
    return sorted(file.relative_to(HERE) for file in found if file.is_file() and file.name not in LEFT_OUT)


class BuildWithJob(build_py):
    """The package's own files, then the job's."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # home() finds the checkout
            return
        for target, source in self._job_targets().items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        door = self._job() / "python" / "rlprof_ops" / "__init__.py"
        door.parent.mkdir(parents=True, exist_ok=True)
        door.write_text(DOOR, encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        more = [] if self.editable_mode else [str(target) for target in self._job_targets()]
        return [*super().get_outputs(include_bytecode), *more]

    def _job(self) -> Path:
        return Path(self.build_lib) / "rlprof_ops" / "job_files"

    def _job_targets(self) -> dict[Path, Path]:
        return {self._job() / name: HERE / name for name in job_files()}


# Without a compiler or Python's headers the package is whole without it: see rlprof_ops.analyze.readers.scan.
_SOURCES = "python/rlprof_ops/analyze/readers/scan"
SCANNER = Extension(
    "rlprof_ops.analyze.readers.scan._trace_scan",
    [f"{_SOURCES}/_trace_scan.c"],
    depends=[f"{_SOURCES}/{name}.h" for name in ("json_text", "text_table", "trace_events")],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    extra_compile_args=["-std=c11", "-O3"],
    py_limited_api=True,
    optional=True,
)

setup(
    cmdclass={"build_py": BuildWithJob},
    ext_modules=[SCANNER],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},  # one wheel for every Python from 3.10 on
)
