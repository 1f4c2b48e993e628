"""What leads a person into the running cluster: the environment in a 0600 file, and the line to type."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from rlprof_ops.job.knobs import home
from rlprof_ops.job.node_context import NodeContext

_NAMES = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "PYTHONPATH", "PATH", "CONTAINER", "MOUNTS")


def command_line(place: NodeContext) -> str:
    return shlex.join(["bash", str(home() / "scripts" / "attach.sh"), str(place.run.path)])


def write(place: NodeContext, env: Mapping[str, str]) -> None:
    """`.secrets/attach.env`: shell assignments that scripts/attach.sh reads, beside the token they point
    to.
    """
    names = [
        name
        for name in env
        if name in _NAMES or (name.startswith("RLPROF_") and name != "RLPROF_REQUEST_JSON")
    ]
    lines = [f"export {name}={shlex.quote(env[name])}" for name in sorted(names)]
    path = place.run.secrets / "attach.env"
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
