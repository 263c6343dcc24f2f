"""A run: rows of one table in storage order, in one Parquet file that is never changed.

Anything that reads Parquet reads it (`_op` 1 marks deleted keys). Each row group covers neighbouring vnodes and is named in the
manifest, so a reader takes only the groups it needs. Damage is found before a row is served: pages carry checksums, the footer's
checksum and the file's size stand in the manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from magnetar.base.checksum import crc32c
from magnetar.pipeline.errors import DamagedStateError
from magnetar.pipeline.state import vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.table import VNODE, StateTable, as_frame

ROWS_PER_GROUP: Final = 65_536
"""Rows of a row group: the least that is read for a single key of a large run."""

_FOOTER_BYTES: Final = 8
_MAGIC: Final = b"PAR1"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a manifest says of a run. `vnodes`: the set of those it still counts for, as text; it shrinks when newer runs take over.

    `oldest` and `newest`: the epochs whose changes it holds. `groups`: (first vnode, last vnode, rows) of each row group.
    """

    path: str
    level: int
    oldest: int
    newest: int
    rows: int
    size_bytes: int
    footer_bytes: int
    footer_crc: int
    vnodes: str
    groups: tuple[tuple[int, int, int], ...]

    @property
    def vnode_bits(self) -> int:
        return vnode_set.from_text(self.vnodes)

    def describe(self) -> dict[str, Any]:
        """Plain values, for a manifest."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "groups": [list(group) for group in self.groups]
        }

    @staticmethod
    def from_description(description: dict[str, Any]) -> RunInfo:
        return RunInfo(**description | {"groups": tuple(tuple(group) for group in description["groups"])})


def write_run(
    files: StateFiles, table: StateTable, frame: pl.DataFrame, *, level: int, oldest: int, newest: int, vnode_bits: int
) -> RunInfo:
    """Write rows that are in storage order (`StateTable.with_vnodes`), each key once; durable on return.

    `vnode_bits`: all vnodes that this run speaks for, also those without a row. The name is unique, so a repeated task never
    meets its own earlier attempt; what no manifest names is collected later.
    """
    path = f"{table.directory}/{newest:016x}-{level}-{uuid4().hex}.parquet"
    rows = frame.to_arrow().cast(table.stored_schema)
    sink = pa.BufferOutputStream()
    compression = "lz4" if level == 0 else "zstd"
    groups = []
    with pq.ParquetWriter(
        sink,
        rows.schema,
        compression=compression,
        write_page_checksum=True,
        store_schema=True,
        use_dictionary=False,  # of keys and sums they take time and make files larger
        write_statistics=[VNODE],
    ) as writer:
        for start in range(0, rows.num_rows, ROWS_PER_GROUP):
            part = rows.slice(start, ROWS_PER_GROUP)
            writer.write_table(part, row_group_size=ROWS_PER_GROUP)
            column = part.column(VNODE)
            groups.append((column[0].as_py(), column[-1].as_py(), part.num_rows))
    data = sink.getvalue().to_pybytes()
    footer_bytes = int.from_bytes(data[-_FOOTER_BYTES:-4], "little") + _FOOTER_BYTES
    files.create(path, data)
    if files.hot is not None:
        files.hot.put(path, as_frame(rows))
    return RunInfo(
        path=path,
        level=level,
        oldest=oldest,
        newest=newest,
        rows=rows.num_rows,
        size_bytes=len(data),
        footer_bytes=footer_bytes,
        footer_crc=crc32c(data[-footer_bytes:]),
        vnodes=vnode_set.to_text(vnode_bits),
        groups=tuple(groups),
    )


def read_run(
    files: StateFiles, table: StateTable, run: RunInfo, vnode_bits: int, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """The run's rows of these vnodes as far as it still counts for them, deletions included, in storage order.

    Raises DamagedStateError, which also a missing or truncated file is.
    """
    wanted = vnode_bits & run.vnode_bits
    chosen = [
        number
        for number, (first, last, _) in enumerate(run.groups)
        if wanted >> first & ((1 << (last - first + 1)) - 1)
    ]
    names = table.stored_schema.names if columns is None else list(columns)
    if not chosen:
        return as_frame(table.stored_schema.empty_table().select(names))
    hot = _hot(files, table, run)
    if hot is not None:
        frame, chosen = hot.select(names), list(range(len(run.groups)))
    else:
        frame = as_frame(_read(files, run, chosen, names))
    if _covers(run, chosen, wanted):
        return frame
    return frame.filter(pl.col(VNODE).is_in(list(vnode_set.members(wanted))))


def _hot(files: StateFiles, table: StateTable, run: RunInfo) -> pl.DataFrame | None:
    """The whole run from memory, where it is then if it is not too large; None where nothing is kept."""
    if files.hot is None or run.size_bytes > files.hot.largest_bytes:
        return None
    found = files.hot.get(run.path)
    if found is None:
        found = as_frame(_read(files, run, list(range(len(run.groups))), table.stored_schema.names))
        files.hot.put(run.path, found)
    return found


def _read(files: StateFiles, run: RunInfo, chosen: list[int], names: list[str]) -> pa.Table:
    try:
        return _read_groups(files, run, chosen, names)
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        raise DamagedStateError(f"run {run.path} cannot be read: {error}") from error


def _read_groups(files: StateFiles, run: RunInfo, chosen: list[int], names: list[str]) -> pa.Table:
    with files.fs.open(files.path(run.path), "rb") as file:
        size = file.seek(0, 2)
        if size != run.size_bytes:
            raise DamagedStateError(f"run {run.path} has {size} bytes instead of {run.size_bytes}")
        file.seek(-run.footer_bytes, 2)
        if crc32c(file.read(run.footer_bytes)) != run.footer_crc:
            raise DamagedStateError(f"run {run.path}: the footer does not match its checksum")
        file.seek(0)
        if file.read(4) != _MAGIC:
            raise DamagedStateError(f"run {run.path} does not begin as Parquet does")
        file.seek(0)
        source = pq.ParquetFile(pa.PythonFile(file, "r"), page_checksum_verification=True)
        rows = source.read_row_groups(chosen, columns=names, use_threads=False)
    expected = sum(run.groups[number][2] for number in chosen)
    if rows.num_rows != expected:
        raise DamagedStateError(f"run {run.path} has {rows.num_rows} rows where {expected} belong")
    return rows.select(names)


def _covers(run: RunInfo, chosen: list[int], wanted: int) -> bool:
    """Whether every row of the chosen groups is wanted, as far as their vnode ranges tell."""
    return all(
        wanted >> first & (mask := (1 << (last - first + 1)) - 1) == mask
        for first, last, _ in (run.groups[number] for number in chosen)
    )
