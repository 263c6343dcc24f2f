"""`magnetar version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import click

from magnetar import __version__
from magnetar.cli.output import emit_record, json_option

PARTS = ("pulsar-client", "protobuf", "rocksdict", "uvloop")


@click.command("version")
@json_option
def version_command(as_json: bool) -> None:
    """Show the versions of magnetar and what it runs on."""
    record: dict[str, object] = {
        "magnetar": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    for part in PARTS:
        try:
            record[part] = version(part)
        except PackageNotFoundError:
            record[part] = "not installed"
    emit_record(record, as_json=as_json)
