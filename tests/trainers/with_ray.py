"""Runs a command with a Ray of its own: with_ray.py [--num-cpus N] [--num-gpus N] -- COMMAND ...

The command finds it through RAY_ADDRESS; Ray's folder is a private, short one below /tmp (a socket's path must not exceed 107
bytes), removed at the end. The exit code is the command's. SIGTERM and SIGINT go to the command, and Ray ends after it.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-cpus", type=int, default=16)
    parser.add_argument("--num-gpus", type=int, default=1)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    wanted = parser.parse_args()
    command = wanted.command[1:] if wanted.command[:1] == ["--"] else wanted.command
    os.environ.pop("RAY_ADDRESS", None)
    folder = tempfile.mkdtemp(prefix="rl", dir="/tmp")
    try:
        return _run(command, wanted.num_cpus, wanted.num_gpus, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[str], num_cpus: int, num_gpus: int, folder: str) -> int:
    import ray

    context = ray.init(address="local", num_cpus=num_cpus, num_gpus=num_gpus, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    try:
        address = context.address_info["gcs_address"]
        process = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": address})
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: process.send_signal(number))
        return process.wait()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
