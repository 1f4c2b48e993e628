"""The report's page of a whole run of 512 nodes with 8 ranks each and 2,000 steps, simulated, and its record.

Chromium opens the page three times; the least wall time counts, and where others have the processors the
CPU time of the page's thread. One node's record is written by the recorder's own parts and read again; the
job's is so many of it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
from msgspec import to_builtins
from tests.analyze.as_data import typed
from tests.analyze.simulated import simulated_answer
from tests.bench.harness import Run
from tests.recorder.recorded import write_record
from tests.recorder.simulated import BEGIN_NS, PHASES, healthy

from rlprof_ops.analyze.page.html_page import render
from rlprof_ops.analyze.whole_run.looks import none
from rlprof_ops.analyze.whole_run.records import ProcessSteps, RecordedNode, read_all
from rlprof_ops.analyze.whole_run.section import from_records

NEEDS = ("chromium",)
QUICK = {"nodes": 8, "steps": 100}
STEP_S = 10.4
MOST_PAGE_MB, MOST_OPEN_S, MOST_RECORD_MB = 3.0, 2.0, 1.0


def simulated_nodes(nodes: int, ranks: int, steps: int) -> list[RecordedNode]:
    """As the records of a run with noise are read; rank 77 is slow from the middle on."""
    rng = np.random.default_rng(0)
    step = np.arange(1, steps + 1)
    begin = BEGIN_NS + (step * STEP_S * 1e9).astype(np.int64)
    found = []
    for node in range(nodes):
        processes = []
        for rank in range(node * ranks, (node + 1) * ranks):
            busy = 9.9 * rng.lognormal(0, 0.03, steps)
            busy[steps // 2 :] *= 1.4 if rank == 77 else 1.0
            generated = 6.0 * rng.lognormal(0, 0.05, steps)
            processes.append(
                ProcessSteps(
                    f"n{node:04}",
                    "policy_worker",
                    rank,
                    rank,
                    False,
                    step,
                    begin,
                    busy + 0.5,
                    busy,
                    generated,
                )
            )
        if node == 0:
            phases = {name: s * rng.lognormal(0, 0.08, steps) for name, s in PHASES.items()}
            phases["evaluation"] = np.where(step % 25 == 0, 40.0, 0.0)
            seconds = np.sum(list(phases.values()), axis=0)
            processes.append(
                ProcessSteps(
                    "n0000", "driver", 0, 1, True, step, begin, seconds, seconds, phases["generation"], phases
                )
            )
        found.append(RecordedNode(f"n{node:04}", tuple(processes), none(), {}))
    return found


def opened_s(page: Path, folder: Path) -> tuple[float, float]:
    """Wall seconds from the address to the page's last word that it is ready, the least of three, and the
    CPU seconds of its thread.
    """
    from selenium.webdriver.support.ui import WebDriverWait
    from tests.analyze.page.test_page import chromium

    browser = chromium(folder / "chromium")
    least = float("inf")
    try:
        browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        for _ in range(3):
            browser.get("about:blank")
            begun = time.monotonic()
            browser.get(page.as_uri())
            ready = "return document.documentElement.dataset.ready"
            WebDriverWait(browser, 60, 0.02).until(lambda b: b.execute_script(ready) == "1")  # noqa: B023
            least = min(least, time.monotonic() - begun)
        metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    finally:
        browser.quit()
    return least, next(each["value"] for each in metrics if each["name"] == "TaskDuration")


def record(folder: Path, ranks: int, steps: int) -> tuple[int, float]:
    """Bytes of one node's record of steps, GPU samples included, and CPU seconds to read it."""
    write_record(folder, "n1", healthy(1, steps, ranks))
    size = sum(path.stat().st_size for path in (folder / "nodes" / "n1" / "record").iterdir())
    begun = time.process_time()
    read_all(folder, (), 1)
    return size, time.process_time() - begun


def bench(run: Run, *, nodes: int = 512, ranks: int = 8, steps: int = 2000) -> None:
    recorded = simulated_nodes(nodes, ranks, steps)
    began = time.process_time()
    whole = from_records(recorded)
    section_s = time.process_time() - began
    assert whole is not None
    page, told = run.folder / "report.html", to_builtins(whole)
    page.write_text(render(typed(simulated_answer(64, 4) | {"whole_run": told})))
    size, read_s = record(run.folder / "run", ranks, steps)
    whole_mb = len(json.dumps(told, separators=(",", ":"))) / 1e6
    run.say(f"the whole run in the page: {whole_mb:.2f} MB, put together in {section_s:.1f} s of CPU")
    run.say(f"a node's record is read in {read_s:.2f} s of CPU ({nodes} nodes share all cores)")
    run.limit("page", page.stat().st_size / 1e6, MOST_PAGE_MB, "MB")
    wall_s, cpu_s = opened_s(page, run.folder)
    is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    run.say(f"opened in {wall_s:.2f} s, {cpu_s:.2f} s of CPU; judged by {'CPU' if is_busy else 'wall time'}")
    run.limit("opened in", cpu_s if is_busy else wall_s, MOST_OPEN_S, "s")
    run.limit("record of a node and hour", size * 3600 / (steps * STEP_S) / 1e6, MOST_RECORD_MB, "MB")
