"""The journal's bytes after a crash: a torn tail is cut once, damage before good commits is reported, no length is believed."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.base.errors import CorruptionError
from magnetar.base.executor import InlineExecutor
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.storage.disk import OsDisk
from magnetar.bookkeeper.bookie.storage.journal import Journal
from magnetar.bookkeeper.bookie.storage.journal_format import FILE_HEADER_BYTES, pack_special
from magnetar.bookkeeper.bookie.storage.journal_replay import ReplayResult, replay

DISK = OsDisk()


def config_for(path: Path, file_bytes: int = 1 << 20, preallocate_bytes: int = 0) -> BookieConfig:
    return BookieConfig(data_dir=path, journal_file_bytes=file_bytes, journal_preallocate_bytes=preallocate_bytes)


def record(number: int, size: int = 8) -> bytes:
    return pack_special(number, number, b"%d" % number * size)


def write(config: BookieConfig, commits: list[list[bytes]], last_sequence: int = 0, seed: int = 1) -> list[int]:
    """Each inner list becomes one commit; returns the size of the newest file after each commit."""
    DISK.make_dir(config.journal_path)
    journal = Journal(config, DISK, InlineExecutor(), random.Random(seed), last_sequence, _raise, _raise)
    sizes = []
    for records in commits:
        journal._write(records)
        sizes.append(journal._offset)
    asyncio.run(journal.close())
    return sizes


def _raise(error: Exception) -> None:
    raise error


def read(config: BookieConfig, mark: int = 0) -> tuple[list[list[bytes]], ReplayResult]:
    result = ReplayResult()
    return list(replay(DISK, config.journal_path, mark, result)), result


@contextmanager
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path)


def newest(config: BookieConfig) -> Path:
    return max(Path(config.journal_path).glob("*.journal"))


COMMITS = [[record(1)], [record(2), record(3)], [record(4, 20)], [record(5), record(6, 3)]]


@pytest.mark.parametrize("preallocate_bytes", [0, 512])
def test_a_tail_torn_at_every_byte_is_cut_once_and_the_next_commit_is_read(
    tmp_path: Path, preallocate_bytes: int
) -> None:
    config = config_for(tmp_path, preallocate_bytes=preallocate_bytes)
    sizes = write(config, COMMITS)
    path = newest(config)
    content = path.read_bytes()
    tails: list[bytes] = [b"", b"\0" * 64, b"\xff" * 64, content[FILE_HEADER_BYTES : FILE_HEADER_BYTES + 50]]
    for cut in range(sizes[1] + 1, sizes[3]):
        for tail in (tails[cut % 4], tails[(cut + 1) % 4])[: 1 if preallocate_bytes else 2]:
            for old in Path(config.journal_path).iterdir():
                old.unlink()
            damaged = content[:cut] + tail
            path.write_bytes(damaged)
            commits, result = read(config)
            assert commits == COMMITS[: sum(damaged[:size] == content[:size] for size in sizes)]
            assert result.last_sequence == len(commits)
            write(config, [[record(9)]], result.last_sequence, seed=2)
            for _ in range(2):
                again, result_again = read(config)
                assert again == [*commits, [record(9)]]
                assert result_again.torn_bytes == 0
    assert sizes[3] - sizes[1] > 100


def test_a_flip_anywhere_before_the_last_commit_is_reported(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    sizes = write(config, COMMITS)
    path = newest(config)
    content = path.read_bytes()
    for offset in range(sizes[2]):
        damaged = bytearray(content)
        damaged[offset] ^= 1 << (offset % 8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(CorruptionError):
            read(config)
        assert path.read_bytes() == bytes(damaged), "evidence is not touched"
    path.write_bytes(content)
    assert read(config)[0] == COMMITS


def test_a_flip_in_an_older_file_is_reported_wherever_it_is(tmp_path: Path) -> None:
    config = config_for(tmp_path, file_bytes=70)
    write(config, COMMITS)
    files = sorted(Path(config.journal_path).glob("*.journal"))
    assert len(files) >= 3
    for path in files[:-1]:
        content = path.read_bytes()
        for offset in range(len(content)):
            damaged = bytearray(content)
            damaged[offset] ^= 0x10
            path.write_bytes(bytes(damaged))
            with pytest.raises(CorruptionError):
                read(config)
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(CorruptionError):
            read(config)
        path.unlink()
        with pytest.raises(CorruptionError):
            read(config)
        path.write_bytes(content)
    assert read(config)[0] == COMMITS


def test_the_mark_must_be_in_the_journal(tmp_path: Path) -> None:
    config = config_for(tmp_path, file_bytes=70)
    DISK.make_dir(config.journal_path)
    assert read(config)[0] == []
    with pytest.raises(CorruptionError, match="gone"):
        read(config, mark=3)
    write(config, COMMITS)
    for mark in range(5):
        assert read(config, mark)[0] == COMMITS[mark:]
    with pytest.raises(CorruptionError, match="before the checkpoint mark"):
        read(config, mark=5)
    min(Path(config.journal_path).glob("*.journal")).unlink()
    with pytest.raises(CorruptionError, match="a file is missing"):
        read(config, mark=0)


@pytest.mark.parametrize("file_bytes", [40, 70, 130])
def test_trimming_leaves_everything_above_the_mark(tmp_path: Path, file_bytes: int) -> None:
    commits = [[record(number)] for number in range(1, 9)]
    for mark in range(9):
        config = config_for(tmp_path / str(mark), file_bytes)
        write(config, commits)
        journal = Journal(config, DISK, InlineExecutor(), random.Random(1), 8, _raise, _raise)
        removed = journal.trim(mark)
        assert read(config, mark)[0] == commits[mark:]
        if file_bytes == 40:
            assert removed == min(mark, 7), (
                "one commit in each file: as many files as marked commits, but for the newest"
            )


def test_old_bytes_of_a_recycled_file_are_not_commits(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    write(config, COMMITS)
    path = newest(config)
    spare = path.rename(path.with_name(path.name + ".spare"))
    write(config, [[record(1)]], last_sequence=0, seed=2)
    assert not spare.exists()
    assert newest(config).stat().st_size > 200, "the old bytes are still behind the new commit"
    assert read(config)[0] == [[record(1)]]
    assert newest(config).stat().st_size < 120


def test_payloads_that_look_like_commits_do_not_turn_a_torn_tail_into_damage(tmp_path: Path) -> None:
    other = config_for(tmp_path / "other")
    write(other, COMMITS, seed=5)
    forged = newest(other).read_bytes()
    config = config_for(tmp_path / "this")
    sizes = write(config, [[record(1)], [pack_special(2, 2, forged)]])
    path = newest(config)
    content = path.read_bytes()
    for cut in (sizes[0] + 10, sizes[1] - 1):
        path.write_bytes(content[:cut])
        assert read(config)[0] == [[record(1)]]


records = st.lists(st.binary(min_size=0, max_size=60), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(commits=st.lists(records, min_size=1, max_size=8), file_bytes=st.integers(40, 600), seed=st.integers(0, 2**32))
def test_what_is_written_is_read(commits: list[list[bytes]], file_bytes: int, seed: int) -> None:
    packed = [[pack_special(1, 1, content) for content in group] for group in commits]
    with directory() as path:
        config = config_for(path, file_bytes)
        write(config, packed, seed=seed)
        found, result = read(config)
        assert found == packed
        assert result.last_sequence == len(packed)
        assert result.records == sum(map(len, packed))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_give_a_prefix_or_an_error(data: st.DataObject) -> None:
    """Overwrite any stretch with anything: what comes back is a prefix of the truth, or CorruptionError; never anything else."""
    with directory() as path:
        config = config_for(path)
        sizes = write(config, COMMITS)
        file = newest(config)
        content = bytearray(file.read_bytes())
        offset = data.draw(st.integers(0, len(content) - 1))
        junk = data.draw(st.binary(min_size=1, max_size=40))
        content[offset : offset + len(junk)] = junk
        file.write_bytes(bytes(content))
        try:
            found, result = read(config)
        except CorruptionError:
            return
        assert found == COMMITS[: len(found)]
        assert len(found) == result.last_sequence
        if len(found) < 3:
            assert offset + len(junk) > sizes[2], "good commits behind the damage were dropped"
