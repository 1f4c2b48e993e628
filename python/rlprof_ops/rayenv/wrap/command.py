"""How a worker's command line is wrapped: what to change in a runtime-env context, and the text that bash
will run.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlprof_ops.backends import names, nsight
from rlprof_ops.rayenv.builtin.nsight_key import report_output
from rlprof_ops.rayenv.worker_selection import Identity
from rlprof_ops.rayenv.wrap.option_trial import TIMEOUT_S, timeout_s


class WrapError(Exception):
    """A selected worker cannot be profiled on this node and the request says to fail then."""


def wrap_context(
    context: Any, worker: str, rank: int | None, env: Mapping[str, str], refused: str | None = None
) -> bool:
    """Change `context` (py_executable, env_vars) for one worker by the request in `env`; whether nsys was
    wrapped around it.

    `refused` is why nsys cannot be used although it is there. Raises `WrapError` when nsys is missing or
    refused and a matching capture has `on_error: fail`.
    """
    text = env.get("RLPROF_REQUEST_JSON")
    everyone = env.get("RLPROF_ON_DEMAND", "").strip().lower() == "nsight"
    if not text and not everyone:
        return False
    from rlprof_ops.request import CaptureSpec, request_from_json

    specs = request_from_json(text).for_worker(worker, rank) if text else ()
    if everyone and not any(spec.backend == "nsight" for spec in specs):
        specs = (
            *specs,
            CaptureSpec(workers=(worker,)),
        )  # no window planned: `rlprof capture` may ask for one later
    if not specs:
        return False
    for spec in specs:
        context.env_vars.update(spec.env)
    context.env_vars.update({"RLPROF_WORKER": worker, "RLPROF_RANK": "" if rank is None else str(rank)})
    wanted = [spec for spec in specs if spec.backend == "nsight"]
    if not wanted:
        return False
    nsys = nsight.find(env)
    if nsys is None or refused:
        reason = refused or _nsys_is_missing(worker, rank, env)
        if any(spec.on_error == "fail" for spec in wanted):
            raise WrapError(reason)
        context.env_vars["RLPROF_NOT_WRAPPED"] = reason  # the worker's runtime writes the `failed` event
        return False
    if nsight.capture_range(wanted[0]):
        context.py_executable = profiled(context.py_executable, Identity(worker, rank), wanted[0], env, nsys)
    else:
        context.py_executable = wrapped(
            context.py_executable, session_prefix(worker, rank, env), wanted[0], env, nsys
        )
    return True


def session_prefix(worker: str, rank: int | None, env: Mapping[str, str]) -> str:
    """Session names begin with a letter and are unique on a machine that several jobs share."""
    return f"rlprof-{names.safe(env.get('RLPROF_JOB') or 'local')}-{names.safe_worker(worker)}-r{rank or 0}-"


# What both scripts below begin with. nsys 2023.4 sometimes ends on a busy machine before it has started the
# program ("Connection to Agent lost", "End of file"), or hangs there; Ray would then wait for a worker that
# never comes. The file `pending` holds the pid of nsys and is gone as soon as the program begins; whoever
# takes it away first decides, so a program that comes after its time does not run beside its successor.
_BEGIN = """\
begin() {
    (
        for ((second = 0; second < patience; second++)); do sleep 1; [ -e "$pending" ] || exit 0; done
        read -r pid < "$pending" && mv -- "$pending" "$pending.late" && kill -KILL "$pid"
    ) < /dev/null > /dev/null 2>&1 &
    /bin/sh -c 'echo "$$" > "$0"; exec "$@"' "$pending" "$@"
    code=$?
    [ -e "$pending" ] || [ -e "$pending.late" ] || exit "$code"
    said="ended with $code"
    [ -e "$pending" ] || said="hung for $patience s"
    rm -f -- "$pending" "$pending.late"
}
began='rm -- "$0" 2> /dev/null || exit 1; exec "$@"'
"""
# Run by bash as `rlprof <nsys> <patience> <session> <on_error> <number of launch options> options… the
# worker's own words…`.
_LAUNCH = (
    _BEGIN
    + """\
nsys=$1 patience=$2 session=$3 on_error=$4 count=$5; shift 5
options=("${@:1:count}"); shift "$count"
for try in 1 2 3; do
    pending=$(mktemp "${TMPDIR:-/tmp}/.rlprof-pending-XXXXXX") || exit 1
    export RLPROF_NSYS_SESSION=$session$$-$try
    begin "$nsys" launch "--session-new=$RLPROF_NSYS_SESSION" "${options[@]}" /bin/sh -c "$began" "$pending" "$@"
    echo "rlprof: nsys launch $said before the worker began (try $try of 3)" >&2
    sleep 0.5
done
[ "$on_error" = continue ] || exit "$code"
unset RLPROF_NSYS_SESSION
export RLPROF_NOT_WRAPPED="nsys launch $said before the worker began, three times; its own words are in the worker's log"
exec "$@"
"""
)


# The same for `nsys profile`, as `rlprof <nsys> <patience> <on_error> <number of its words> words… the
# worker's own words…`.
_PROFILE = (
    _BEGIN
    + """\
nsys=$1 patience=$2 on_error=$3 count=$4; shift 4
words=("${@:1:count}"); shift "$count"
for try in 1 2 3; do
    pending=$(mktemp "${TMPDIR:-/tmp}/.rlprof-pending-XXXXXX") || exit 1
    begin "$nsys" profile "${words[@]}" /bin/sh -c "$began" "$pending" "$@"
    echo "rlprof: nsys profile $said before the worker began (try $try of 3)" >&2
    sleep 0.5
done
[ "$on_error" = continue ] || exit "$code"
unset RLPROF_NSYS_RANGE
export RLPROF_NOT_WRAPPED="nsys profile $said before the worker began, three times; its own words are in the worker's log"
exec "$@"
"""
)


def wrapped(py_executable: str, session: str, spec: Any, env: Mapping[str, str], nsys: str) -> str:
    """`env … bash -c … nsys launch … <py_executable>` for the `bash -c "exec …"` of Ray's `exec_worker`.

    Every word is quoted but `py_executable`, which is shell text already (`uv run … python`). bash's own pid
    makes the session's name unique where Ray reuses one context for many workers.
    """
    options = nsight.split_options(spec).launch
    on_error = getattr(spec, "on_error", "continue")
    words = [
        "bash",
        "-c",
        _LAUNCH,
        "rlprof",
        nsys,
        _patience(env),
        session,
        on_error,
        str(len(options)),
        *options,
    ]
    return " ".join(["env", *_tmpdir(env), *map(shlex.quote, words), py_executable])


def profiled(py_executable: str, identity: Identity, spec: Any, env: Mapping[str, str], nsys: str) -> str:
    """`env … nsys profile --capture-range=… <py_executable>`: the report comes when the worker ends, one for
    each window.

    The name has the steps when there is one window; nsys numbers the reports of several.
    """
    settings, words = profile_settings_and_words(identity, spec, env)
    quoted = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    words = [
        "bash",
        "-c",
        _PROFILE,
        "rlprof",
        nsys,
        _patience(env),
        getattr(spec, "on_error", "continue"),
        str(len(words)),
        *words,
    ]
    return " ".join(["env", *quoted, *map(shlex.quote, words), py_executable])


def profile_settings_and_words(
    identity: Identity, spec: Any, env: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The variables and the words of `nsys profile` for one process; the folder of its report exists
    afterwards.
    """
    opened_by = nsight.capture_range(spec) or "none"
    windows = spec.windows()
    counted = None if spec.each == "phase" or any(window.stop is None for window in windows) else len(windows)
    named = windows[0] if counted == 1 else None
    folder = Path(env.get("RLPROF_RUN_DIR") or "rlprof-profiles").absolute() / names.report_folder(
        "nsight", identity.worker or "", identity.rank
    )
    output = report_output(None, identity, named, env, folder)
    os.makedirs(os.path.dirname(output), mode=0o700, exist_ok=True)
    settings = {"RLPROF_NSYS_RANGE": opened_by}
    if env.get("RLPROF_NODE_DIR"):
        settings["TMPDIR"] = os.path.join(env["RLPROF_NODE_DIR"], "tmp")
        os.makedirs(settings["TMPDIR"], mode=0o700, exist_ok=True)
    if opened_by == "nvtx":
        settings["NSYS_NVTX_PROFILER_REGISTER_ONLY"] = "0"  # else only registered strings open a range
    return settings, [*nsight.profile_words(spec, counted), "-o", output]


def _patience(env: Mapping[str, str]) -> str:
    """Whole seconds that nsys has to start the worker: what a trial of its options has, and no less than
    usual.
    """
    return str(round(max(TIMEOUT_S, timeout_s(env))))


def _tmpdir(env: Mapping[str, str]) -> list[str]:
    node_dir = env.get("RLPROF_NODE_DIR")
    if not node_dir:
        return []
    tmp = os.path.join(node_dir, "tmp")
    os.makedirs(tmp, mode=0o700, exist_ok=True)
    return [f"TMPDIR={shlex.quote(tmp)}"]


def _nsys_is_missing(worker: str, rank: int | None, env: Mapping[str, str]) -> str:
    node = env.get("RLPROF_NODE") or socket.gethostname()
    return (
        f"no nsys on node {node} for worker {worker!r} rank {rank}: {nsight.why_missing(env)}. Install"
        " nsight-systems-cli there (or in the container), set RLPROF_NSYS to it, or set `on_error: continue`"
        " in the request to train unprofiled"
    )
