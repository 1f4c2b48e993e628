"""Sends many small finished files at once: all are written, then all flushed, then all get their names.

A flush makes the storage write its journal, and whoever makes a file meanwhile waits for that. Done by turns
the waits are as many as the files; done together they are a few.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlprof_ops.collect.sync.copy_bytes import Copied, Stopped
from rlprof_ops.collect.sync.routes import Item, Kind
from rlprof_ops.collect.sync.send_file import Sender, discard
from rlprof_ops.host.contained_dir import ContainedDir

SMALL = 1 << 20  # bytes; a larger file is sent by itself
_MOST_FILES, _MOST_BYTES = 32, 8 << 20  # of one thread: each file is two descriptors


def grouped(work: Iterable[Item]) -> Iterator[list[Item]]:
    """The same items in the same order: small finished ones that follow each other together, the others
    one by one.
    """
    group: list[Item] = []
    size = 0
    for item in work:
        small = item.kind in (Kind.FINISHED, Kind.STABLE) and item.found.st_size <= SMALL
        if group and (not small or len(group) == _MOST_FILES or size + item.found.st_size > _MOST_BYTES):
            yield group
            group, size = [], 0
        if small:
            group.append(item)
            size += item.found.st_size
        else:
            yield [item]
    if group:
        yield group


@dataclass
class _Underway:
    """One file that is written under a temporary name: descriptors of both sides, the source's stat as it
    was.
    """

    item: Item
    fd: int
    out: int
    before: os.stat_result
    temporary: str
    copied: Copied


def send(
    sender: Sender, source: ContainedDir, target: ContainedDir, items: Iterable[Item]
) -> Iterator[tuple[Item, int | Exception | None]]:
    """Each item with the bytes sent, None when it was there already, or what `Sender.send` would have
    raised for it.
    """
    written: list[_Underway] = []
    try:
        for item in items:
            try:
                written.append(_write(sender, source, target, item))
            except Exception as error:
                yield item, error
        flushed = [_flush(each) for each in written]
        arrived = []
        for each, failed in zip(list(written), flushed, strict=True):
            arrived.append((each, _arrive(sender, target, each, failed)))
            written.remove(each)
        settled = _settle(sender, target, arrived)
        for each, outcome in arrived:
            yield each.item, _outcome(sender, each, outcome, settled)
    finally:
        for each in written:  # the caller went away in between
            _close(each)
            discard(target, each.temporary)


def _write(sender: Sender, source: ContainedDir, target: ContainedDir, item: Item) -> _Underway:
    fd = sender.open(source, item)
    try:
        before = os.fstat(fd)
        temporary, out = sender.new_temporary(target)
        try:
            return _Underway(item, fd, out, before, temporary, sender.write(fd, out, before))
        except BaseException:
            os.close(out)
            discard(target, temporary)
            raise
    except BaseException:
        os.close(fd)
        raise


def _flush(each: _Underway) -> Exception | None:
    try:
        os.fsync(each.out)
    except OSError as error:
        return error
    return None


def _arrive(
    sender: Sender, target: ContainedDir, each: _Underway, failed: Exception | None
) -> tuple[str | None, bool] | Exception:
    """The name that the copy got, and whether there was time to read it back; or what went wrong."""
    try:
        if failed is not None:
            raise failed
        in_time = sender.is_whole(each.out, each.copied)
    except Exception as error:
        discard(target, each.temporary)
        _close(each)
        return error
    try:
        size = each.copied.size_bytes
        put = sender.put(each.fd, target, each.item, each.temporary, each.before, size, lambda: each.copied)
        return put, in_time
    except Exception as error:
        return error
    finally:
        _close(each)


def _settle(
    sender: Sender,
    target: ContainedDir,
    arrived: list[tuple[_Underway, tuple[str | None, bool] | Exception]],
) -> dict[str, Exception | None]:
    """Flush each folder that got names, once; what went wrong by folder."""
    found: dict[str, Exception | None] = {}
    for each, outcome in arrived:
        if isinstance(outcome, Exception):
            continue
        folder = _folder(each, outcome[0])
        if folder not in found:
            try:
                found[folder] = None
                sender.settle(target, each.item, outcome[0])
            except OSError as error:
                found[folder] = error
    return found


def _outcome(
    sender: Sender,
    each: _Underway,
    outcome: tuple[str | None, bool] | Exception,
    settled: dict[str, Exception | None],
) -> int | Exception | None:
    if isinstance(outcome, Exception):
        return outcome
    put, in_time = outcome
    failed = settled[_folder(each, put)]
    if failed is not None:
        return failed
    return sender.sent(each.item, put, each.before, each.copied) if in_time else Stopped()


def _folder(each: _Underway, put: str | None) -> str:
    return (put or each.item.target).rpartition("/")[0]


def _close(each: _Underway) -> None:
    os.close(each.fd)
    os.close(each.out)
