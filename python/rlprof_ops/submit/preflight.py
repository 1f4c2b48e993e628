"""`python -m rlprof_ops.submit.preflight`: knobs and request, checked by ray.sub before a node is touched."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """0, with a line for each warning, or the exit code of the first kind of mistake, with all mistakes of
    that kind in one message.
    """
    if sys.version_info < (3, 10):  # noqa: UP036  a user's Python may be older than ours
        print(
            f"rlprof: {sys.executable} is Python {sys.version.split()[0]}; 3.10 or newer is needed.",
            file=sys.stderr,
        )
        return 2
    try:
        import yaml  # noqa: F401  the one package a node needs besides ray
    except ImportError:
        print(
            f"rlprof: {sys.executable} lacks PyYAML: install pyyaml there, or set RLPROF_VENV.",
            file=sys.stderr,
        )
        return 2
    from rlprof_ops.backends import Where
    from rlprof_ops.errors import RlprofError
    from rlprof_ops.host.gpus import has_gpu
    from rlprof_ops.job.knobs import Settings
    from rlprof_ops.request import load_request
    from rlprof_ops.request.check import check_request

    try:
        knobs = Settings.load(os.environ)
        request = load_request(env=os.environ)
        # A dedicated head may have no GPU while the workers have.
        gpu = None if os.environ.get("DEDICATED_RAY_HEAD") == "1" else has_gpu()
        warnings = (*request.notes, *check_request(request, Where(gpu=gpu), knobs.values))
    except RlprofError as error:
        print(f"rlprof: {error}", file=sys.stderr)
        return error.exit_code
    for text in warnings:
        print(f"rlprof: warning: {text}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
