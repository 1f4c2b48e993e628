"""Inside Ray's runtime-env agent: the plugin that wraps selected workers, and how a job registers it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rlprof_ops import env_names

PLUGIN_CLASS = "rlprof_ops.rayenv.plugin.RlprofPlugin"
PRIORITY = 90
KEY = "rlprof"


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
    import os
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


def load_problem() -> str | None:
    """Why Ray in this very process does not load our plugin as `RAY_RUNTIME_ENV_PLUGINS` says; None when it
    does.

    Imports ray. The test leaves no marker: that is for the agent of a node to leave.
    """
    import os

    folder = os.environ.pop(env_names.NODE_DIR, None)
    try:
        from ray._private.runtime_env.plugin import RuntimeEnvPluginManager

        return None if KEY in RuntimeEnvPluginManager().plugins else "Ray knows nothing of it"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if folder is not None:
            os.environ[env_names.NODE_DIR] = folder
