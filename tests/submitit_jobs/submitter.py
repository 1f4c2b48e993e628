"""Run on the sandbox's login node: submits one RayJob as a user's script would, and prints what it hands back as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import submitit

from rlprof_ops.cluster import RayJob, wait_for
from tests.submitit_jobs.jobs import ASKED, QUICK


def main() -> None:
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
    executor.update_parameters(
        nodes=options["nodes"], tasks_per_node=1, cpus_per_task=2, timeout_min=options.get("minutes", 10),
        slurm_signal_delay_s=options.get("signal_delay_s", 90),
    )  # fmt: skip
    job = executor.submit(RayJob(options["command"], ASKED, QUICK, requeue=options.get("requeue", False)))
    (folder / "job").write_text(job.job_id)
    print(job.job_id, flush=True)
    summary = wait_for(job, seconds=240)
    shown = {"exit_code": summary.exit_code, "cause": summary.cause, "run_dir": summary.run_dir, "earlier": summary.earlier,
             "captures": summary.captures(), "planned": [capture.id for capture in summary.manifest.captures]}  # fmt: skip
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
