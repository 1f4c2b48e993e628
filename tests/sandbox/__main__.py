"""The sandbox by hand: python -m tests.sandbox up | down | status | list | run | exec | kill-node |
start-node | fill | …
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from tests.sandbox.api import Sandbox
from tests.sandbox.context import environment
from tests.sandbox.spec import DESCRIPTIONS, SandboxError, Spec

DEFAULT_NAME = "sandbox"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sandbox",
        description="A real Slurm of several nodes on this machine.",
        epilog=(
            "example: python -m tests.sandbox up --nodes 3; python -m tests.sandbox run -- srun -N3 hostname;"
            " python -m tests.sandbox down"
        ),
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=DEFAULT_NAME, help="which sandbox (default: %(default)s)")
    up = commands.add_parser("up", parents=[named], help="bring a sandbox up; it stays until `down`")
    defaults = Spec(DEFAULT_NAME)
    for option, meaning in DESCRIPTIONS.items():
        if option != "name":
            value = getattr(defaults, option)
            up.add_argument(
                f"--{option.replace('_', '-')}",
                type=type(value),
                default=value,
                help=f"{meaning} (default: {value!r})",
            )
    up.add_argument(
        "--timeout-s",
        type=float,
        default=60,
        help="give up, and take everything away, after so many seconds (default: %(default)s)",
    )
    commands.add_parser("list", help="the sandboxes that are up")
    for command, meaning in {
        "down": "take a sandbox away, whatever is left of it",
        "status": "its nodes, jobs, addresses and paths",
        "fill": "make the shared folder full",
        "readonly": "make the shared folder read-only on all nodes",
        "vanish": "put an empty folder in the shared folder's place on all nodes",
        "restore": "undo fill, readonly, vanish and hang",
    }.items():
        commands.add_parser(command, parents=[named], help=meaning)
    for command, meaning in {
        "run": "run a command as on the login node",
        "exec": "run a command inside a node",
        "kill-node": "end a node with all its processes, as a power cut does",
        "start-node": "start a killed node again",
    }.items():
        sub = commands.add_parser(command, parents=[named], help=meaning)
        if command == "exec":
            sub.add_argument("--node", required=True, help="n1, n2, … or login")
        if command in ("run", "exec"):
            sub.add_argument("--user", help="run as this user (default: root)")
            sub.add_argument("--cwd", help="working folder (default: the shared folder)")
            sub.add_argument("argv", nargs="+", metavar="-- CMD", help="the command")
        else:
            sub.add_argument("node", help="n1, n2, …")
    return parser


def _up(options: argparse.Namespace) -> int:
    began = time.monotonic()
    fields = {option: getattr(options, option) for option in DESCRIPTIONS}
    sandbox = Sandbox.up(detached=True, timeout_s=options.timeout_s, **fields)
    print(
        f"sandbox '{sandbox.name}' is up after {time.monotonic() - began:.1f} s: {', '.join(sandbox.nodes)};"
        f" shared folder {sandbox.shared}"
    )
    return 0


def _status(sandbox: Sandbox) -> int:
    states = sandbox.node_states()
    print(f"sandbox '{sandbox.name}', shared folder {sandbox.shared}")
    for node in sandbox.nodes:
        running = sandbox.processes(node)
        print(
            f"  {node}  {sandbox.address(node):<12} {states.get(node, '?'):<6} {len(running)} processes  /tmp"
            f" is {sandbox.tmp(node)}"
        )
    print(sandbox.run(["squeue"]).stdout, end="")
    return 0


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    if options.command == "up":
        return _up(options)
    if options.command == "list":
        print("\n".join(Sandbox.names()) or "no sandbox is up")
        return 0
    if options.command == "down":
        Sandbox(Spec(options.name)).down()
        print(f"sandbox '{options.name}' is down")
        return 0
    sandbox = Sandbox.attach(options.name)
    if options.command == "status":
        return _status(sandbox)
    if options.command in ("run", "exec"):
        node = getattr(options, "node", "login")
        argv = sandbox.argv(node, options.argv, cwd=options.cwd, user=options.user)
        os.execvpe(argv[0], argv, environment(options.user))
    if options.command in ("kill-node", "start-node"):
        getattr(sandbox, options.command.replace("-", "_"))(options.node)
    else:
        getattr(sandbox, options.command)()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (SandboxError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")
