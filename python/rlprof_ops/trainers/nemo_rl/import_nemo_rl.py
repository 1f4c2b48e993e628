"""NeMo RL's variables read back into a request: `export` lines, launch lines, whole scripts."""

from __future__ import annotations

from rlprof_ops.request import load_request
from rlprof_ops.trainers.dialects import Imported
from rlprof_ops.trainers.shell_text import read_script


def import_(text: str, name: str) -> Imported:
    """Read assignments, exported or before a command, also those inside `COMMAND='…'`.

    Raises:
        RequestError: with NeMo RL's own rules, and ours.
    """
    env = {key: value for key, value in read_script(text, name).variables.items() if key.startswith("NRL_")}
    request = load_request(env=env)
    if request.captures:
        return Imported(request, request.notes)
    silent = "no NRL_NSYS_* or NRL_TORCH_PROFILE_* variable is set: nothing is profiled"
    return Imported(request, (*request.notes, silent), found=any("PROFILE" in k or "NSYS" in k for k in env))
