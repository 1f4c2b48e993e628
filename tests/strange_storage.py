"""A small FUSE file system over a folder that behaves as shared storage may: without hard links, without
renaming over a file that is there, with names that other clients see late, with handles that go stale.

    with strange(mount, backing, "no-links,late=3") as storage: storage.make_stale("logs/n1/a.log")

`no-links`: link is refused. `no-replace`: rename onto a file is refused. `late=S`: a name that somebody else
has made is seen S seconds later, unless one tries to make it too, as NFS clients do. A handle of a file that
was made stale answers nothing but ESTALE; opened by its name again it is as before. `holds=NAME`: who asks
for that name is never answered, nor killed before the end of the block, as by a dead NFS server.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_MNT_FORCE, _MNT_DETACH = 1, 2
_STALE = ".make_stale"
# linux/fuse.h
_HEADER, _REPLY = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_SETATTR = struct.Struct("<II3Q3Q3IIIIII")
_MODE, _SIZE, _ATIME, _MTIME = 1, 8, 16, 32


class Storage:
    """What a test tells the file system."""

    def __init__(self, backing: Path) -> None:
        self._order = backing.with_name(f"{backing.name}{_STALE}")

    def make_stale(self, path: str) -> None:
        """From the next call on, handles of `path` that are open answer ESTALE."""
        whole = self._order.with_name(f"{self._order.name}.tmp")
        whole.write_text(path)
        whole.replace(self._order)  # a half written one would be of the mount itself


@contextlib.contextmanager
def strange(mount: Path, backing: Path, how: str) -> Iterator[Storage]:
    """Mount it while the block runs. Needs need("fuse")."""
    backing.mkdir(parents=True, exist_ok=True)
    mount.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen(
        [sys.executable, __file__, str(mount), str(backing), how],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        yield Storage(backing)
    finally:
        server.kill()
        server.wait(10)
        _libc.umount2(os.fsencode(mount), _MNT_FORCE | _MNT_DETACH)


class _Server:
    """Answers the kernel, one request after the other. A node is a path; a stale one has none."""

    def __init__(self, backing: Path, how: str) -> None:
        words = dict(word.partition("=")[::2] for word in how.split(",") if word)
        self._links, self._replace = "no-links" not in words, "no-replace" not in words
        self._late_s = float(words.get("late") or 0)
        self._held = words.get("holds")
        self._root = backing
        self._order = Storage(backing)._order
        self._paths: dict[int, str] = {1: ""}
        self._stale: set[int] = set()
        self._handles: dict[int, int] = {}  # fd -> node
        self._listed: dict[int, list[tuple[str, os.stat_result]]] = {}
        self._mine: set[str] = set()
        self._next = 2

    def serve(self, fd: int) -> None:
        while True:
            try:
                request = os.read(fd, (1 << 20) + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
            if opcode in (2, 36, 42):  # forget and interrupt have no answer
                continue
            name = request[_HEADER.size :].rstrip(b"\0")
            if opcode == 1 and self._held is not None and name == os.fsencode(self._held):
                continue
            code, answer = 0, b""
            try:
                self._take_order()
                answer = self._answer(opcode, node, request[_HEADER.size :])
            except OSError as error:
                code = -(error.errno or errno.EIO)
            os.write(fd, _REPLY.pack(_REPLY.size + len(answer), code, unique) + answer)

    def _take_order(self) -> None:
        if self._order.exists():
            path = self._order.read_text()
            self._order.unlink()
            self._stale |= {node for node, known in self._paths.items() if known == path}

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        method = _METHODS.get(opcode)
        if method is None:
            raise OSError(errno.ENOSYS, "not here")
        answer: bytes = getattr(self, method)(node, body)
        return answer

    # ---- names

    def _path(self, node: int) -> str:
        if node in self._stale or node not in self._paths:
            raise OSError(errno.ESTALE, "stale")
        return self._paths[node]

    def _at(self, path: str) -> str:
        return str(self._root / path) if path else str(self._root)

    def _child(self, node: int, name: bytes) -> str:
        parent = self._path(node)
        found = os.fsdecode(name.split(b"\0")[0])
        return f"{parent}/{found}" if parent else found

    def _is_seen(self, path: str, found: os.stat_result) -> bool:
        return path in self._mine or time.time() - found.st_ctime >= self._late_s

    def _node(self, path: str) -> int:
        for node, known in self._paths.items():
            if known == path and node not in self._stale:
                return node
        self._next += 1
        self._paths[self._next] = path
        return self._next

    def _entry(self, path: str) -> bytes:
        found = os.lstat(self._at(path))
        node = self._node(path)
        return struct.pack("<4Q2I", node, 0, 0, 0, 0, 0) + _attr(node, found)

    def lookup(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body)
        if not self._is_seen(path, os.lstat(self._at(path))):
            raise OSError(errno.ENOENT, "not yet")
        self._mine.add(path)
        return self._entry(path)

    def getattr(self, node: int, body: bytes) -> bytes:
        self._path(node)
        return struct.pack("<QII", 0, 0, 0) + _attr(node, self._stat(node))

    def _stat(self, node: int) -> os.stat_result:
        try:
            return os.lstat(self._at(self._paths[node]))
        except FileNotFoundError:  # removed, and open here
            for fd, opened in self._handles.items():
                if opened == node:
                    return os.fstat(fd)
            raise OSError(errno.ESTALE, "removed") from None

    def setattr(self, node: int, body: bytes) -> bytes:
        path = self._at(self._path(node))
        valid, _, _, size, _, atime, mtime, _, a_ns, m_ns, _, mode, *_ = _SETATTR.unpack_from(body)
        if valid & _MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & _SIZE:
            os.truncate(path, size)
        if valid & (_ATIME | _MTIME):
            os.utime(path, ns=(atime * 10**9 + a_ns, mtime * 10**9 + m_ns))
        return self.getattr(node, b"")

    def mkdir(self, node: int, body: bytes) -> bytes:
        mode, _ = struct.unpack_from("<II", body)
        path = self._child(node, body[8:])
        self._mine.add(path)  # also when it is there: the server has said so
        os.mkdir(self._at(path), mode)
        return self._entry(path)

    def unlink(self, node: int, body: bytes) -> bytes:
        os.unlink(self._at(self._child(node, body)))
        return b""

    def rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(self._at(self._child(node, body)))
        return b""

    def rename(self, node: int, body: bytes, skip: int = 8) -> bytes:
        target_node = struct.unpack_from("<Q", body)[0]
        before, after = body[skip:].split(b"\0")[:2]
        source, target = self._child(node, before), self._child(target_node, after)
        if not self._replace and os.path.lexists(self._at(target)):
            self._mine.add(target)
            raise OSError(errno.EEXIST, "it is there")
        os.rename(self._at(source), self._at(target))
        self._mine.add(target)
        self._paths = {
            one: target + path[len(source) :] if path == source or path.startswith(f"{source}/") else path
            for one, path in self._paths.items()
            if path != target
        }
        return b""

    def rename2(self, node: int, body: bytes) -> bytes:
        if struct.unpack_from("<Q2I", body)[1]:
            raise OSError(errno.EINVAL, "no flags here")
        return self.rename(node, body, 16)

    def link(self, node: int, body: bytes) -> bytes:
        if not self._links:
            raise OSError(errno.EPERM, "no hard links here")
        path = self._child(node, body[8:])
        self._mine.add(path)
        os.link(self._at(self._path(struct.unpack_from("<Q", body)[0])), self._at(path))
        return self._entry(path)

    # ---- contents

    def _handle(self, fd: int) -> int:
        if self._handles.get(fd) in self._stale:
            raise OSError(errno.ESTALE, "stale")
        return fd

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode, *_ = struct.unpack_from("<4I", body)
        path = self._child(node, body[16:])
        self._mine.add(path)
        fd = os.open(self._at(path), (flags & ~(os.O_APPEND | os.O_ACCMODE)) | os.O_RDWR | os.O_CREAT, mode)
        entry = self._entry(path)
        self._handles[fd] = self._node(path)
        return entry + struct.pack("<QII", fd, 0, 0)

    def open(self, node: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<I", body)[0]
        kept = flags & (os.O_ACCMODE | os.O_TRUNC)
        fd = os.open(self._at(self._path(node)), kept)
        self._handles[fd] = node
        return struct.pack("<QII", fd, 0, 0)

    def read(self, node: int, body: bytes) -> bytes:
        fd, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(self._handle(fd), size, offset)

    def write(self, node: int, body: bytes) -> bytes:
        fd, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(self._handle(fd), body[40 : 40 + size], offset), 0)

    def fsync(self, node: int, body: bytes) -> bytes:
        os.fsync(self._handle(struct.unpack_from("<Q", body)[0]))
        return b""

    def flush(self, node: int, body: bytes) -> bytes:
        self._handle(struct.unpack_from("<Q", body)[0])
        return b""

    def release(self, node: int, body: bytes) -> bytes:
        fd = struct.unpack_from("<Q", body)[0]
        self._handles.pop(fd, None)
        os.close(fd)
        return b""

    def opendir(self, node: int, body: bytes) -> bytes:
        path = self._path(node)
        self._next += 1
        found = []
        for entry in os.scandir(self._at(path)):
            with contextlib.suppress(FileNotFoundError):
                found.append((entry.name, entry.stat(follow_symlinks=False)))
        self._listed[self._next] = [
            (name, there) for name, there in found if self._is_seen(f"{path}/{name}".lstrip("/"), there)
        ]
        return struct.pack("<QII", self._next, 0, 0)

    def readdir(self, node: int, body: bytes) -> bytes:
        fh, offset, size = struct.unpack_from("<QQI", body)
        answer = b""
        for number, (name, found) in list(enumerate(self._listed[fh], 1))[offset:]:
            raw = os.fsencode(name)
            entry = struct.pack("<QQII", found.st_ino, number, len(raw), stat.S_IFMT(found.st_mode) >> 12)
            entry += raw + bytes(-len(raw) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    def releasedir(self, node: int, body: bytes) -> bytes:
        self._listed.pop(struct.unpack_from("<Q", body)[0], None)
        return b""

    def fsyncdir(self, node: int, body: bytes) -> bytes:
        return b""

    def statfs(self, node: int, body: bytes) -> bytes:
        found = os.statvfs(self._root)
        numbers = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("<5Q4I6I", *numbers, found.f_bsize, 255, found.f_frsize, *[0] * 7)

    def init(self, node: int, body: bytes) -> bytes:
        return struct.pack("<4I2H2I2H8I", 7, 31, 1 << 17, 0, 16, 12, 1 << 17, 1, 0, 0, *[0] * 8)


def _attr(node: int, found: os.stat_result) -> bytes:
    seconds = [value // 10**9 for value in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
    parts = [value % 10**9 for value in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
    return _ATTR.pack(
        node, found.st_size, found.st_blocks, *seconds, *parts, found.st_mode, found.st_nlink,
        found.st_uid, found.st_gid, 0, 4096, 0,
    )  # fmt: skip


_METHODS = {
    1: "lookup",
    3: "getattr",
    4: "setattr",
    9: "mkdir",
    10: "unlink",
    11: "rmdir",
    12: "rename",
    13: "link",
    14: "open",
    15: "read",
    16: "write",
    17: "statfs",
    18: "release",
    20: "fsync",
    25: "flush",
    26: "init",
    27: "opendir",
    28: "readdir",
    29: "releasedir",
    30: "fsyncdir",
    35: "create",
    45: "rename2",
}


def main(mount: str, backing: str, how: str) -> None:
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    if _libc.mount(b"strange", os.fsencode(mount), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "cannot mount", mount)
    print("ready", flush=True)
    _Server(Path(backing), how).serve(fd)


if __name__ == "__main__":
    main(*sys.argv[1:])
