"""What `rlprof wrap` leaves outside a job: a run folder with its run.json and, once CMD has ended, its
manifest.

All processes that one launcher starts behind `rlprof wrap` (srun's tasks, torchrun's ranks) are one run. Each
notes its beginning and end in run.json, and whoever ends last has seen the events of all.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof_ops import backends, env_names
from rlprof_ops.backends import report_names
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import atomic, foreign, processes
from rlprof_ops.host.contained_dir import FILE_MODE, FOLDER_MODE, ContainedDir
from rlprof_ops.job import attempt, run_json
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.rayenv.wrap.masking_progress import Progress, raised
from rlprof_ops.redact import binary_files, own_secrets
from rlprof_ops.runtime.process.worker_identity import DEFAULT_FOLDER
from rlprof_ops.window.output_dir import Folders, OutputDir
from rlprof_ops.window.report_file import exchange

if TYPE_CHECKING:
    from rlprof_ops.request import ProfileRequest

# What a launcher sets for each of the ranks that it starts as its own children.
_OF_A_LAUNCHER = (
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
)
_OWN = 0o600
_LOCK_S = 30.0  # for the others of the run
_INSIDE_S = 20.0  # for looking inside reports, while a launcher waits for us
_OPEN_S = 60.0  # for tools to open reports without their secrets; later ones only we look at


def environment(request: ProfileRequest | None, env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a run that begins here; {} in a job or in a run that another `rlprof wrap` leads, and
    where nothing is asked.
    """
    if not request or env.get(env_names.NODE_DIR) or env.get(env_names.JOB):
        return {}
    job = _name(env)
    folder = env.get(env_names.RUN_DIR) or os.path.join(DEFAULT_FOLDER, attempt.folder_name(job))
    return {env_names.JOB: job, env_names.RUN_DIR: os.path.abspath(folder)}


def _name(env: Mapping[str, str]) -> str:
    """`local-…`, the same for all that one launcher has started."""
    step = [env.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID")]
    if all(word.isdigit() for word in step):
        return f"local-{step[0]}-{step[1]}"
    first = os.getppid() if any(env.get(name) for name in _OF_A_LAUNCHER) else os.getpid()
    return f"local-{first}-{(processes.start_time(first) or 0) % 10**8}"


@dataclass(frozen=True)
class WrappedRun:
    """This process's part of a run. Nothing here raises: a manifest that cannot be had costs one line."""

    folder: Path
    job: str
    say: Callable[[str], None]
    output_dir: Folders = ""

    @property
    def _key(self) -> str:
        return f"{socket.gethostname()}:{os.getpid()}"

    def begin(self, argv: Sequence[str], request: ProfileRequest) -> bool:
        """Note in run.json that CMD begins; False where that cannot be written."""
        try:
            for folder in (self.folder, self.folder / "profiles", self.folder / "nodes"):
                folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            with self._record() as record:
                if record.get("job") != self.job:
                    unheard = list(_of_a_job_alone(request))
                    notes = [*request.notes, *self._of_another(record), *unheard]
                    for note in unheard:
                        self.say(note)
                    record.clear()
                    record |= run_json.beginning(
                        self.job, (), socket.gethostname(), shlex.join(argv), request, notes
                    )
                    record["driver"] |= {"name": os.path.basename(argv[0]), "started_ns": time.time_ns()}
                    record["processes"] = {}
                _processes(record)[self._key] = {"started_ns": time.time_ns(), "exit_code": None}
        except (OSError, RlprofError) as error:
            self.say(f"this run has no manifest: {self.folder}: {foreign.reason_of(error)}")
            return False
        return True

    def _of_another(self, record: Mapping[str, Any]) -> list[str]:
        before = foreign.text(record.get("job"))
        return [f"{self.folder} holds reports of an earlier run too: {before}"] if before else []

    def end(self, code: int) -> None:
        """Take secrets out of the reports, note CMD's exit code, list every window in the manifest, and say
        what is missing. Reports that came after their windows go to the output_dir.
        """
        try:
            self._mask()
        except (OSError, RlprofError) as error:
            self._not_masked(self.folder, error)
        try:
            with self._record() as record:
                known = _processes(record)
                known[self._key] = {**foreign.an_object(known.get(self._key)), "exit_code": code}
                ended = [each for key, each in known.items() if not _is_alive(key, foreign.an_object(each))]
                codes = [foreign.whole(foreign.an_object(each).get("exit_code")) for each in ended]
                failed = next((each for each in codes if each), 0)
                record["driver"] |= run_json.driver_end(failed)
                if len(ended) == len(known):
                    record["end"] |= {"cause": str(EndCause.DRIVER_EXIT)}
                    record["ended_ns"] = time.time_ns()
            with self._record():
                self._manifest()
        except (OSError, RlprofError) as error:
            self.say(f"this run has no manifest: {self.folder}: {foreign.reason_of(error)}")
        copies = OutputDir(self.output_dir, self.say)
        copies.copy_rest(self.folder)
        copies.finish()

    def _mask(self) -> None:
        """Take the secrets of processes out of finished reports: a job's are taken out when they leave the
        node. What still holds any is for its owner alone, and that is said.
        """
        values = binary_files.maskable(binary_files.secrets_of_processes() | own_secrets())
        until = time.monotonic() + _OPEN_S
        with ContainedDir(os.path.realpath(self.folder)) as tree:
            left = self._take_reports(tree)
            try:
                with raised(), Progress({path: _size(tree, path) for path in left}, self.say) as progress:
                    while left:
                        self._mask_report(tree, left[0], values, time.monotonic() > until)
                        progress.done(left.pop(0))
            except KeyboardInterrupt as told:
                for path in filter(backends.masks, left):
                    self._not_masked(Path(tree.root, path), told)

    def _take_reports(self, tree: ContainedDir) -> list[str]:
        """Finished reports of this host that no other process of the run has taken: this one's now, and until
        they are masked for their owner alone.
        """
        paths = [path for path, _ in tree.files() if backends.masks(path) or backends.is_secret(path)]
        being_written = processes.writers(frozenset(os.path.join(tree.root, path) for path in paths))
        with self._record() as record:
            known = {key: foreign.an_object(each) for key, each in _processes(record).items()}
            hosts = {key.rpartition(":")[0] for key in known} - {socket.gethostname()}
            others = set(map(report_names.safe, hosts))
            taken = {
                path
                for key, each in known.items()
                if _is_alive(key, each) or each.get("exit_code") is not None  # not killed before it was done
                for path in foreign.a_list(each.get("reports"))
            }
            ours = [
                path
                for path in paths
                if path not in taken
                and os.path.join(tree.root, path) not in being_written
                and (
                    (parsed := report_names.parse(path.rpartition("/")[2])) is None
                    or parsed.host not in others
                )
            ]
            _processes(record)[self._key] = {**known.get(self._key, {}), "reports": ours}
        for path in ours:
            with contextlib.suppress(OSError):
                Path(tree.root, path).chmod(_OWN)
        return ours

    def _mask_report(self, tree: ContainedDir, path: str, values: Collection[bytes], quick: bool) -> None:
        place = Path(tree.root, path)
        try:
            if backends.masks(path):
                exchange(tree, path, values, quick=quick)
        except OSError as error:
            self._not_masked(place, error)
            return
        with contextlib.suppress(OSError):
            place.chmod(_OWN if backends.is_secret(path) else FILE_MODE)

    def _not_masked(self, place: Path, error: BaseException) -> None:
        why = foreign.reason_of(error)
        self.say(f"{place} may hold secrets of the environment, pass it on to nobody: {why}")

    def _manifest(self) -> None:
        from rlprof_ops.collect.harvest.manifest import FILE
        from rlprof_ops.collect.harvest.manifest_table import reasons, summary
        from rlprof_ops.collect.harvest.run_harvest import harvest

        manifest = harvest(self.folder, content_budget_s=_INSIDE_S)
        for line in [] if manifest.complete else reasons(manifest, limit=5):
            self.say(line)
        self.say(f"{summary(manifest)}: {self.folder / FILE}")

    @contextlib.contextmanager
    def _record(self) -> Iterator[dict[str, Any]]:
        """run.json, for one process of the run at a time; what is changed in it is written."""
        path = self.folder / "run.json"
        lock = os.open(
            self.folder / ".wrap.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            _take(lock)
            record = foreign.read_object(path)
            before = json.dumps(record)
            yield record
            if json.dumps(record) != before:
                atomic.write(path, json.dumps(record, indent=1) + "\n")
        finally:
            os.close(lock)


def _of_a_job_alone(request: ProfileRequest) -> Iterator[str]:
    """What a request asks of a job: outside one nobody reads the program's output or finds anything in it."""
    if request.steps_from is not None:
        yield "steps_from is not used: outside a job the program prints to whoever started it"
    for number, spec in enumerate(request.captures, 1):
        if spec.waits:
            yield (
                f"capture {number}: `when` never opens a window: outside a job there is no flight recorder,"
                " which finds what it waits for"
            )


def _processes(record: dict[str, Any]) -> dict[str, Any]:
    """The processes of a run, by host and pid."""
    record["processes"] = foreign.an_object(record.get("processes"))
    return foreign.an_object(record["processes"])


def _size(tree: ContainedDir, path: str) -> int:
    found = tree.stat(path)
    return 0 if found is None else found.st_size


def _is_alive(key: str, told: Mapping[str, Any]) -> bool:
    """Whether a process of the run has not ended; one that was killed here has told nothing."""
    host, _, pid = key.rpartition(":")
    gone = host == socket.gethostname() and pid.isdigit() and processes.start_time(int(pid)) is None
    return told.get("exit_code") is None and not gone


def _take(lock: int) -> None:
    """Wait for the others a while: storage without locks must not keep CMD's exit code."""
    until = time.monotonic() + _LOCK_S
    while time.monotonic() < until:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:
            return
