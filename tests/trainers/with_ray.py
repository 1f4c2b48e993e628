"""Runs a command with a Ray of its own: with_ray.py [--num-cpus N] [--num-gpus N] -- COMMAND ...

The command finds it through RAY_ADDRESS; Ray's folder is a private, short one below /tmp (a socket's path
must not exceed 107 bytes), removed at the end. The exit code is the command's. SIGTERM and SIGINT go to the
command, and Ray ends after it.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile

TRIES = 5


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-cpus", type=int, default=16)
    parser.add_argument("--num-gpus", type=int, default=1)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    wanted = parser.parse_args()
    command = wanted.command[1:] if wanted.command[:1] == ["--"] else wanted.command
    os.environ.pop("RAY_ADDRESS", None)
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp", ignore_cleanup_errors=True) as folder:
        address = _start(wanted.num_cpus, wanted.num_gpus, folder)
        try:
            return _run(command, address)
        finally:
            import ray

            ray.shutdown()


def _start(num_cpus: int, num_gpus: int, folder: str) -> str:
    """Starts Ray, returns its address; tried again, for on a busy machine it can miss Ray's limit of 30 s."""
    import ray

    for attempt in range(1, TRIES + 1):
        try:
            context = ray.init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=False,
                log_to_driver=False,
                _temp_dir=os.path.join(folder, str(attempt)),
            )
            return context.address_info["gcs_address"]
        except Exception as error:
            print(f"with_ray: try {attempt} of {TRIES}: {error}", file=sys.stderr, flush=True)
            _end_children()
    raise SystemExit("with_ray: Ray did not start")


def _end_children() -> None:
    """Ends what a failed start has left; all of it is below this process."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=10)


def _run(command: list[str], address: str) -> int:
    process = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": address})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: process.send_signal(number))
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
