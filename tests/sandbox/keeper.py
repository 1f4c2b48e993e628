"""The one host process of a sandbox: brings its boxes up, keeps them, answers on a socket, and takes
everything away.

usage (by Sandbox.up only): python -m tests.sandbox.keeper SANDBOX_DIR LOCK_FD LIFELINE_FD|-1 TIMEOUT_S
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.sandbox import box as boxes
from tests.sandbox import store
from tests.sandbox.spec import LOGIN, SandboxError, Spec, gres_conf, hosts_file, slurm_conf
from tests.waits import poll

IDLE_POLL_S = 0.05


class Keeper:
    def __init__(self, spec: Spec, timeout_s: float) -> None:
        self.spec = spec
        self.deadline = time.monotonic() + timeout_s
        self.boxes: dict[str, boxes.Box] = {}
        self._starting: dict[str, boxes.Starting] = {}

    def up(self) -> None:
        """From an empty folder to all nodes idle; raises SandboxError when that takes too long."""
        self._write_files()
        _call(
            [
                "mount",
                "-t",
                "tmpfs",
                "-o",
                f"size={self.spec.shared_mb}m,mode=1777",
                f"rlprof-{self.spec.name}",
                str(self.spec.shared),
            ]
        )
        self._start((LOGIN, *self.spec.node_names))
        self._wait_idle()

    def start_node(self, name: str) -> None:
        if name not in self.spec.node_names:
            raise SandboxError(
                f"no node '{name}' in sandbox '{self.spec.name}' (there are"
                f" {', '.join(self.spec.node_names)})"
            )
        if name in self.boxes and self.boxes[name].alive():
            raise SandboxError(f"node '{name}' is up already")
        self.deadline = time.monotonic() + 90
        self._start((name,))

    def kill_node(self, name: str) -> None:
        if name not in self.boxes or name == LOGIN:
            raise SandboxError(
                f"no node '{name}' in sandbox '{self.spec.name}' (there are"
                f" {', '.join(self.spec.node_names)})"
            )
        self.boxes[name].kill()
        self._starting[name].process.wait(60)

    def down(self) -> None:
        for starting in self._starting.values():
            if starting.name in self.boxes:
                self.boxes[starting.name].kill()
            else:
                starting.process.kill()
        for starting in self._starting.values():
            starting.process.wait(60)
        with store.base_lock():
            store.remove(self.spec.dir)

    def _write_files(self) -> None:
        spec = self.spec
        for folder in (
            "etc",
            "hosts",
            "dev",
            "munge",
            "ctl/state",
            "boxes",
            "shared",
            *(f"nodes/{n}/spool" for n in spec.node_names),
        ):
            (spec.dir / folder).mkdir(parents=True)
        for node in spec.node_names:
            (spec.dir / "nodes" / node / "tmp").mkdir()
            (spec.dir / "nodes" / node / "tmp").chmod(0o1777)
        for name in (LOGIN, *spec.node_names):
            (spec.dir / "hosts" / name).write_text(hosts_file(spec, name))
        (spec.dir / "resolv.conf").write_text("")
        (spec.dir / "etc" / "slurm.conf").write_text(slurm_conf(spec))
        (spec.dir / "etc" / "gres.conf").write_text(gres_conf(spec))
        for number in range(spec.gpus):
            os.mknod(spec.dir / "dev" / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        key = spec.dir / "munge" / "key"
        key.touch(0o400)
        key.write_bytes(os.urandom(128))
        _call(["chown", "-R", "munge:munge", str(key.parent)])
        key.parent.chmod(0o755)

    def _start(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._starting[name] = boxes.Starting(self.spec, name, "login" if name == LOGIN else "node")
        for name in names:
            self.boxes[name] = self._starting[name].ready(self.deadline)
        store.write_state(self.spec.dir, self.boxes)
        self._connect(names)
        for name in names:
            self._starting[name].go()

    def _connect(self, names: tuple[str, ...]) -> None:
        """Gives each box its address: the login box carries the bridge, a node hangs on it by a veth pair."""
        fabric = []
        for name in names:
            address = f"addr add {self.spec.address(name)}/24 dev"
            if name == LOGIN:
                fabric += ["link add br0 type bridge", f"{address} br0", "link set br0 up"]
            else:
                pid = self.boxes[name].pid
                fabric += [
                    f"link add veth-{name} type veth peer name eth0 netns {pid}",
                    f"link set veth-{name} master br0 up",
                ]
        _ip(self.boxes[LOGIN], fabric)
        for name in names:
            if name != LOGIN:
                _ip(self.boxes[name], [f"addr add {self.spec.address(name)}/24 dev eth0", "link set eth0 up"])

    def _wait_idle(self) -> None:
        wanted = {f"{node}=idle" for node in self.spec.node_names}

        def states() -> tuple[bool, str]:
            answer = subprocess.run(
                [*self.boxes[LOGIN].enter(), "sinfo", "-h", "-N", "-o", "%N=%t"],
                capture_output=True,
                text=True,
                timeout=45,
                check=False,
            )
            seen = " ".join(answer.stdout.split()) or answer.stderr.strip()
            idle = answer.returncode == 0 and set(answer.stdout.split()) == wanted
            for name in () if idle else self.boxes:
                if fatal := store.fatal_line(self.spec.dir, name):
                    raise SandboxError(f"{name}: {fatal}")
            return idle, seen

        left_s = self.deadline - time.monotonic()
        idle, seen = poll(states, left_s, IDLE_POLL_S, enough=lambda found: found[0])
        if not idle:
            raise SandboxError(f"not all nodes idle in time; sinfo says: {seen}")


def _call(argv: list[str], text: str | None = None) -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SandboxError(f"{' '.join(argv)} failed: {(done.stderr or done.stdout).strip()}")


def _ip(box: boxes.Box, commands: list[str]) -> None:
    if commands:
        _call(["nsenter", "-t", str(box.pid), "-n", "--", "ip", "-batch", "-"], "\n".join(commands) + "\n")


def _answer(keeper: Keeper, connection: socket.socket) -> bool:
    """Serves one request; False when the sandbox is to go down."""
    connection.settimeout(30)
    request = json.loads(connection.makefile().readline() or "{}")
    reply: dict[str, Any] = {"ok": True}
    try:
        if request.get("do") == "down":
            return False
        {"start-node": keeper.start_node, "kill-node": keeper.kill_node}[request["do"]](request["node"])
    except (SandboxError, KeyError, subprocess.SubprocessError) as error:
        reply = {"error": str(error)}
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(reply).encode() + b"\n")
    return True


def _serve(keeper: Keeper, server: socket.socket, lifeline: int) -> socket.socket | None:
    """Answers until `down` is asked (returns who asked) or the lifeline ends."""
    watched: list[Any] = [server] + ([lifeline] if lifeline >= 0 else [])
    while True:
        ready = select.select(watched, [], [])[0]
        if lifeline in ready:
            return None
        connection = server.accept()[0]
        try:
            if not _answer(keeper, connection):
                return connection
        except (OSError, ValueError):
            pass
        connection.close()


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main(argv: list[str]) -> int:
    where, lifeline, timeout_s = Path(argv[0]), int(argv[2]), float(argv[3])

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    keeper = Keeper(Spec.from_json((where / "spec.json").read_text()), timeout_s)
    asker: socket.socket | None = None
    code = 1
    try:
        (where / "keeper.json").write_text(json.dumps([os.getpid(), boxes.start_time(os.getpid())]))
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(where / "control"))
        (where / "control").chmod(0o600)
        server.listen()
        keeper.up()
        _say({"boxes": {name: dataclasses.asdict(box) for name, box in keeper.boxes.items()}})
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        asker = _serve(keeper, server, lifeline)
        code = 0
    except (SandboxError, OSError, subprocess.SubprocessError) as error:
        # A broken pipe is an error too: whoever asked for the sandbox is gone, so it must go.
        with contextlib.suppress(OSError):
            _say({"error": f"{error}\n{store.tails(where)}"})
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        keeper.down()
        if asker is not None:
            with contextlib.suppress(OSError):
                asker.sendall(b'{"ok": true}\n')
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
