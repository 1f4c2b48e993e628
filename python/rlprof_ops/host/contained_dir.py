"""Files beneath one folder, reached without ever following a link: names from nodes and trainers are
hostile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rlprof_ops.errors import RlprofError
from rlprof_ops.host import atomic

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}
)  # what file systems without hard links say to link
FOLDER_MODE = 0o750
FILE_MODE = 0o640


class UnsafeName(RlprofError):
    """A path that would leave its folder, or a name that no file can have."""


def safe_parts(relative: str) -> tuple[str, ...]:
    """The components of a relative path; raises `UnsafeName` for absolute paths, `..`, NUL and empty
    components; FileNotFoundError for what no file system can name.
    """
    try:
        os.fsencode(relative)
    except UnicodeEncodeError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), ascii(relative)) from None
    parts = tuple(relative.split("/"))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise UnsafeName(
            f"{relative!r} is not a plain path below its folder (no '..', no leading '/', no empty part)"
        )
    return parts


def safe_component(name: str, what: str) -> str:
    """`name` when it can stand as one folder name of ours; raises `UnsafeName` naming `what` otherwise."""
    if not name or name[0] in ".-" or any(not (c.isascii() and (c.isalnum() or c in "._-")) for c in name):
        raise UnsafeName(f"{what} {name!r} cannot name a folder: use letters, digits, '.', '_' and '-'")
    return name


class ContainedDir:
    """An open folder; every path given to it is relative, and every component is opened with O_NOFOLLOW.

    The folder itself may be reached through links: the operator chose it. Safe to share between threads.
    """

    def __init__(self, root: str | os.PathLike[str], *, create: bool = False) -> None:
        self.root = os.fspath(root)
        if create:
            os.makedirs(self.root, mode=FOLDER_MODE, exist_ok=True)
        self.fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> ContainedDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @contextmanager
    def folder(self, parts: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder `parts` below this one; made with mode 0750 when `create`."""
        fd = os.dup(self.fd)
        try:
            for part in parts:
                try:
                    inner = os.open(part, _DIRECTORY, dir_fd=fd)
                except FileNotFoundError:
                    if not create:
                        raise
                    try:
                        os.mkdir(part, FOLDER_MODE, dir_fd=fd)
                    except FileExistsError:
                        pass  # another node made it meanwhile
                    inner = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    def open_read(self, relative: str) -> int:
        """A descriptor of a regular file; OSError(EINVAL) for links, sockets, FIFOs and devices."""
        *folder, name = safe_parts(relative)
        with self.folder(tuple(folder)) as fd:
            # O_NONBLOCK: opening a FIFO that took the file's place must not hang.
            found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise OSError(errno.EINVAL, "not a regular file", relative)
        return found

    def open_write(
        self,
        relative: str,
        flags: int = os.O_CREAT | os.O_EXCL,
        mode: int = FILE_MODE,
        *,
        read_too: bool = False,
    ) -> int:
        """A descriptor to write `relative`; its folders are made. By default the file must not exist."""
        *folder, name = safe_parts(relative)
        flags |= (os.O_RDWR if read_too else os.O_WRONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
        with self.folder(tuple(folder), create=True) as fd:
            return os.open(name, flags, mode, dir_fd=fd)

    def flush_folder(self, relative: str) -> None:
        """Bring the names in a folder onto the disk. Raises OSError, but not of storage that cannot do it."""
        with self.folder(safe_parts(relative) if relative else ()) as fd:
            try:
                os.fsync(fd)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF):
                    raise

    def stat(self, relative: str) -> os.stat_result | None:
        """What is at `relative` (a link is not followed); None when there is nothing."""
        *folder, name = safe_parts(relative)
        try:
            with self.folder(tuple(folder)) as fd:
                return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def rename(self, source: str, target: str, *, replace: bool = True) -> None:
        """Move a file within this folder. With `replace=False` an existing target raises FileExistsError."""
        *from_folder, from_name = safe_parts(source)
        *to_folder, to_name = safe_parts(target)
        with self.folder(tuple(from_folder)) as from_fd, self.folder(tuple(to_folder), create=True) as to_fd:
            if not replace:
                try:
                    os.link(from_name, to_name, src_dir_fd=from_fd, dst_dir_fd=to_fd, follow_symlinks=False)
                    os.unlink(from_name, dir_fd=from_fd)
                    return
                except FileExistsError:
                    raise
                except OSError as error:  # file systems without hard links
                    if error.errno not in _NO_LINKS:
                        raise
                _take_name(to_name, to_fd)
            atomic.replace(from_name, to_name, src_dir_fd=from_fd, dst_dir_fd=to_fd)

    def unlink(self, relative: str) -> None:
        """Remove a file; nothing there is fine."""
        *folder, name = safe_parts(relative)
        try:
            with self.folder(tuple(folder)) as fd:
                os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass

    def write_atomic(self, relative: str, data: bytes, *, mode: int = FILE_MODE) -> None:
        """Put `data` at `relative` through a temporary name beside it, flushed to disk before the rename."""
        self.write_atomic_from(relative, (data,), mode=mode)

    def write_atomic_from(self, relative: str, parts: Iterable[bytes], *, mode: int = FILE_MODE) -> None:
        """The same for content that comes in parts."""
        *folder, name = safe_parts(relative)
        temporary = "/".join((*folder, f".{os.getpid()}-{os.urandom(4).hex()}.tmp"))
        fd = self.open_write(temporary, mode=mode)
        try:
            with os.fdopen(fd, "wb") as stream:
                for part in parts:
                    stream.write(part)
                stream.flush()
                os.fsync(stream.fileno())
            self.rename(temporary, "/".join((*folder, name)))
        except BaseException:
            self.unlink(temporary)
            raise

    def read(self, relative: str, limit: int | None = None) -> bytes:
        """The content of a regular file, at most `limit` bytes of it."""
        with os.fdopen(self.open_read(relative), "rb") as stream:
            if limit is None:
                return stream.read()
            # read(n) reserves n bytes at once, so no more is asked than the file has.
            return stream.read(min(limit, os.fstat(stream.fileno()).st_size))

    def files(self, relative: str = "") -> Iterator[tuple[str, os.stat_result]]:
        """Every regular file below `relative` with its stat, folders in sorted order; links and specials
        are left out.
        """
        parts = safe_parts(relative) if relative else ()
        try:
            with self.folder(parts) as fd:
                yield from _walk(fd, relative)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise


class ReplacedFolder(OSError):
    """Another folder stands under the name of the one that was meant."""


class PinnedDir:
    """A folder whose name others may give to another folder, because they may rename in the one above.

    The first `open` records its inode in the file `record`, for this and later processes; from then on only
    that folder is opened, and only while it belongs to this user. Who removes the file takes the folder that
    is there now. `say` gets one line when another folder appears under the name, and one when the right one
    is back. Safe to share between threads.
    """

    def __init__(self, path: str | os.PathLike[str], record: Path) -> None:
        self.path, self._record = Path(path), record
        self.say: Callable[[str], None] = lambda line: None
        self.inode: int | None = None
        self._replaced = self._recorded = False

    def open(self) -> ContainedDir:
        """The folder, held open. Raises OSError when it cannot be opened, `ReplacedFolder` when it is another
        one.
        """
        folder = ContainedDir(self.path)
        try:
            wrong = self._difference(os.fstat(folder.fd))
        except BaseException:
            folder.close()
            raise
        changed, self._replaced = bool(wrong) != self._replaced, bool(wrong)
        if changed:
            self.say(wrong or f"{self.path} is this job's own folder again")
        if wrong:
            folder.close()
            raise ReplacedFolder(errno.ESTALE, wrong)
        return folder

    def _difference(self, found: os.stat_result) -> str:
        """What is wrong with the folder, in words; empty when it is the right one."""
        advice = "nothing is written there, and everything stays on the node until the job's own is back"
        if found.st_uid != os.getuid():
            return (
                f"{self.path} has been replaced: it belongs to user {found.st_uid}, not to {os.getuid()};"
                f" {advice}"
            )
        if self.inode is None:
            with contextlib.suppress(OSError, ValueError):
                self.inode = int(self._record.read_text(encoding="ascii"))
                self._recorded = True
        elif self.inode != found.st_ino and self._recorded and self._record.parent.is_dir():
            self.inode = self.inode if self._record.exists() else None
        if self.inode is None:
            self.inode = found.st_ino
            with contextlib.suppress(OSError):  # this process knows it; the next one checks the owner
                atomic.write(self._record, f"{found.st_ino}\n", mode=0o600)
                self._recorded = True
        if found.st_ino != self.inode:
            return (
                f"{self.path} has been replaced: its inode is {found.st_ino}, that of the job's own is"
                f" {self.inode}; {advice}. If it is meant, remove {self._record}"
            )
        return ""


def _take_name(name: str, fd: int) -> None:
    """Raise FileExistsError when somebody has it, also where an NFS client would still say that nobody
    does.
    """
    taken = os.open(
        name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=fd
    )
    os.close(taken)


def _walk(fd: int, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    folders: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    yield (
                        (f"{prefix}/{entry.name}" if prefix else entry.name),
                        entry.stat(follow_symlinks=False),
                    )
            except FileNotFoundError:
                continue
    for name in sorted(folders):
        try:
            inner = os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError:
            continue  # gone, a link by now, or not ours to read
        try:
            yield from _walk(inner, f"{prefix}/{name}" if prefix else name)
        finally:
            os.close(inner)
