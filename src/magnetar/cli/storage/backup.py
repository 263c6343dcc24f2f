"""`magnetar backup` and `magnetar restore`: a standalone server's data directory, metadata and messages as of one moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import click

from magnetar.base.backup_file import NewFile
from magnetar.base.clock import SystemClock
from magnetar.base.errors import StartupError
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.storage.directory_lock import DirectoryLock
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit_record, output_options, progress_bar
from magnetar.cli.storage.metadata import data_record, force_option
from magnetar.metadata.backup import Progress
from magnetar.metadata.sqlite_file import FILE_NAME
from magnetar.processes.bookie_config import bookie_config
from magnetar.processes.configurations import StandaloneConfig
from magnetar.processes.data_backup import (
    BOOKIE_DIR,
    BOOKIE_ID,
    DataSummary,
    export,
    fetch,
    restore_data,
    verify_data,
)


@click.command("backup")
@click.argument("data_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file to write.")
@force_option
@output_options
def backup_command(data_dir: Path, output: Path, force: bool, as_json: bool) -> int:
    """Back up all data of the standalone server on DATA_DIR, as of one moment, to a file.

    The server may be running. The file is read back and checked before it gets its name; `magnetar metadata verify` checks it again.
    The exit code is 1 if the server could not read some entry; the backup has all others.
    """
    if not (data_dir / FILE_NAME).exists():
        raise CommandError(f"{data_dir} is not the data directory of a standalone server: it has no {FILE_NAME}")
    with progress_bar("bytes") as advance:
        summary = asyncio.run(_backup(data_dir, output, force, advance))
    _print(output, summary, as_json)
    return 1 if summary.missing else 0


async def _backup(data_dir: Path, output: Path, force: bool, advance: Progress) -> DataSummary:
    with NewFile(output, force=force) as out:
        size_bytes = 0
        async for data in _bytes_of(data_dir):
            out.write(data)
            size_bytes += len(data)
            advance(size_bytes, None)
        out.flush()
        return verify_data(out.unfinished, progress=lambda done, total: None)


async def _bytes_of(data_dir: Path) -> AsyncIterator[bytes]:
    with ExitStack() as stack:
        try:
            stack.enter_context(DirectoryLock(str(data_dir)))
        except StartupError:  # a server has it
            pieces = fetch(data_dir)
        else:
            pieces = _export_alone(data_dir)
        async for data in pieces:
            yield data


async def _export_alone(data_dir: Path) -> AsyncGenerator[bytes]:
    """Of a server that does not run."""
    config = StandaloneConfig(data_dir=data_dir)
    async with Bookie(bookie_config(config, data_dir / BOOKIE_DIR, BOOKIE_ID)) as bookie:
        async for data in export(data_dir / FILE_NAME, bookie):
            yield data


@click.command("restore")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("data_dir", type=click.Path(path_type=Path, file_okay=False))
@output_options
def restore_command(file: Path, data_dir: Path, as_json: bool) -> None:
    """Restore the backup FILE into DATA_DIR, which must be missing or empty. Then start a server on it."""
    now_ms = SystemClock().now_ms()
    with progress_bar("bytes") as advance:
        summary = asyncio.run(restore_data(file, data_dir, now_ms=now_ms, progress=advance))
    _print(file, summary, as_json)


def _print(file: Path, summary: DataSummary, as_json: bool) -> None:
    emit_record(data_record(file, summary, as_json=as_json), as_json=as_json, title="backup")
