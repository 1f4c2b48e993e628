"""A stand-in for rocprofiler-systems' Python front end, for machines without an AMD GPU.

It has the real one's rules, as far as a launcher meets them: the bash script's own choice of interpreter and
its unquoted `eval`; the options and their arity; a script after `--`; exit code 0 whatever the script does, 2
for an unknown option; names from OUTPUT_PATH, OUTPUT_PREFIX and USE_PID; a metadata file with the whole
environment; recording only between start_trace and stop_trace when INIT_ENABLED is off. The "trace" is text:
one line a recorded section.
"""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = r"""#!/usr/bin/env bash
here=$(dirname "${BASH_SOURCE[0]}")
export PYTHONPATH=$(cd "$here/../@FOLDER@" && pwd):${PYTHONPATH}
: ${PYTHON_EXECUTABLE:=python3}
if [ ! -f ${PYTHON_EXECUTABLE} ]; then PYTHON_EXECUTABLE=$(basename ${PYTHON_EXECUTABLE}); fi
echo "##### rocprof-sys :: executing '${PYTHON_EXECUTABLE} -m rocprofsys $@'... #####"
eval ${PYTHON_EXECUTABLE} -m rocprofsys $@
"""

MAIN = r"""
import argparse, os, sys, traceback
from . import core

def truth(word):
    if word.lower() in ("yes", "true", "t", "y", "1"): return True
    if word.lower() in ("no", "false", "f", "n", "0"): return False
    raise argparse.ArgumentTypeError("Boolean value expected.")

def parse(words):
    parser = argparse.ArgumentParser("rocprofsys")
    add = parser.add_argument
    add("-v", "--verbosity", type=int)
    add("-b", "--builtin", action="store_true")
    add("-c", "--config"); add("-s", "--setup")
    add("-F", "--full-filepath", type=truth, nargs="?", const=True)
    add("--trace-c", type=truth, nargs="?", const=True)
    add("-a", "--annotate-trace", type=truth, nargs="?", const=True)
    add("--label", choices=("args", "file", "line"), nargs="*")
    for short, long in (("I", "function-include"), ("E", "function-exclude"), ("R", "function-restrict"),
                        ("MI", "module-include"), ("ME", "module-exclude"), ("MR", "module-restrict")):
        add("-" + short, "--" + long, nargs="+")
    return parser.parse_args(words)

def main():
    if "--" not in sys.argv:
        raise RuntimeError("Use '--' before the script")
    at = sys.argv.index("--")
    options, rest = parse(sys.argv[1:at]), sys.argv[at + 1:]
    while len(rest) > 1 and rest[0].startswith("-"):
        rest = rest[1:]
    script = os.path.realpath(rest[0])
    sys.argv[:] = [script, *rest[1:]]
    sys.path.insert(0, os.path.dirname(script))
    core.begin(options)
    try:
        with open(script, "rb") as source:
            code = compile(source.read(), script, "exec")
        exec(code, {"__file__": script, "__name__": "__main__", "__builtins__": __builtins__})
    except (KeyboardInterrupt, SystemExit):
        pass
    except Exception as error:
        traceback.print_exc()
        print("Exception -", error)

main()
core.finalize()
"""

CORE = r"""
import atexit, json, os, time
env = os.environ.get
state = {"on": False, "since": 0, "sections": [], "options": None, "done": False}

def begin(options):
    state["options"] = vars(options)
    if env("ROCPROFSYS_INIT_ENABLED", "true").lower() != "false":
        start()
    atexit.register(finalize)

def start():
    if not state["on"]:
        state.update(on=True, since=time.time_ns())

def stop():
    if state["on"]:
        state["sections"].append([state["since"], time.time_ns()])
        state["on"] = False

def finalize():
    if state["done"]:
        return
    state["done"] = True
    stop()
    folder = env("ROCPROFSYS_OUTPUT_PATH", "rocprof-sys-output")
    if env("ROCPROFSYS_TIME_OUTPUT", "true") != "false":
        folder = os.path.join(folder, time.strftime("%F_%H.%M"))
    os.makedirs(folder, exist_ok=True)
    prefix = env("ROCPROFSYS_OUTPUT_PREFIX", "").replace("%pid%", str(os.getpid())).replace("%p", str(os.getpid()))
    suffix = "" if env("ROCPROFSYS_USE_PID", "true") == "false" else f"-{os.getpid()}"
    with open(f"{folder}/{prefix}perfetto-trace{suffix}.proto", "w") as trace:
        json.dump({"pid": os.getpid(), "options": state["options"], "sections": state["sections"]}, trace)
    with open(f"{folder}/{prefix}metadata{suffix}.json", "w") as metadata:
        json.dump({"environment": dict(os.environ)}, metadata)
"""

USER = "from .core import start as start_trace, stop as stop_trace\n"


def install(prefix: Path, version: tuple[int, int] = sys.version_info[:2]) -> Path:
    """Install it below `prefix`, built for one Python version; returns the front end's script."""
    folder = f"lib/python{version[0]}.{version[1]}/site-packages"
    package = prefix / folder / "rocprofsys"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("__main__", MAIN), ("core", CORE), ("user", USER)):
        (package / f"{name}.py").write_text(text)
    (package / f"libpyrocprofsys.cpython-{version[0]}{version[1]}-x86_64-linux-gnu.so").touch()
    script = prefix / "bin" / "rocprof-sys-python"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT.replace("@FOLDER@", folder))
    script.chmod(0o755)
    return script
