"""Inside Ray's runtime-env agent: the plugin that wraps selected workers, and how a job registers it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from rlprof_ops import env_names

PLUGIN_CLASS = "rlprof_ops.rayenv.plugin.RlprofPlugin"
PRIORITY = 90
KEY = "rlprof"
# Repairs Ray's installed nsight plugin: a link to scripts/ in a checkout, a copy in a wheel.
PATCH_SCRIPT = os.path.join(os.path.dirname(__file__), "patch_ray_nsight.sh")


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that make every `ray start` (and a local `ray.init`) of this environment load our plugin.

    Plugins that `env` registers already are kept; ours is added once.

    Raises:
        RlprofError: `RAY_RUNTIME_ENV_PLUGINS` in `env` is no JSON list of objects.
    """
    from rlprof_ops.errors import RlprofError

    text = (env or {}).get("RAY_RUNTIME_ENV_PLUGINS") or "[]"
    try:
        registered = json.loads(text)
        others = [entry for entry in registered if entry["class"] != PLUGIN_CLASS]
    except (ValueError, TypeError, KeyError):
        raise RlprofError(
            f"RAY_RUNTIME_ENV_PLUGINS is {text!r}: a JSON list such as "
            '[{"class": "package.module.Class", "priority": 10}] is expected; unset it or repair it'
        ) from None
    return {"RAY_RUNTIME_ENV_PLUGINS": json.dumps([*others, {"class": PLUGIN_CLASS, "priority": PRIORITY}])}


def check_import(
    env: Mapping[str, str] | None = None, python: str | None = None, timeout_s: float = 60.0
) -> str | None:
    """Why the plugin would not load in a fresh `python` under `env`; None when it loads.

    Run it before `ray start`: a plugin that fails to import takes the agent and with it the raylet down,
    which shows as "current node timed out during startup" (`RuntimeEnvPluginManager.__init__`,
    ray/_private/runtime_env/plugin.py).
    """
    import sys

    from rlprof_ops.host import command

    code = (
        "from ray._private.runtime_env.plugin import RuntimeEnvPluginManager as M; "
        f"print('rlprof plugin ok' if {KEY!r} in M().plugins else 'not registered')"
    )
    full = dict(os.environ if env is None else env)
    full.update(environment(full))
    full.pop(env_names.NODE_DIR, None)  # the marker in it is for the node's agent to leave, not for a test
    done = command.run([python or sys.executable, "-c", code], timeout_s, full)
    if done.returncode == 0 and "rlprof plugin ok" in done.stdout:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def patch_installed(python: str, env: Mapping[str, str], timeout_s: float = 120.0) -> str:
    """Repair the nsight plugin of the Ray that `python` imports under `env`, in the installed file; what was
    done, with the file.

    Raises:
        RlprofError: the script's reason. The file is as it was.
    """
    from rlprof_ops.errors import RlprofError
    from rlprof_ops.host import command

    done = command.run(["bash", PATCH_SCRIPT, "--python", python], timeout_s, env)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    said = lines[-1] if lines else f"exit code {done.returncode}"
    if done.returncode:
        raise RlprofError(said.removeprefix("patch_ray_nsight: error: "))
    return said.removeprefix("patch_ray_nsight: ")
