"""Every command that shows or changes something takes `--json`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from magnetar.cli.main import cli

WITHOUT = {
    **dict.fromkeys(
        ("standalone", "bookie", "broker", "autorecovery", "metadata-server", "pipeline serve"),
        "serves until it is ended",
    ),
    "cluster logs": "prints a log as it is",
    "completion": "prints a script for a shell",
}
"""Commands without it, and why."""


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))
    else:
        yield " ".join(path), group


def test_every_command_takes_json() -> None:
    found = dict(commands(cli))
    assert len(found) > 600
    without = {name for name, command in found.items() if not any("--json" in param.opts for param in command.params)}
    assert without == WITHOUT.keys()
