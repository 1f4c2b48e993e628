"""What an annotated call, a `with` range and a step cost over bare code, beside record_function and
nvtx.annotate.

    python tests/bench/hooks/run.py [--rounds 300] [--json FILE]

All sides run in one process, in turns of a few milliseconds, and the fastest turn of each counts, so that
what else the machine does hits all sides alike. Exits 1 when an aim of docs/runtime.md is missed. No tool is
attached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import timeit
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "python"
sys.path.insert(0, str(PACKAGE))
CALLS = 3_000


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=300)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        bare, sides = build(folder)
        costs = measure(bare, sides, options.rounds)
    imported_ms, torch_loaded = import_cost()
    print_table(costs, imported_ms)
    missed = aims(costs, imported_ms, torch_loaded)
    for line in missed:
        print(f"MISSED: {line}")
    if options.json:
        options.json.write_text(
            json.dumps({"ns": costs, "import_ms": imported_ms, "missed": missed}, indent=1)
        )
    return 1 if missed else 0


def build(folder: str):
    """The bare calls to subtract, and every side as (group, callable)."""
    for name in [name for name in os.environ if name.startswith(("RLPROF_", "NRL_"))]:
        del os.environ[name]
    from rlprof_ops.runtime import profiler

    off = profiler.from_env(worker="policy_worker", rank=0)

    def work():
        pass

    handed_back = off.annotate("train")(work)
    assert handed_back is work

    os.environ["RLPROF_REQUEST_JSON"] = (
        '{"captures": [{"backend": "torch", "workers": ["policy_worker"], "steps": "1000000:1000002,'
        ' 1000010"}]}'
    )
    os.environ["RLPROF_NODE_DIR"] = folder
    armed = profiler.from_env(worker="policy_worker", rank=0)
    assert armed is not off and not armed.active
    armed_work = armed.annotate("train")(work)
    early_work = profiler.annotate("train")(work)

    import nvtx
    import torch

    nvtx_work = nvtx.annotate("train", domain="rlprof")(work)
    nvtx_made = nvtx.annotate("train", domain="rlprof")
    record_work = torch.profiler.record_function("train")(work)
    step = iter(range(1, 10**9))

    def empty():
        pass

    def with_armed():
        with armed.range("train"):
            pass

    def with_off():
        with off.range("train"):
            pass

    def with_nvtx():
        with nvtx.annotate("train", domain="rlprof"):
            pass

    def with_nvtx_made():
        with nvtx_made:
            pass

    def with_record():
        with torch.profiler.record_function("train"):
            pass

    def armed_step():
        with armed.step(next(step)):
            pass

    def off_step():
        with off.step(1):
            pass

    return {"call": work, "with": empty, "step": empty}, {
        "nothing asked, decorator": ("call", handed_back),
        "armed, decorator": ("call", armed_work),
        "armed, profiler.annotate, decorator": ("call", early_work),
        "nvtx.annotate, decorator": ("call", nvtx_work),
        "record_function, decorator": ("call", record_work),
        "nothing asked, with": ("with", with_off),
        "armed, with": ("with", with_armed),
        "nvtx.annotate, with (one object made beforehand)": ("with", with_nvtx_made),
        "nvtx.annotate, with": ("with", with_nvtx),
        "record_function, with": ("with", with_record),
        "nothing asked, step": ("step", off_step),
        "armed, step": ("step", armed_step),
    }


def measure(bare: dict, sides: dict, rounds: int) -> dict[str, float]:
    """Nanoseconds a call of each side takes over the bare call of its group."""
    best: dict[str, float] = {}
    base: dict[str, float] = {}
    for _ in range(rounds):
        for group, function in bare.items():
            base[group] = min(base.get(group, 1e9), once(function))
        for name, (_, function) in sides.items():
            best[name] = min(best.get(name, 1e9), once(function))
    return {name: max(0.0, best[name] - base[group]) for name, (group, _) in sides.items()}


def once(function) -> float:
    calls = CALLS
    probe = timeit.timeit(function, number=10) / 10
    if probe > 1e-6:  # slow sides get fewer calls a turn, so that turns are equally long
        calls = max(100, int(CALLS * 1e-7 / probe))
    return timeit.timeit(function, number=calls) / calls * 1e9


def import_cost() -> tuple[float, bool]:
    """Milliseconds of CPU that `import rlprof_ops.runtime.profiler` takes in a fresh Python over an empty
    one, and whether it loaded torch.
    """
    code = (
        "import sys; import rlprof_ops.runtime.profiler as p; p.from_env('w', 0); print('torch' in"
        " sys.modules)"
    )
    env = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(PACKAGE)}
    best = {"pass": 1e9, code: 1e9}
    loaded = True
    for _ in range(15):
        for text in best:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(
                [sys.executable, "-S", "-c", text], env=env, capture_output=True, text=True, check=True
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            best[text] = min(best[text], took)
            if text == code:
                loaded = "True" in done.stdout
    return (best[code] - best["pass"]) * 1e3, loaded


def aims(costs: dict[str, float], imported_ms: float, torch_loaded: bool) -> list[str]:
    limits = [
        ("nothing asked, decorator", 5.0, "5 ns"),
        ("armed, decorator", costs["nvtx.annotate, decorator"], "nvtx.annotate as decorator"),
        (
            "armed, profiler.annotate, decorator",
            costs["nvtx.annotate, decorator"],
            "nvtx.annotate as decorator",
        ),
        (
            "armed, decorator",
            costs["record_function, decorator"] / 20,
            "1/20 of record_function as decorator",
        ),
        ("armed, with", costs["nvtx.annotate, with"], "nvtx.annotate as with"),
        ("armed, with", costs["record_function, with"] / 20, "1/20 of record_function as with"),
        ("armed, step", 1000.0, "1 us"),
    ]
    missed = [
        f"{name}: {costs[name]:.0f} ns is more than {what} ({limit:.0f} ns)"
        for name, limit, what in limits
        if costs[name] > limit
    ]
    if imported_ms > 10:
        missed.append(f"import: {imported_ms:.1f} ms of CPU is more than 10 ms")
    if torch_loaded:
        missed.append("the import loaded torch")
    return missed


def print_table(costs: dict[str, float], imported_ms: float) -> None:
    print(
        f"Python {platform.python_version()}, nanoseconds over the bare call; ratio to ours, armed outside a"
        " window"
    )
    for kind in ("decorator", "with", "step"):
        ours = costs[f"armed, {kind}"]
        for name, cost in costs.items():
            if f", {kind}" in name:
                print(f"  {name:<50} {cost:9.1f} ns   {cost / ours:7.2f} x")
    print(f"  {'import rlprof_ops.runtime and from_env':<50} {imported_ms:9.1f} ms")


if __name__ == "__main__":
    sys.exit(main())
