"""`python -m rlprof_ops.supervisor.salvage`: ends a node whose supervisor was killed, from the batch script,
after the step.

Slurm kills a step outright when one cancels the step, and an out-of-memory killer picks whom it likes. The
node's folder is still there then: its raw captures are recovered, its processes ended, its files brought
home, its record written. A person runs the same later, on a node whose files the storage did not take; the
job's output has the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.collect.drain.node_record import SCHEMA
from rlprof_ops.collect.drain.sequence import Budget, DrainSequence
from rlprof_ops.collect.sync.__main__ import Syncer, last_pass, log_to_output, record_pass
from rlprof_ops.errors import EXIT_FAILED, RlprofError
from rlprof_ops.host import foreign
from rlprof_ops.host.background import BackgroundWriter
from rlprof_ops.host.contained_dir import ContainedDir, PinnedDir
from rlprof_ops.job import folders
from rlprof_ops.job.end_cause import SIGNAL_EXIT, STEP_KILLED, EndCause
from rlprof_ops.job.knobs import Settings, import_path
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.redact import redact_text
from rlprof_ops.request import request_from_json
from rlprof_ops.submit.missing_captures import asked_now
from rlprof_ops.supervisor.node.node_state import FOLDER, NodeState, ToldToEnd
from rlprof_ops.supervisor.run_record import RunRecord
from rlprof_ops.window.output_dir import Folders, folder_of
from rlprof_ops.words import duration

NEVER_BEGAN = "--never-began"
_MOST_WORDS = 1 << 16
_KNOWN_THEN = ("role", "started_ns", "plugin_loaded", "clock", "phases_s")


def command_line(place: NodeContext, root: str) -> str:
    """What a person types on the node, once the storage takes files again."""
    env = {
        env_names.JOB: place.job,
        env_names.RUN_DIR: str(place.run.path),
        env_names.BEGAN: os.environ.get(env_names.BEGAN, ""),
        "SLURMD_NODENAME": place.node,
        "RLPROF_NODE_ROOT": root,
        "PYTHONPATH": import_path(),
    }
    return shlex.join(
        [
            "env",
            *(f"{name}={value}" for name, value in env.items()),
            sys.executable,
            "-m",
            "rlprof_ops.supervisor.salvage",
        ]
    )


def salvage(folder: Path, run: Path, node: str, job: str, *, seconds: float, nodes: int = 1) -> bool:
    """Drain what is left of `job` in `folder`; True when all of it is in the run folder, now or since the
    node's own end. `nodes`: how many the job has.

    Raises OSError when the run folder cannot be written.
    """
    if reason := _not_there(folder):
        return _came_home_before(folder, run, node, reason)
    started_ns = time.time_ns()
    budget = Budget(seconds)
    sequence = DrainSequence(folder, run, node, job, gate_first_s=0, output_dir=_output_dir(folder))
    for step in (*sequence.before_ray_stops(), *sequence.after_ray_stopped()):
        step.run(budget.share(step.name), budget.share(step.name))
    syncer = Syncer(folder, run, node, log=print, nodes=nodes)
    report = last_pass(syncer, budget.share("last_sync"))
    record_pass(folder, report)
    syncer.close()
    facts = {
        "job": job,
        "started_ns": started_ns,
        "ended_ns": time.time_ns(),
        "clean": report.complete,
        "salvaged": True,
        "plugin_loaded": folders.NodeFolder(folder).plugin_marker.exists(),
    }
    _put_kept(folder, run, node, facts)
    record = sequence.write_record(facts)
    if record["cleared"]:
        shutil.rmtree(folders.NodeFolder(folder).keep, ignore_errors=True)
        sequence.clear()
    return bool(record["cleared"])


def _output_dir(folder: Path) -> Folders:
    """Where the request wants copies, as the supervisor that was killed had it."""
    with contextlib.suppress(RlprofError):
        if text := NodeState.load(folder).request:
            return folder_of(request_from_json(text, "the node's state"), Path.cwd())
    return ""


def _not_there(folder: Path) -> str:
    """Why `folder` holds nothing to bring home; empty when it is this user's folder."""
    try:
        found = folder.lstat()
    except OSError as error:
        return f"{folder} is not there ({error.strerror})"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is no folder"
    return "" if found.st_uid == os.getuid() else f"{folder} belongs to user {found.st_uid}"


def _came_home_before(folder: Path, run: Path, node: str, reason: str) -> bool:
    """Without the node's folder all depends on its record. One that is missing is written, with the reason,
    where the driver had begun: what is missing of the node is missing for this.
    """
    with folders.pinned_run(run, folder).open() as tree:
        try:
            return json.loads(tree.read(f"nodes/{node}.json")).get("cleared") is True
        except FileNotFoundError:
            pass
        except (ValueError, AttributeError):
            return False
        record = _run_record(tree)
        cause = foreign.an_object(record.get("end")).get("cause")
        has_begun = bool(foreign.an_object(record.get("driver")).get("started_ns"))
        if not has_begun and cause in (EndCause.STARTUP_FAILED, *SIGNAL_EXIT) and record.get("head") == node:
            return True  # it never made its folder, or nothing was begun in it
        gone = (
            f"{reason}: what was not copied yet went with it. RLPROF_NODE_ROOT={str(folder.parent)!r} has to"
            " be a folder of the host that outlives a step, not a container's own /tmp"
        )
        print(f"rlprof: salvage: node {node}: {gone}", file=sys.stderr)
        if has_begun:
            facts = {"node": node, "role": "worker", "clean": False, "cleared": False, "gone": gone}
            tree.write_atomic(f"nodes/{node}.json", (json.dumps({"schema": SCHEMA, **facts}) + "\n").encode())
    return False


def _run_record(tree: ContainedDir) -> dict[str, Any]:
    """run.json; {} where it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return foreign.an_object(foreign.parse(tree.read("run.json")))
    return {}


def _put_kept(folder: Path, run: Path, node: str, facts: dict[str, Any]) -> None:
    """Take what the supervisor could not write into the run folder: the end of the job, and into `facts`
    what it knew of the node.
    """
    with ContainedDir(folder) as home, folders.pinned_run(run, folder).open() as tree:
        try:
            tree.write_atomic("run.json", home.read("keep/run.json"))
        except FileNotFoundError:
            pass
        try:
            kept = json.loads(home.read(f"keep/{node}.json"))
            facts |= {key: kept[key] for key in _KNOWN_THEN if key in kept}
        except (FileNotFoundError, ValueError, TypeError):
            pass


def finish_run_record(run: PinnedDir, code: str) -> None:
    """Write into run.json that the job is over, where the head's supervisor could not.

    Slurm kills the processes of a step one after the other: a supervisor that saw its driver killed, and was
    killed itself before its drain was over, took the first for the cause.
    """
    with run.open() as tree:
        try:
            data: dict[str, Any] = json.loads(tree.read("run.json"))
            killed_too = data["driver"]["signal"] == signal.SIGKILL and not data.get("ended_ns")
            if data["end"]["cause"] != EndCause.RUNNING and not killed_too:
                return
            detail = f"{STEP_KILLED}, exit code {code}"
            driver_ended_ns = data["driver"].get("ended_ns")
            if killed_too and isinstance(driver_ended_ns, int):
                before = duration(time.time_ns() - driver_ended_ns)
                detail += f"; its driver got SIGKILL {before} before this was written"
            data["end"] |= {"cause": str(EndCause.SIGNAL), "detail": detail}
            data["ended_ns"] = time.time_ns()
            tree.write_atomic("run.json", (json.dumps(data, indent=1) + "\n").encode())
        except (ValueError, KeyError, TypeError, FileNotFoundError):
            return


def record_bad_start(env: Mapping[str, str], settings: Settings, run: Path) -> None:
    """Write run.json where the head never began, with what srun said of its task, or for an order to end that
    came before a node was started; harvest makes a manifest of it.
    """
    nodes = tuple(env[env_names.NODES].split())
    root = Path(settings["RLPROF_NODE_ROOT"])
    folder = folders.node_folder(root, env[env_names.JOB], folders.job_mark(env))
    place = NodeContext(
        env[env_names.JOB], nodes[0], "", "", 0, 0, True, nodes, folders.RunFolder(run), folder, 0, ""
    )
    asked = asked_now(place.job, run, env)
    state = NodeState(place.folder.path / FOLDER, notes=asked.notes, started_ns=time.time_ns())
    record = RunRecord.of(place, settings, asked, state, BackgroundWriter())
    code, order = env.get(env_names.STEP_CODE, "?"), None
    told = f"control/ended_{nodes[0].replace('/', '_')}"
    with ContainedDir(run) as tree:
        try:
            words = tree.read(told, _MOST_WORDS).decode(errors="replace").split("\n")
        except OSError:
            words = [f"exit code {code}"]
            order = next((cause for cause, number in SIGNAL_EXIT.items() if str(number) == code), None)
        how = redact_text("; ".join(word.strip() for word in words if word.strip()))
        detail = f"node {nodes[0]}, the head, ended before it began: {how}"
        if order is not None:
            detail = str(ToldToEnd(order, "a node was started"))
        record.data["end"] |= {"cause": str(order or EndCause.STARTUP_FAILED), "detail": detail}
        record.data["ended_ns"] = time.time_ns()
        tree.write_atomic("run.json", (json.dumps(record.data, indent=1) + "\n").encode())


def main(env: Mapping[str, str], never_began: bool = False) -> int:
    """The exit code: 0 when everything came home."""
    log_to_output()
    settings = Settings.load(env)
    if never_began:
        record_bad_start(env, settings, Path(env[env_names.RUN_DIR]))
        return 0
    job, run = env[env_names.JOB], Path(env[env_names.RUN_DIR])
    node = env.get("SLURMD_NODENAME") or os.uname().nodename
    folder = folders.node_folder(Path(settings["RLPROF_NODE_ROOT"]), job, folders.job_mark(env)).path
    own = folders.pinned_run(run, folder)
    with contextlib.suppress(OSError):  # what is wrong is said when something is written
        own.open().close()
    seconds, nodes = float(settings.number("RLPROF_DRAIN_SECONDS")), len(env.get(env_names.NODES, "").split())
    whole = salvage(folder, run, node, job, seconds=seconds, nodes=nodes)
    finish_run_record(own, env.get(env_names.STEP_CODE, "?"))
    return 0 if whole else EXIT_FAILED


if __name__ == "__main__":
    try:
        sys.exit(main(os.environ, sys.argv[1:] == [NEVER_BEGAN]))
    except (RlprofError, OSError) as error:
        print(f"rlprof: salvage: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
