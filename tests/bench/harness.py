"""The harness of all benchmarks: options, costs of processes, both sides by turns, tables, limits, JSON.

A benchmark is a module of this folder with `bench(run, *, option=default, ...)`; it keeps what it measures:

- its docstring is its help, its first line what the list says of it;
- the signature of `bench` makes its options: `most_s: float = 15.0` is `--most-s 15`;
- `QUICK`, a mapping, has the options' values in the shortest run that still works (`--quick`);
- `NEEDS` names the parts of the machine that it cannot do without (tests/needs.py).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from tests import needs

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python"
COMMAND = "python -m tests.bench"
_HERE = Path(__file__).parent
_OURS = ("RLPROF_", "NRL_", "RAY_", "PYTHONDONTWRITEBYTECODE")  # an installed package has its bytecode
_T = TypeVar("_T")


@dataclass(frozen=True)
class Cost:
    """Of a process with all its children: seconds, and GiB at its peak."""

    wall_s: float
    cpu_s: float
    peak_gib: float
    output: str = ""

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} s, CPU {self.cpu_s:.2f} s, {self.peak_gib:.2f} GiB"


def environment(more: Mapping[str, str] | None = None, *, without: Sequence[str] = _OURS) -> dict[str, str]:
    """This process's environment, without what would profile or steer what is measured, and `more`."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(tuple(without))}
    return kept | {"PYTHONPATH": os.pathsep.join([str(PACKAGE), str(ROOT)]), **(more or {})}


def spend(
    argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None, runs: int = 1
) -> Cost:
    """What a command costs, from the kernel; of several runs the one with the least wall time.

    Raises SystemExit, with the end of what it printed, where the command fails.
    """
    costs = []
    for _ in range(runs):
        with tempfile.TemporaryFile() as out:
            began = time.monotonic()
            process = subprocess.Popen(
                argv, env=dict(env or environment()), cwd=cwd, stdout=out, stderr=subprocess.STDOUT
            )
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.monotonic() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            text = out.read().decode(errors="replace")
        if process.returncode:
            words = shlex.join(map(str, argv))[:200]
            raise SystemExit(f"{words} ended with {process.returncode}:\n{text[-3000:]}")
        costs.append(Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1 << 20), text))
    return min(costs, key=lambda cost: cost.wall_s)


def by_turns(sides: Mapping[str, Callable[[], _T]], count: int) -> dict[str, list[_T]]:
    """So many results of each side, one after the other; each second turn goes the other way round."""
    found: dict[str, list[_T]] = {name: [] for name in sides}
    for turn in range(count):
        for name in reversed(sides) if turn % 2 else sides:  # type: ignore[call-overload]
            found[name].append(sides[name]())
    return found


def ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, str]:
    """The median ratio of pairs, and with its quartiles in words: "1.030 (0.960 to 1.070)"."""
    ratios = [one / other for one, other in zip(over, under, strict=True)]
    if len(ratios) < 2:
        return ratios[0], f"{ratios[0]:.3f}"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, f"{middle:.3f} ({low:.3f} to {high:.3f})"


@dataclass
class Run:
    """One run of a benchmark: where it works, what it has found, which of its limits were missed."""

    folder: Path
    quick: bool = False
    found: dict[str, Any] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    _widths: list[int] = field(default_factory=list)

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def head(self, *names: str) -> None:
        """Begin a table, as Markdown; its rows are printed one by one, since a run may be cut short."""
        self._widths = [len(name) for name in names]
        self.say()
        self._line(names)
        self.say(f"|{'|'.join('-' * (width + 2) for width in self._widths)}|")
        self.found.setdefault("tables", []).append({"head": names, "rows": []})

    def row(self, *cells: object) -> None:
        texts = [str(cell) for cell in cells]
        self.found["tables"][-1]["rows"].append(texts)
        self._line(texts)

    def _line(self, texts: Iterable[str]) -> None:
        padded = [text.ljust(width) for text, width in zip(texts, self._widths, strict=True)]
        self.say(f"| {' | '.join(padded)} |")

    def limit(self, what: str, value: float, most: float, unit: str = "") -> None:
        """A number that may not be above `most`; where all is quick it is no number yet."""
        unit = f" {unit}" if unit else ""
        self.found[what] = value
        self.expect(value <= most or self.quick, f"{what}: {value:.4g}{unit}, at most {most:.4g}{unit}")

    def expect(self, is_met: object, text: str) -> None:
        """Something that the benchmark exists to hold; `text` says it with its numbers."""
        self.say(text if is_met else f"MISSED: {text}")
        if not is_met:
            self.missed.append(text)


def names() -> dict[str, str]:
    """Every benchmark -> its module; `run.py` of a folder goes by the folder's name."""
    found = {}
    for path in sorted(_HERE.rglob("*.py")):
        if "\ndef bench(" in path.read_text(encoding="utf-8"):
            parts = path.relative_to(_HERE).with_suffix("").parts
            found[".".join(part for part in parts if part != "run")] = ".".join(("tests.bench", *parts))
    return found


def parser(name: str, module: ModuleType) -> argparse.ArgumentParser:
    """The options of a benchmark, from the signature of its `bench`."""
    made = argparse.ArgumentParser(
        prog=f"{COMMAND} {name}", description=module.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="as short as it can be: that it works, no number")
    made.add_argument("--json", type=Path, help="a file for what was found")
    made.add_argument("--folder", type=Path, help="where it works, kept; default: one that goes with it")
    hints = typing.get_type_hints(module.bench)
    for parameter in _options(module):
        option, hint = f"--{parameter.name.replace('_', '-')}", hints[parameter.name]
        if hint is bool:
            made.add_argument(option, action="store_true", default=None)
        elif words := _choices(hint):
            made.add_argument(option, choices=words)
        else:
            made.add_argument(option, type=_reader(hint), help=f"default: {_shown(parameter.default)}")
    return made


def _options(module: ModuleType) -> list[inspect.Parameter]:
    return [
        each
        for each in inspect.signature(module.bench).parameters.values()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    ]


def _choices(hint: Any) -> tuple[str, ...]:
    """The words of a Literal, which may be optional."""
    for each in (hint, *typing.get_args(hint)):
        if typing.get_origin(each) is typing.Literal:
            return typing.get_args(each)
    return ()


def _reader(hint: Any) -> Callable[[str], Any]:
    """How an option's text becomes its value; a tuple's values stand between commas."""
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return lambda text: tuple(inner(word) for word in text.split(",") if word)
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    return typing.cast("Callable[[str], Any]", kinds[0])


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark, or `all` of them; the exit code is 1 where a limit is missed."""
    known = names()
    name, *rest = arguments or ["--help"]
    if name == "all":
        return run_all(known, rest)
    if name not in known:
        for each, module in known.items():
            path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
            about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            print(f"{each:18} {about.partition(chr(10))[0]}")
        print(f"\n{COMMAND} NAME --help      its options\n{COMMAND} all --quick      each of them, shortly")
        return 0 if name in ("-h", "--help") else 2
    module = importlib.import_module(known[name])
    asked = vars(parser(name, module).parse_args(rest))
    quick, path, folder = asked.pop("quick"), asked.pop("json"), asked.pop("folder")
    usual = {each.name: each.default for each in _options(module)} | (module.QUICK if quick else {})
    chosen = usual | {key: value for key, value in asked.items() if value is not None}
    told: dict[str, Any] = {"bench": name, "quick": quick, "options": chosen, "cpus": os.cpu_count()}
    told |= {"load": os.getloadavg()[0], "python": platform.python_version()}
    print(f"{name}: {told['cpus']} CPUs, load {told['load']:.1f}, Python {told['python']};", end=" ")
    print(f"again: {COMMAND} {shlex.join([name, *rest])}", flush=True)
    lacking = [why for part in getattr(module, "NEEDS", ()) if (why := needs.lacking(part))]
    run = Run(Path())
    if not lacking:
        with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
            run = Run(folder or Path(temporary), quick)
            run.folder.mkdir(parents=True, exist_ok=True)
            module.bench(run, **chosen)
    print("".join(f"left out: {why}\n" for why in lacking), end="")
    if path:
        told |= {"found": run.found, "missed": run.missed, "lacking": lacking}
        path.write_text(json.dumps(told, indent=1, default=str) + "\n")
    return 1 if run.missed else 0


def run_all(known: Mapping[str, str], options: Sequence[str]) -> int:
    """Each benchmark in a process of its own, and a table of how each ended."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as text:
        for name in known:
            path, began = Path(text, f"{name}.json"), time.monotonic()
            print(f"== {name}", flush=True)
            argv = [sys.executable, "-m", "tests.bench", name, "--json", str(path), *options]
            code = subprocess.run(argv, cwd=ROOT, check=False).returncode
            told = json.loads(path.read_text()) if path.exists() else {"missed": [f"exit code {code}"]}
            rows.append((name, time.monotonic() - began, told["missed"], told.get("lacking")))
    run = Run(Path())
    run.head("benchmark       ", "seconds", "how it ended")
    for name, seconds, missed, lacking in rows:
        run.row(name, f"{seconds:.0f}", "; ".join(missed) or "; ".join(lacking or ["all limits met"]))
    return int(any(missed for _, _, missed, _ in rows))
