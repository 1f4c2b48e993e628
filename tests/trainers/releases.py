"""What each adapter finds in the releases of its trainer, without installing what those need.

A release's modules are made again from their source: the same functions, classes, bases, signatures and
natures (generator, coroutine, context manager, kind of method), with nothing in them. The adapter is let at
them as at the real ones, and what it raises is its answer. Decorators of other packages count as none.

    python -m tests.trainers.releases           every release of the record again, into releases.json
    python -m tests.trainers.releases trl==1.17.0 ...    these too
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from rlprof_ops.runtime.process import hooks
from tests.trainers import environments

RECORD = environments.HERE / "releases.json"
DOWNLOAD_S = 300.0
PACKAGES = {
    "trl": "trl", "transformers": "trl", "verl": "verl", "rlinf": "rlinf", "openrlhf": "openrlhf",
    "skyrl": "skyrl", "areal": "areal", "lightning": "lightning", "pytorch-lightning": "lightning",
    "accelerate": "accelerate",
}  # fmt: skip
"""Distribution -> whose adapter follows it."""
_DECORATORS = {
    "contextmanager": contextlib.contextmanager, "asynccontextmanager": contextlib.asynccontextmanager,
    "staticmethod": staticmethod, "classmethod": classmethod, "property": property,
}  # fmt: skip
Answer = dict[str, str]
"""Module -> "" where all that the adapter follows is there, else what is not."""


def record() -> dict[str, dict[str, Answer]]:
    """Distribution -> release -> what the adapter says."""
    found: dict[str, dict[str, Answer]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def package_of(name: str) -> str:
    """The package that a distribution brings."""
    return name.replace("-", "_")


def source_of(name: str, version: str) -> Path:
    """The folder with a release's Python files, fetched once.

    Raises:
        BuildError: the package index has no such wheel.
    """
    home = environments.cache_root() / "releases" / f"{name}-{version}"
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".new") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--only-binary=:all:"]
        done = subprocess.run(
            [*command, "--dest", folder, f"{name}=={version}"],
            capture_output=True, text=True, timeout=DOWNLOAD_S, check=False,
        )  # fmt: skip
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise environments.BuildError(f"no wheel of {name} {version}: {done.stderr.strip()[-300:]}")
        # A wheel that counts as built for one platform has it below *.data/purelib.
        ours = re.compile(rf"(?:[^/]+\.data/(?:pure|plat)lib/)?({package_of(name)}/.+\.py)")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for entry in wheel.infolist():
                if (found := ours.fullmatch(entry.filename)) is not None:
                    entry.filename = found[1]
                    wheel.extract(entry, Path(folder) / "src")
        (Path(folder) / "src").rename(home)
    return home


def answer_of(name: str, version: str) -> Answer:
    """What the adapter says of each module that it follows in a release."""
    source, trainer = source_of(name, version), PACKAGES[name]
    shapes = Shapes(source)
    follows = import_module(f"rlprof_ops.trainers.{trainer}").FOLLOWS
    adapter = import_module(f"rlprof_ops.trainers.{trainer}.adapter")
    found: Answer = {}
    with _alone(adapter):
        for module in follows:
            if module.partition(".")[0] != package_of(name):
                continue
            shape = shapes.module(module)
            if shape is None:
                found[module] = "there is no such module"
                continue
            try:
                adapter.install(module, shape)
                found[module] = ""
            except hooks.UnknownShape as error:
                found[module] = str(error)
    return found


@contextlib.contextmanager
def _alone(adapter: ModuleType) -> Iterator[None]:
    """Rules that an adapter adds stay out of this process."""
    names = {"add_rule", "add_helpers"} & vars(adapter).keys()
    before = {name: getattr(adapter, name) for name in names}
    for name in names:
        setattr(adapter, name, lambda *_: None)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(adapter, name, value)


class Unknown:
    """What another package or a computation would be."""

    def __init__(self, *_: object, **__: object) -> None: ...


@dataclass(frozen=True)
class Import:
    """What a name is imported from, looked up when somebody asks."""

    shapes: Shapes
    home: str
    name: str

    def found(self) -> Any:
        there = self.shapes.part(self.home)
        value = vars(there).get(self.name) if there is not None else None
        if isinstance(value, Import):
            value = Unknown if value == self else value.found()
        return value or self.shapes.part(f"{self.home}.{self.name}") or Unknown


class Shapes:
    """The modules of one release, each made when it is asked for."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.made: dict[str, ModuleType] = {}

    def module(self, name: str) -> ModuleType | None:
        """The module of that name, as an adapter meets it; None where the release has no such file."""
        module = self.part(name)
        for key, value in list(vars(module).items() if module else ()):
            if isinstance(value, Import):
                setattr(module, key, value.found())
        return module

    def part(self, name: str) -> ModuleType | None:
        if name in self.made:
            return self.made[name]
        place = self.source.joinpath(*name.split("."))
        file = place / "__init__.py" if (place / "__init__.py").is_file() else place.with_suffix(".py")
        if not file.is_file():
            return None
        module = self.made[name] = ModuleType(name)
        if file.name == "__init__.py":
            module.__path__ = [str(place)]
        self._fill(module, ast.parse(file.read_text(encoding="utf-8")).body, vars(module))
        return module

    def _fill(self, module: ModuleType, body: list[ast.stmt], space: dict[str, Any]) -> None:
        for node in body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    space[alias.asname or alias.name] = Import(self, _home(module, node), alias.name)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                space[node.name] = _function(node, module.__name__, space)
            elif isinstance(node, ast.ClassDef):
                space[node.name] = self._class(module, node, space)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if not node.targets[0].id.startswith("__"):
                    space[node.targets[0].id] = _value(node.value, space)
            elif isinstance(node, (ast.If, ast.Try)):
                for part in ("body", "orelse", "finalbody"):
                    self._fill(module, getattr(node, part, []), space)

    def _class(self, module: ModuleType, node: ast.ClassDef, space: dict[str, Any]) -> type:
        bases = [found for base in node.bases if isinstance(found := _value(base, space), type)]
        members: dict[str, Any] = {"__module__": module.__name__}
        self._fill(module, node.body, members)
        bases = [base for base in dict.fromkeys(bases) if base is not Unknown]
        try:
            return type(node.name, tuple(bases), members)
        except TypeError:
            return type(node.name, (), members)


def _home(module: ModuleType, node: ast.ImportFrom) -> str:
    base = module.__name__.split(".") if node.level else []
    if node.level:
        base = base[: len(base) - node.level + hasattr(module, "__path__")]
    return ".".join([*base, *(node.module or "").split(".")]).strip(".")


def _value(node: ast.expr, space: dict[str, Any]) -> Any:
    """A name, an attribute of one, or an object of one of the release's classes."""
    if isinstance(node, ast.Subscript):
        return _value(node.value, space)
    if isinstance(node, ast.Name):
        found = space.get(node.id, Unknown())
        return found.found() if isinstance(found, Import) else found
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, space), node.attr, Unknown())
    if isinstance(node, ast.Call):
        made = _value(node.func, space)
        return object.__new__(made) if isinstance(made, type) else Unknown()
    return Unknown()


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, module: str, space: dict[str, Any]) -> Any:
    """A function of the same signature and nature that does nothing."""
    arguments = ast.parse(f"def f({ast.unparse(_bare(node.args))}): ...").body[0]
    assert isinstance(arguments, ast.FunctionDef)
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    text = f"{start} {node.name}({ast.unparse(arguments.args)}):\n  {'yield' if _yields(node) else 'pass'}"
    local: dict[str, Any] = {"__name__": module}
    exec(text, local)
    made: Any = local[node.name]
    assert isinstance(made, FunctionType)
    for decorator in reversed(node.decorator_list):
        word = ast.unparse(decorator).rpartition(".")[2]
        made = _DECORATORS.get(word, lambda function: function)(made)
    return made


def _bare(arguments: ast.arguments) -> ast.arguments:
    """Without annotations, every default None."""
    for each in ast.walk(arguments):
        if isinstance(each, ast.arg):
            each.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [None if each is None else ast.Constant(None) for each in arguments.kw_defaults]
    return arguments


def _yields(node: ast.AST) -> bool:
    """Whether it is a generator: what functions in it yield is their own."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    return any(
        isinstance(child, (ast.Yield, ast.YieldFrom)) or (not isinstance(child, inner) and _yields(child))
        for child in ast.iter_child_nodes(node)
    )


def in_order(version: str) -> list[int]:
    """By its numbers: 0.9.10 comes after 0.9.2, a post release after its own."""
    return [int(number) for number in re.findall(r"\d+", version)]


def newest(name: str) -> str:
    """The newest release on the package index; of the record, where the index does not say."""
    command = [sys.executable, "-m", "pip", "index", "versions", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    told = re.search(r"Available versions: (.+)", done.stdout)
    return max(told[1].split(", ") if told else record()[name], key=in_order)


def main(asked: list[str]) -> None:
    known = record() if RECORD.is_file() else {}
    for name, version in (each.split("==") for each in asked):
        known.setdefault(name, {})[version] = {}
    made = {
        name: {version: answer_of(name, version) for version in sorted(known[name], key=in_order)}
        for name in sorted(known)
    }
    RECORD.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    for name, releases in made.items():
        for version, answer in releases.items():
            for module, why in answer.items():
                if why:
                    print(f"{name} {version}: {module}: {why}")


if __name__ == "__main__":
    main(sys.argv[1:])
