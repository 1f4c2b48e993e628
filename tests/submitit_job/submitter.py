"""Run on the sandbox's login node: submits one RayJob as a user's script would, and prints what it hands
back as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import submitit

from rlprof_ops import HarvestRun, RayJob, ReportRun, wait_for
from tests.submitit_job.jobs import ASKED, QUICK
from tests.waits import wait_until


def main() -> None:
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
    executor.update_parameters(
        nodes=options["nodes"], tasks_per_node=1, cpus_per_task=2, timeout_min=options.get("minutes", 10),
        slurm_signal_delay_s=options.get("signal_delay_s", 90),
    )  # fmt: skip
    if "partition" in options:
        executor.update_parameters(slurm_partition=options["partition"])
    job = executor.submit(
        RayJob(
            options["command"],
            options.get("request", ASKED),
            {**QUICK, **options.get("settings", {})},
            requeue=options.get("requeue", False),
        )
    )
    (folder / "job").write_text(job.job_id)
    print(job.job_id, flush=True)
    summary = wait_for(job, seconds=480)
    shown = {
        "exit_code": summary.exit_code,
        "cause": summary.cause,
        "run_dir": summary.run_dir,
        "earlier": summary.earlier,
        "harvest_job": summary.harvest_job,
        "captures": summary.captures(),
        "planned": [capture.id for capture in summary.manifest.captures],
    }
    if options.get("follow_up"):
        executor.update_parameters(
            nodes=1, slurm_additional_parameters={"dependency": f"afterany:{job.job_id}"}
        )
        harvested = executor.submit(HarvestRun.of(job))
        answer = executor.submit(ReportRun.of(job))
        shown["harvested"] = result_of(harvested).complete
        shown["answer"] = result_of(answer)["coverage"]
    print(json.dumps(shown))


def result_of(job: submitit.Job[Any]) -> Any:
    """submitit's `result()` asks sacct, which is not here, so wait for the file that it would read."""
    wait_until(job.paths.result_pickle.exists, 300, lambda: f"no result of {job.job_id}: {job.stderr()}")
    return job.result()


if __name__ == "__main__":
    main()
