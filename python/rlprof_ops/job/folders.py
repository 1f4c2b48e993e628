"""Where a job's things are: the run folder on shared storage and the private folder on each node."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.errors import UsageError
from rlprof_ops.host import atomic
from rlprof_ops.host.contained_dir import PinnedDir
from rlprof_ops.job import attempt

_MOST_SECRET = 4096
MARKS = ("job", "run_folder")  # in a node folder: whose it is, and which run folder is this job's own
_MOST_NODE_FOLDERS = 20  # of jobs with one number on one node


def job_name(env: Mapping[str, str]) -> str:
    """`4711`, `4711.r1` after the first requeue, `local-<pid>` outside Slurm."""
    job = env.get("SLURM_JOB_ID")
    if not job:
        return f"local-{os.getpid()}"
    return attempt.name(job, int(env.get("SLURM_RESTART_COUNT") or 0))


@dataclass(frozen=True)
class RunFolder:
    """The run folder, `<BASE_LOG_DIR>/<job>-logs`."""

    path: Path

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def secrets(self) -> Path:
        return self.path / ".secrets"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def attach_env(self) -> Path:
        """What `scripts/attach.sh` reads, once the cluster is up."""
        return self.secrets / "attach.env"

    @property
    def request(self) -> Path:
        """What a `RayJob` is asked, with the secrets in it."""
        return self.secrets / "request.json"

    @property
    def token(self) -> Path:
        return self.secrets / "ray_token"

    def create(self) -> None:
        """Make it afresh. Raises FileExistsError: a folder that is there is another job's, or somebody
        else's trap where everybody may write.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self.logs, self.path / "nodes", self.path / "profiles"):
            folder.mkdir(mode=0o750)
        # Made with the job: whoever may write here can have windows opened in the workers.
        self.control.mkdir(mode=0o700)
        self.secrets.mkdir(mode=0o700)

    def write_token(self) -> None:
        """Make the job's token, which only this user may read. Raises FileExistsError when there is one."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self.token, flags, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))

    def check(self) -> None:
        """Raise UsageError unless the folder, and what decides over the job in it, is this user's alone."""
        for path, forbidden in ((self.path, 0o022), (self.secrets, 0o077), (self.control, 0o077)):
            _check_ours(path, forbidden, stat.S_ISDIR)

    def read_token(self) -> str:
        """The job's token. Raises UsageError when the folder or the file is not this user's alone, OSError
        when it cannot be read.
        """
        self.check()
        return self.read_secret(self.token.name).strip()

    def read_secret(self, name: str) -> str:
        """A file of `.secrets`. Raises UsageError when it, or a folder that it lies in, is not this user's
        alone, OSError when it cannot be read.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self.secrets, flags | os.O_DIRECTORY)
        try:
            fd = os.open(name, flags | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(fd, encoding="ascii", errors="replace") as file:
            _check(self.secrets / name, os.fstat(fd), 0o077, stat.S_ISREG)
            self.check()
            return file.read(_MOST_SECRET)


def _check_ours(path: Path, forbidden: int, is_kind: Callable[[int], bool]) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise UsageError(
            f"{path} is missing: BASE_LOG_DIR has to be on storage that all nodes share and, with a"
            " container, in MOUNTS."
        ) from None
    _check(path, found, forbidden, is_kind)


def _check(path: Path, found: os.stat_result, forbidden: int, is_kind: Callable[[int], bool]) -> None:
    owner, mode = found.st_uid, stat.S_IMODE(found.st_mode)
    if not is_kind(found.st_mode):
        raise UsageError(f"{path} is not what the job has made there (a link?): it is not used.")
    if owner != os.getuid():
        raise UsageError(
            f"{path} belongs to user {owner}, not to {os.getuid()}, who runs this: it is not used. Set"
            " BASE_LOG_DIR to a folder where only you may write."
        )
    if mode & forbidden:
        raise UsageError(
            f"{path} has mode {mode:04o}, which lets others in: it is not used. It was made with"
            f" {mode & ~forbidden:04o}; chmod it back and find out who changed it."
        )


@dataclass(frozen=True)
class NodeFolder:
    """This job's folder on this node, readable by its user alone. `mark` tells jobs of one number apart."""

    path: Path
    mark: str = ""

    @property
    def ray(self) -> Path:
        return self.path / "ray"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def live(self) -> Path:
        """Logs that the sync brings to `logs/` of the run folder every second."""
        return self.path / "live"

    @property
    def keep(self) -> Path:
        """Records that the run folder did not take; drain.clear spares it."""
        return self.path / "keep"

    @property
    def plugin_marker(self) -> Path:
        return self.path / "plugin_loaded"

    @property
    def _mark(self) -> Path:
        return self.path / MARKS[0]

    def is_this_jobs(self) -> bool:
        """Whether it is there and was made for this very job."""
        with contextlib.suppress(OSError, ValueError):
            found = self.path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                return self._mark.read_text(encoding="utf-8") == self.mark
        return False

    def create(self) -> None:
        """Make it, unless this job has. Raises OSError when the name is another job's or somebody else's."""
        if not self.is_this_jobs():
            try:
                self.path.mkdir(mode=0o700)
            except FileExistsError:
                raise PermissionError(f"{self.path} belongs to somebody else, or to another job") from None
            atomic.write(self._mark, self.mark, mode=0o600)
        self.path.chmod(0o700)
        for folder in self._made():
            folder.mkdir(exist_ok=True)

    def _made(self) -> tuple[Path, ...]:
        return (self.ray, self.tmp, self.logs, self.live, self.path / "profiles", self.path / "events")

    def let_go(self) -> None:
        """Remove it where the drain has spared nothing but records that the run folder has taken since, or
        where nothing was begun: the order to end came first."""
        for folder in (self.keep, *self._made()):
            with contextlib.suppress(OSError):  # not empty, or not there
                folder.rmdir()
        with contextlib.suppress(OSError):
            if {entry.name for entry in self.path.iterdir()} <= {*MARKS}:
                for name in MARKS:
                    (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty, or not there
            self.path.rmdir()


def node_folder(root: Path, job: str, mark: str) -> NodeFolder:
    """`<root>/rlprof-<uid>-<job>`, made or not.

    Where another job has left its folder under that name (numbers begin again, and two clusters can share a
    machine) or somebody else has taken it, the name gets `~2` and so on. Raises UsageError when none is free.
    """
    path = root / f"rlprof-{os.getuid()}-{job}"
    numbered = [path, *(path.with_name(f"{path.name}~{n}") for n in range(2, _MOST_NODE_FOLDERS + 1))]
    folders = [NodeFolder(each, mark) for each in numbered]
    for folder in folders:
        if folder.is_this_jobs():
            return folder
    for folder in folders:
        if not os.path.lexists(folder.path):
            return folder
    raise UsageError(
        f"{path} and {_MOST_NODE_FOLDERS - 1} more names beside it are taken by other jobs: remove those that"
        " have ended (rlprof clean), or set RLPROF_NODE_ROOT to another folder"
    )


def job_mark(env: Mapping[str, str]) -> str:
    """What tells this job from another of its number: its run folder, however it is written, and when it
    began.
    """
    return f"{Path(env[env_names.RUN_DIR])}\n{env.get(env_names.BEGAN, '')}\n"


def run_dir_of(node_dir: Path) -> Path | None:
    """The run folder of the job that made a node folder; None where its mark cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        run_dir = (node_dir / MARKS[0]).read_text(encoding="utf-8").partition("\n")[0]
        return Path(run_dir) if run_dir else None
    return None


def pinned_run(run_dir: str | os.PathLike[str], node_dir: str | os.PathLike[str]) -> PinnedDir:
    """The run folder as this node of the job saw it first."""
    return PinnedDir(run_dir, Path(node_dir) / MARKS[1])
