"""What an annotated call, a `with` range and a step cost over bare code, beside others' annotations.

All sides run in one process, in turns of a few milliseconds, and the fastest turn of each counts, so that
what else the machine does hits all sides alike. The limits are those of docs/runtime.md. No tool is
attached.
"""

from __future__ import annotations

import os
import sys
import tempfile
import timeit
from unittest import mock

from tests.bench.harness import PACKAGE, Run, environment, spend

NEEDS = ("torch", "nvtx")
QUICK = {"rounds": 3}
CALLS = 3_000


def bench(run: Run, *, rounds: int = 300) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, environment(), clear=True):
        bare, sides = build(folder)
        costs = measure(bare, sides, rounds)
    run.head("nanoseconds over the bare call" + " " * 20, "ns      ", "over ours, armed outside a window")
    for kind in ("decorator", "with", "step"):
        ours = costs[f"armed, {kind}"]
        for name, cost in costs.items():
            if f", {kind}" in name:
                run.row(name, f"{cost:.1f}", f"{cost / ours:.2f}")
    imported_ms, torch_loaded = import_cost()
    for name, limit, what in aims(costs):
        run.limit(f"{name}, beside {what}", costs[name], limit, "ns")
    run.limit("import rlprof_ops.runtime and from_env, of CPU", imported_ms, 10, "ms")
    run.expect(not torch_loaded, "the import leaves torch alone")


def build(folder: str):
    """The bare calls to subtract, and every side as (group, callable)."""
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
    empty, ours = (
        [spend([sys.executable, "-S", "-c", text], env) for _ in range(15)] for text in ("pass", code)
    )
    least = [min(cost.cpu_s for cost in costs) for costs in (ours, empty)]
    return (least[0] - least[1]) * 1e3, "True" in ours[-1].output


def aims(costs: dict[str, float]) -> list[tuple[str, float, str]]:
    """(side, most nanoseconds, what they are) for each promise."""
    nvtx, record = "nvtx.annotate", "record_function"
    return [
        ("nothing asked, decorator", 5.0, "5 ns"),
        ("armed, decorator", costs[f"{nvtx}, decorator"], nvtx),
        ("armed, profiler.annotate, decorator", costs[f"{nvtx}, decorator"], nvtx),
        ("armed, decorator", costs[f"{record}, decorator"] / 20, f"1/20 of {record}"),
        ("armed, with", costs[f"{nvtx}, with"], nvtx),
        ("armed, with", costs[f"{record}, with"] / 20, f"1/20 of {record}"),
        ("armed, step", 1000.0, "1 us"),
    ]
