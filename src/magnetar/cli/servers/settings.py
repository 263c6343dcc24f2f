"""`magnetar config list|explain`: the table of settings, and where each value comes from."""

from __future__ import annotations

import os
from pathlib import Path

import click

from magnetar.base.settings import PULSAR_ENV_PREFIX, Setting, find, resolve, table_of
from magnetar.cli.output import emit, emit_record, json_option
from magnetar.processes.configurations import (
    CONFIGURATIONS,
    AutorecoveryConfig,
    BookieProcessConfig,
    BrokerProcessConfig,
    MetadataServerConfig,
    StandaloneConfig,
)

config_file_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    envvar="MAGNETAR_CONFIG",
    show_envvar=True,
    help="Settings file: key=value lines as in broker.conf, or .toml.",
)


KINDS: dict[str, type] = {
    "standalone": StandaloneConfig,
    "bookie": BookieProcessConfig,
    "broker": BrokerProcessConfig,
    "autorecovery": AutorecoveryConfig,
    "metadata-server": MetadataServerConfig,
}

command_option = click.option(
    "--for",
    "kind",
    type=click.Choice([*KINDS]),
    default="standalone",
    show_default=True,
    help="Command whose settings are shown.",
)


@click.group("config")
def config_group() -> None:
    """List and explain the servers' settings.

    A value comes from the first of: flag, MAGNETAR_<NAME>, PULSAR_PREFIX_<key>, settings file, default.
    """


@config_group.command("list")
@command_option
@config_file_option
@click.option("--changed", is_flag=True, help="Show only settings that differ from their defaults.")
@json_option
def list_command(kind: str, config_file: Path | None, changed: bool, as_json: bool) -> None:
    """List every setting with its value and where the value comes from."""
    values = resolve(KINDS[kind], config_file, os.environ, {}, CONFIGURATIONS)
    rows = [
        {"key": row.key, "value": row.shown(values[name].value), "unit": row.unit, "source": values[name].source}
        for name, row in table_of(KINDS[kind]).items()
        if not changed or values[name].value != row.default
    ]
    emit(rows, as_json=as_json, title="settings")


@config_group.command("explain")
@click.argument("key")
@command_option
@config_file_option
@json_option
def explain_command(key: str, kind: str, config_file: Path | None, as_json: bool) -> None:
    """Explain a setting: what it does, its allowed values and its current value. KEY is Pulsar's name or magnetar's."""
    row = find(table_of(KINDS[kind]), key, "config explain")
    value = resolve(KINDS[kind], config_file, os.environ, {}, CONFIGURATIONS)[row.name]
    emit_record(
        {
            "key": row.key,
            "what": row.doc,
            "type": row.kind.__name__,
            "unit": row.unit or None,
            "allowed": allowed(row),
            "default": row.default,
            "value": row.shown(value.value),
            "source": value.source,
            "dynamic": row.dynamic,
            "environment": f"{row.env} or {PULSAR_ENV_PREFIX}{row.key}",
        },
        as_json=as_json,
        title=row.key,
    )


def allowed(row: Setting) -> str:
    """The values a setting takes, in words."""
    if row.choices:
        return ", ".join(row.choices)
    if row.kind is bool:
        return "true, false"
    if row.minimum is None:
        return "any"
    return f"{row.minimum:g} or more" if row.maximum is None else f"{row.minimum:g} to {row.maximum:g}"
