"""What leads a person into the running cluster: the environment in a 0600 file, and the line to type."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from rlprof_ops import env_names
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
        if name in _NAMES or (name.startswith("RLPROF_") and name != env_names.REQUEST_JSON)
    ]
    lines = [f"export {name}={shlex.quote(env[name])}" for name in sorted(names)]
    data = ("\n".join(lines) + "\n").encode("utf-8", errors="replace")
    with place.pinned_run().open() as run:
        run.write_atomic(f"{place.run.secrets.name}/attach.env", data, mode=0o600)
