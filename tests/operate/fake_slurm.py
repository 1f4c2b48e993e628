"""Slurm's commands as small programs on PATH, for exact arguments and for states that are hard to bring
about.

The same commands against a real Slurm are in tests/operate/test_real_jobs.py.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = """#!{python}
import json, os, sys
from pathlib import Path
here = Path({folder!r})
name = os.path.basename(sys.argv[0])
with open(here / "calls.jsonl", "a") as calls:
    calls.write(json.dumps({{"argv": [name, *sys.argv[1:]], "env": dict(os.environ), "cwd": os.getcwd()}}) + "\\n")
if name == "sbatch":
    refused = here / "refused"
    if refused.exists():
        sys.exit(refused.read_text())
    print("sbatch: a plugin says hello", file=sys.stderr)
    print("4711;east")
elif name == "scontrol" and sys.argv[1:3] == ["show", "hostnames"]:
    print("n1\\nn2")
elif name == "scontrol":
    shown = here / f"job-{{sys.argv[-1]}}"
    if not shown.exists():
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    print(shown.read_text())
elif name == "squeue" and "--steps" in sys.argv:
    job = next(word.partition("=")[2] for word in sys.argv if word.startswith("--jobs="))
    print(f"{{job}}.1 bash\\n{{job}}.0 rlprof-beside\\n{{job}}.10 sh\\n{{job}}.batch batch")
elif name == "squeue" and (jobs := [word for word in sys.argv if word.startswith("--jobs=")]):
    print(jobs[0].partition("=")[2], "n[1-2]")
elif name == "squeue":
    queue = here / "queue"
    print(queue.read_text() if queue.exists() else "", end="")
elif name == "scancel":
    after = here / "after-scancel"
    if after.exists():
        (here / f"job-{{sys.argv[-1].partition('.')[0]}}").write_text(after.read_text())
"""


@dataclass(frozen=True)
class FakeSlurm:
    """`folder/bin` has the commands; what they were called with is in `calls`."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> FakeSlurm:
        binaries = folder / "bin"
        binaries.mkdir(parents=True)
        for name in ("sbatch", "scontrol", "squeue", "scancel", "sacct"):
            program = binaries / name
            program.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)))
            program.chmod(0o755)
        return cls(folder)

    @property
    def path(self) -> str:
        return f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    @property
    def calls(self) -> list[dict[str, object]]:
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def called(self, name: str) -> list[list[str]]:
        """The argument lists that one command was called with."""
        return [call["argv"] for call in self.calls if call["argv"][0] == name]  # type: ignore[misc, index]

    def show(self, job: str, state: str = "RUNNING", **fields: str) -> None:
        """What scontrol will say of a job."""
        (self.folder / f"job-{job}").write_text(shown(job, state, **fields))

    def after_scancel(self, job: str, state: str, **fields: str) -> None:
        (self.folder / "after-scancel").write_text(shown(job, state, **fields))


def shown(job: str, state: str, **fields: str) -> str:
    """As `scontrol show job` of Slurm 22.05 prints it."""
    values = {
        "JobName": "rl profile",
        "Reason": "None",
        "ExitCode": "0:0",
        "WorkDir": "/nowhere",
        "Command": "/opt/rlprof/ray.sub",
        "StdOut": "/nowhere/slurm.out",
        "Restarts": "0",
        "NodeList": "n[1-2]",
        "UserId": "ann(1000)",
        **fields,
    }
    comment = f"\n   Comment={values['Comment']}" if "Comment" in values else ""
    return f"""JobId={job} JobName={values["JobName"]}
   UserId={values["UserId"]} GroupId=ann(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={values["Reason"]} Dependency=(null)
   Requeue=1 Restarts={values["Restarts"]} BatchFlag=1 Reboot=0 ExitCode={values["ExitCode"]}
   RunTime=00:01:02 TimeLimit=04:00:00 TimeMin=N/A
   NodeList={values["NodeList"]}
   BatchHost=n1
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Command={values["Command"]}
   WorkDir={values["WorkDir"]}
   StdErr={values["StdOut"]}
   StdIn=/dev/null
   StdOut={values["StdOut"]}
   Power={comment}
"""
