"""The sandbox as a Python object: bring it up, run jobs, look inside, break it, heal it, take it down."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sandbox import box as boxes
from tests.sandbox import shared, store
from tests.sandbox.context import environment, opened, under_tmp, words
from tests.sandbox.spec import BASE, LOGIN, SandboxError, Spec
from tests.waits import poll

REPOSITORY = Path(__file__).resolve().parents[2]
TEST_USER = "rlprof-test"
POLL_S = 0.1
DOWN_DEADLINE_S = 90
FINAL = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
_DAEMONS = frozenset({"slurmd", "slurmctld", "slurmscriptd", "munged"})
_INIT_WAITS = "sleep infinity"


@dataclass(frozen=True)
class JobState:
    """How Slurm sees a job: state as `scontrol show job` says it, the script's exit code and the signal
    that ended it.
    """

    state: str
    exit_code: int
    signal: int
    nodes: str
    reason: str
    restarts: int
    fields: Mapping[str, str] = field(repr=False, default_factory=dict)


class Sandbox:
    """A sandbox that is up. Make one with `Sandbox.up()`, find one with `Sandbox.attach(name)`."""

    def __init__(
        self, spec: Spec, lifeline: int | None = None, keeper: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.spec = spec
        self._lifeline = lifeline
        self._keeper = keeper

    # Coming and going

    @classmethod
    def up(
        cls,
        nodes: int = 3,
        name: str | None = None,
        *,
        timeout_s: float = 150,
        detached: bool = False,
        **options: Any,
    ) -> Sandbox:
        """Brings a sandbox up and returns when every node is idle.

        `options` are the further fields of Spec. Unless detached it goes down when this process ends, however
        it ends. Raises SandboxError, with the ends of all logs, when it is not up in time; then nothing of it
        is left.
        """
        if os.getuid() != 0:
            raise SandboxError("the sandbox makes namespaces, bridges and mounts: it needs root")
        paths = [REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)]
        trainers = Path(os.environ.get("RLPROF_TRAINERS") or "~/.cache/rlprof-ops/trainers").expanduser()
        trainers.mkdir(parents=True, exist_ok=True)  # environments of tests/trainers; some may be built later
        paths.append(trainers)
        options = {"visible": under_tmp(paths), "opened": opened(paths), **options}
        spec = Spec(name=name or f"s{os.getpid()}-{secrets.token_hex(3)}", nodes=nodes, **options)
        lock = store.claim(spec)
        alive, lifeline = (-1, None) if detached else os.pipe()
        try:
            with (spec.dir / "keeper.log").open("wb") as log:
                keeper = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "tests.sandbox.keeper",
                        str(spec.dir),
                        str(lock),
                        str(alive),
                        str(timeout_s),
                    ],
                    cwd=REPOSITORY,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    pass_fds=[lock] if detached else [lock, alive],
                    start_new_session=True,
                )
        finally:
            os.close(lock)
            if not detached:
                os.close(alive)
        sandbox = cls(spec, lifeline, keeper)
        try:
            sandbox._await_keeper(timeout_s + 15)
        except BaseException:
            keeper.terminate()
            sandbox._forget()
            raise
        return sandbox

    def _await_keeper(self, timeout_s: float) -> None:
        assert self._keeper is not None and self._keeper.stdout is not None
        with self._keeper.stdout as stream:
            answered = select.select([stream], [], [], timeout_s)[0]
            answer = json.loads(stream.readline() or b"{}") if answered else {}
        if "boxes" not in answer:
            log = self.spec.dir / "keeper.log"
            why = (
                answer.get("error")
                or (log.read_text(errors="replace")[-2000:] if log.exists() else "")
                or "its keeper said nothing"
            )
            raise SandboxError(f"sandbox '{self.spec.name}' did not come up: {why}")

    @classmethod
    def attach(cls, name: str) -> Sandbox:
        """The sandbox of that name, brought up by anybody. Raises SandboxError when there is none."""
        folder = BASE / name
        if not (folder / "spec.json").is_file() or not store.held(folder):
            raise SandboxError(f"no sandbox '{name}' is up (up: {', '.join(cls.names()) or 'none'})")
        return cls(Spec.from_json((folder / "spec.json").read_text()))

    @staticmethod
    def names() -> list[str]:
        """The sandboxes that are up."""
        return [name for name in store.names() if store.held(BASE / name)]

    def down(self) -> None:
        """Takes everything away: processes, mounts, network, folder. Fine to call twice, and after the
        keeper was killed.
        """
        keeper = store.keeper(self.spec.dir)
        with contextlib.suppress(OSError):
            self._ask({"do": "down"}, timeout_s=DOWN_DEADLINE_S)
        self._forget(keeper)

    def _forget(self, keeper: boxes.Living | None = None) -> None:
        """Waits for the keeper's end, ends it when it hangs, and removes what it left."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self._keeper is not None:
            try:
                self._keeper.wait(DOWN_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait(DOWN_DEADLINE_S)
        elif keeper is not None and not keeper.gone_within(DOWN_DEADLINE_S):
            keeper.kill()
            keeper.gone_within(DOWN_DEADLINE_S)
        with store.base_lock():
            if self.spec.dir.exists():
                if store.held(self.spec.dir):
                    raise SandboxError(
                        f"sandbox '{self.name}' does not go down: a process still holds {self.spec.dir}/lock"
                    )
                store.remove(self.spec.dir)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.down()

    def _ask(self, request: dict[str, str], timeout_s: float) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(self.spec.dir / "control"))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(connection.makefile().readline() or "{}")
        if "error" in answer:
            raise SandboxError(answer["error"])

    # Where things are

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def shared(self) -> Path:
        """The shared folder: the same path here, on the login node and on every node."""
        return self.spec.shared

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.spec.node_names

    def address(self, node: str) -> str:
        return self.spec.address(node)

    def tmp(self, node: str) -> Path:
        """Where this machine sees a node's private /tmp; it outlives kill_node, as a disk does."""
        return self.spec.dir / "nodes" / node / "tmp"

    def files_in_tmp(self, node: str) -> list[Path]:
        """What a node's /tmp holds, but for the checkout and the Python that the sandbox shows there."""
        shown = {Path(path).parts[2] for path in self.spec.visible}
        return [path for path in self.tmp(node).iterdir() if path.name not in shown]

    def logs(self) -> str:
        """The ends of all daemons' logs."""
        return store.tails(self.spec.dir)

    def _box(self, name: str) -> boxes.Box:
        try:
            box = store.read_state(self.spec.dir)[name]
        except FileNotFoundError:
            raise SandboxError(f"sandbox '{self.name}' is not up") from None
        except KeyError:
            raise SandboxError(
                f"no node '{name}' in sandbox '{self.name}' (there are {LOGIN}, {', '.join(self.nodes)})"
            ) from None
        if not box.alive():
            raise SandboxError(f"node '{name}' of sandbox '{self.name}' is down")
        return box

    # Running things

    def argv(
        self,
        node: str,
        argv: Sequence[str | os.PathLike[str]],
        *,
        cwd: os.PathLike[str] | str | None = None,
        user: str | None = None,
    ) -> list[str]:
        """The host command line that runs `argv` inside a node ("login" is one)."""
        become = (
            ["setpriv", "--reuid", user, "--regid", str(pwd.getpwnam(user).pw_gid), "--init-groups"]
            if user
            else []
        )
        return [*self._box(node).enter(), *become, "env", "-C", os.fspath(cwd or self.shared), *words(argv)]

    def popen(self, node: str, argv: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str] | None = None,
              cwd: os.PathLike[str] | str | None = None, user: str | None = None, **options: Any) -> subprocess.Popen[Any]:  # fmt: skip
        """Starts a command inside a node and does not wait; `options` go to subprocess.Popen."""
        return subprocess.Popen(
            self.argv(node, argv, cwd=cwd, user=user),
            env=environment(user, env),
            start_new_session=True,
            **options,
        )

    def exec(self, node: str, argv: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str] | None = None, cwd: os.PathLike[str] | str | None = None,
             user: str | None = None, timeout: float = 120, check: bool = True, input: str | None = None) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Runs a command inside a node and returns its output as text.

        Raises SandboxError when it fails (unless check is False) or takes longer than `timeout` seconds.
        """
        process = self.popen(
            node,
            argv,
            env=env,
            cwd=cwd,
            user=user,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL,
        )
        command = " ".join(words(argv))
        try:
            out, err = process.communicate(input, timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            try:
                out, err = process.communicate(timeout=2)
            except subprocess.TimeoutExpired:
                out, err = "", "(a process it left in the background still holds its output)"
            if isinstance(error, subprocess.TimeoutExpired):
                raise SandboxError(
                    f"on {node}: {command}: not done after {timeout:g} s\n{out}{err}"
                ) from None
            raise
        if check and process.returncode != 0:
            raise SandboxError(f"on {node}: {command}: exit code {process.returncode}\n{out}{err}")
        return subprocess.CompletedProcess(words(argv), process.returncode, out, err)

    def run(self, argv: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command as on the login node; see `exec`."""
        return self.exec(LOGIN, argv, **options)

    # Jobs

    def sbatch(self, args: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str] | None = None, cwd: os.PathLike[str] | str | None = None,
               user: str | None = None, input: str | None = None) -> int:  # fmt: skip
        """Submits `sbatch <args>` (a script in `input` instead of a file, when given) and returns the job
        id.

        Unless `env` says otherwise a job of ray.sub harvests by itself: most tests look at what it left when
        it has ended.
        """
        env = {"RLPROF_HARVEST_JOB": "0", **(env or {})}
        done = self.run(["sbatch", "--parsable", *args], env=env, cwd=cwd, user=user, input=input)
        return int(done.stdout.strip().splitlines()[-1].split(";")[0])

    def job(self, job: int) -> JobState:
        """What `scontrol show job` says now."""
        shown = self.run(["scontrol", "-o", "show", "job", str(job)], timeout=60).stdout
        text = next(line for line in shown.splitlines() if line.startswith(f"JobId={job} "))
        words = dict(word.split("=", 1) for word in text.split() if "=" in word)
        code, _, number = words["ExitCode"].partition(":")
        return JobState(
            words["JobState"],
            int(code),
            int(number or 0),
            words.get("NodeList", ""),
            words.get("Reason", ""),
            int(words.get("Restarts", 0)),
            words,
        )

    def wait(self, job: int, timeout: float = 60, states: Iterable[str] = FINAL) -> JobState:
        """Waits until a job is in one of `states` (default: ended); raises SandboxError with the logs when
        it is not in time.
        """
        wanted = {states} if isinstance(states, str) else set(states)
        state = poll(lambda: self.job(job), timeout, POLL_S, enough=lambda state: state.state in wanted)
        if state.state not in wanted:
            raise SandboxError(
                f"job {job} is {state.state} ({state.reason}) on {state.nodes} after {timeout:g} s, not"
                f" {'/'.join(sorted(wanted))}\n{self.logs()}"
            )
        return state

    def processes(self, node: str, daemons: bool = False) -> list[boxes.Process]:
        """The processes of a node but its init and Slurm's own daemons (with `daemons`: all). Empty for a
        dead node.
        """
        box = store.read_state(self.spec.dir)[node]
        found = boxes.processes(box.pid_namespace) if box.alive() else []
        return (
            found
            if daemons
            else [p for p in found if not (p.pid == 1 or p.name in _DAEMONS or p.cmdline == _INIT_WAITS)]
        )

    def node_states(self) -> dict[str, str]:
        """Each node's state as sinfo says it, e.g. {"n1": "idle", "n2": "down*"}."""
        lines = self.run(["sinfo", "-h", "-N", "-o", "%N %t"], timeout=60).stdout.split("\n")
        return dict(line.split() for line in lines if line)

    def wait_nodes(
        self, state: str = "idle", nodes: Iterable[str] | None = None, timeout: float = 90
    ) -> None:
        """Waits until the nodes (default: all) are in a state of sinfo."""
        wanted = set(nodes or self.nodes)

        def reached(states: dict[str, str]) -> bool:
            return all(states.get(node) == state for node in wanted)

        states = poll(self.node_states, timeout, POLL_S, enough=reached)
        if not reached(states):
            raise SandboxError(
                f"nodes {states} after {timeout:g} s, wanted {', '.join(sorted(wanted))}"
                f" {state}\n{self.logs()}"
            )

    # Breaking and healing

    def kill_node(self, node: str, noticed: bool = False) -> None:
        """Ends a node at once with all its processes, as a power cut does.

        Slurm notices by itself, some slurmd_timeout to 30 s later; with `noticed` it is told at once, as by
        an operator.
        """
        self._ask({"do": "kill-node", "node": node}, timeout_s=60)
        if noticed:
            self.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=killed"])

    def start_node(self, node: str, timeout: float = 90) -> None:
        """Starts a killed node again, with the /tmp it had, and waits until it is idle."""
        self._ask({"do": "start-node", "node": node}, timeout_s=120)
        if shared.broken(self.spec):
            shared.cover(self.spec, {node: self._box(node)}, shared.broken(self.spec))
        self.wait_nodes("idle", [node], timeout)

    def fill(self, leave_bytes: int = 0) -> None:
        """Makes the shared folder full: writes fail with ENOSPC, on nodes and here."""
        shared.fill(self.spec, leave_bytes)

    def readonly(self) -> None:
        """Makes the shared folder read-only on all nodes (not here); files that are open and cwd-relative
        paths stay writable.
        """
        shared.cover(self.spec, self._alive(), "readonly")

    def vanish(self) -> None:
        """Puts an empty read-only folder in the shared folder's place on all nodes (not here), as when a
        mount is lost.
        """
        shared.cover(self.spec, self._alive(), "vanished")

    def hang(self) -> None:
        """Makes the shared folder hang on the nodes (not on the login node, nor here), as on a dead file
        server: no call returns. Needs need("fuse"); ends with this process.
        """
        shared.cover(self.spec, self._alive(), "hung")

    def restore(self) -> None:
        """Undoes fill, readonly, vanish and hang."""
        shared.restore(self.spec, self._alive())

    def heal(self, timeout: float = 120) -> None:
        """Ready for the next test: shared folder writable, no job, every node up and idle with an empty
        /tmp and /dev/shm.
        """
        self.restore()
        if jobs := self.run(["squeue", "-h", "-o", "%A"]).stdout.split():
            self.run(["scancel", "-f", "-s", "KILL", *jobs], check=False)
            self.run(["scancel", *jobs], check=False)
        for node, box in store.read_state(self.spec.dir).items():
            if not box.alive():
                self.start_node(node, timeout)
        left = poll(self._kill_all, timeout, POLL_S, enough=lambda found: not found)
        if left:
            raise SandboxError(f"processes that SIGKILL does not end: {left}")
        for node in self.nodes:
            self._clean(node)
        bad = [
            node
            for node, state in self.node_states().items()
            if state.rstrip("*") in ("down", "drain", "drng", "fail", "failg")
        ]
        if bad:
            self.run(["scontrol", "update", f"nodename={','.join(bad)}", "state=resume"], check=False)
        self.wait_nodes("idle", timeout=timeout)

    def _kill_all(self) -> list[boxes.Process]:
        """SIGKILL to every process of the nodes; those that were there. One that forks just then leaves a
        child that this look has not seen.
        """
        found = [process for node in self.nodes for process in self.processes(node)]
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.host_pid, signal.SIGKILL)
        return found

    def _clean(self, node: str) -> None:
        litter = [f"/tmp/{path.name}" for path in self.files_in_tmp(node)]
        litter += [
            f"/dev/shm/{name}" for name in self.exec(node, ["ls", "-A", "/dev/shm"]).stdout.splitlines()
        ]
        if litter:
            self.exec(node, ["rm", "-rf", "--", *litter])

    def _alive(self) -> dict[str, boxes.Box]:
        return {name: box for name, box in store.read_state(self.spec.dir).items() if box.alive()}
