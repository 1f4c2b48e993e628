"""Run by every Python of a job before its program: adapters wait for the trainer's modules, nothing else
changes.

`RLPROF_ADAPTERS=0` turns it off. A `sitecustomize` further down the path is run as if this one were not
there. Nothing here may raise: Python would print it over the trainer's own output. Any Python of a container
may meet this file, a 2.7 too: it is written in what all of them read, and does nothing before 3.10.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _lead_or_not():  # type: () -> None
    """A Ray worker never leads the job, also where the driver gives its whole environment to the job's
    runtime env (NeMo RL): as a leader it would tell steps of its own, and nobody would open its windows.
    What `ray job submit` starts leads: it is a driver that an actor of Ray's starts, so that it does not get
    COMMAND's variables. Ray gives it, and no worker, the variable that is looked at here."""
    submitted = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    if not any(os.path.basename(word) == "default_worker.py" for word in sys.orig_argv):
        if submitted and "RLPROF_NODE_DIR" in os.environ:
            os.environ.setdefault("RLPROF_LEADS", "1")
    elif submitted:  # the driver's whole environment: what this worker starts is no driver either
        os.environ["RLPROF_LEADS"] = "0"
    else:
        os.environ.pop("RLPROF_LEADS", None)


def _wrap_this_rank():  # type: () -> None
    """A rank that a launcher under `rlprof wrap` has started begins again under its profiler."""
    if "RLPROF_WRAP_RANKS" in os.environ:
        from rlprof_ops.runtime.process import launchers

        launchers.wrap_this_rank()


def _follow_imports():  # type: () -> None
    if os.environ.get("RLPROF_ADAPTERS", "1") == "0":
        return
    from rlprof_ops import trainers
    from rlprof_ops.trainers import import_hooks

    import_hooks.install(trainers.followed(os.environ))


def _run_the_next_one():  # type: () -> None
    """Import the `sitecustomize` that this one hides, under the same name."""
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    if sys.version_info < (3, 5):
        import imp

        hidden = sys.modules.pop("sitecustomize", None)  # `imp` loads into the module that is there
        try:
            file, path, description = imp.find_module("sitecustomize", others)
        except ImportError:
            sys.modules["sitecustomize"] = hidden
            return
        imp.load_module("sitecustomize", file, path, description)
        return
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if sys.version_info >= (3, 10):
    try:
        _wrap_this_rank()
        _lead_or_not()
        _follow_imports()
    except ImportError:  # a Python whose path does not lead to the package
        pass
    except Exception as error:  # the trainer's program has to start whatever happens here
        sys.stderr.write("[rlprof] no adapters in this process: {}: {}\n".format(type(error).__name__, error))
_run_the_next_one()
