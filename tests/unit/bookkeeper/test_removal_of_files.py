"""A large file is given back to the file system in steps, and nobody who still reads it takes the short file for damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from magnetar.base.errors import DiskIOError
from magnetar.bookkeeper.bookie.storage import disk as disk_module
from magnetar.bookkeeper.bookie.storage.disk import OsDisk
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogs

LOG_BYTES = 1 << 20
ENTRY = b"e" * 1000


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "_FREED_BYTES", 1000)


def file_of(path: Path, size_bytes: int) -> str:
    path.write_bytes(b"x" * size_bytes)
    return str(path)


def test_a_file_is_removed_whatever_its_size(tmp_path: Path) -> None:
    disk = OsDisk()
    for size_bytes in (0, 1, 999, 1000, 1001, 10_500):
        path = file_of(tmp_path / "file", size_bytes)
        disk.unlink(path)
        assert not os.path.exists(path)
    disk.unlink(str(tmp_path / "file"))  # a missing one is fine


def test_a_file_with_another_name_keeps_its_bytes(tmp_path: Path) -> None:
    disk = OsDisk()
    path = file_of(tmp_path / "file", 10_500)
    os.link(path, tmp_path / "copy")
    disk.unlink(path)
    assert not os.path.exists(path)
    assert (tmp_path / "copy").stat().st_size == 10_500
    os.symlink(tmp_path / "copy", tmp_path / "link")
    disk.unlink(str(tmp_path / "link"))
    assert not os.path.lexists(tmp_path / "link")
    assert (tmp_path / "copy").stat().st_size == 10_500


def test_a_file_is_removed_when_no_descriptor_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path / "file", 10_500)

    def refused(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", refused)
    OsDisk().unlink(path)
    assert not os.path.exists(path)


class Interrupted(OsDisk):
    """Calls `during` between the removal and the return to whoever removes, or fails."""

    def __init__(self) -> None:
        self.reads: list[bytes | None] = []
        self.logs: EntryLogs | None = None
        self.offset = 0
        self.fails = False

    def unlink(self, path: str) -> None:
        if self.fails:
            raise DiskIOError("the disk is broken")
        super().unlink(path)
        assert self.logs is not None
        self.reads.append(self.logs.read(1, self.offset, 100))


def sealed_log(disk: Interrupted, folder: Path) -> EntryLogs:
    logs = disk.logs = EntryLogs(disk, str(folder), LOG_BYTES, {})
    indexed = logs.write([(7, 0, [ENTRY] * 50)])
    disk.offset = indexed[0].offset
    logs.sync()
    logs.seal()
    return logs


def test_what_is_read_of_a_log_while_it_goes_is_no_log_and_not_a_short_one(tmp_path: Path) -> None:
    disk = Interrupted()
    logs = sealed_log(disk, tmp_path)
    assert len(logs.read(1, disk.offset, 100) or b"") == 100  # it stays open for the next reader
    logs.delete(1)
    assert disk.reads == [None]
    assert logs.read(1, disk.offset, 100) is None
    logs.close()


def test_a_log_that_cannot_be_removed_is_still_there(tmp_path: Path) -> None:
    disk = Interrupted()
    logs = sealed_log(disk, tmp_path)
    disk.fails = True
    with pytest.raises(DiskIOError):
        logs.delete(1)
    assert 1 in logs.metas
    assert len(logs.read(1, disk.offset, 100) or b"") == 100
    logs.close()
