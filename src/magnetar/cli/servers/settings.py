"""`magnetar config list|explain|check`: the table of settings, where each value comes from, and what becomes of a file's keys."""

from __future__ import annotations

import os
from pathlib import Path

import click

from magnetar.base.foreign_keys import FAULTS, Effect
from magnetar.base.settings import PULSAR_ENV_PREFIX, Setting, find, read_file, resolve, table_of, verdicts
from magnetar.cli.output import emit, emit_record, output_options
from magnetar.processes.configurations import (
    CONFIGURATIONS,
    AutorecoveryConfig,
    BookieProcessConfig,
    BrokerProcessConfig,
    MetadataServerConfig,
    StandaloneConfig,
    ViewServerConfig,
)
from magnetar.processes.pulsar_keys import PULSAR_KEYS, defaults

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
    "pipeline serve": ViewServerConfig,
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
    """List and explain the servers' settings, and check a settings file.

    A value comes from the first of: flag, MAGNETAR_<NAME>, PULSAR_PREFIX_<key>, settings file, default.
    """


@config_group.command("list")
@command_option
@config_file_option
@click.option("--changed", is_flag=True, help="Show only settings that differ from their defaults.")
@output_options
def list_command(kind: str, config_file: Path | None, changed: bool, as_json: bool) -> None:
    """List every setting with its value and where the value comes from."""
    values = resolve(KINDS[kind], config_file, os.environ, {}, CONFIGURATIONS, PULSAR_KEYS)
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
@output_options
def explain_command(key: str, kind: str, config_file: Path | None, as_json: bool) -> None:
    """Explain a setting: what it does, its allowed values and its current value. KEY is Pulsar's name or magnetar's."""
    foreign = PULSAR_KEYS.find(key)
    if foreign is not None and not foreign.name and key not in {row.key for row in table_of(KINDS[kind]).values()}:
        effect = "refused, unless it says what Pulsar's default does" if foreign.refused else Effect.NONE.value
        default = foreign.default or None
        emit_record(
            {"key": key, "effect": effect, "why": foreign.because, "pulsar_default": default},
            as_json=as_json,
            title=key,
        )
        return
    row = find(table_of(KINDS[kind]), key, "config explain", PULSAR_KEYS)
    value = resolve(KINDS[kind], config_file, os.environ, {}, CONFIGURATIONS, PULSAR_KEYS)[row.name]
    emit_record(
        {
            "key": row.key,
            "what": row.doc,
            "type": row.kind.__name__,
            "unit": row.unit or None,
            "allowed": allowed(row),
            "default": row.default,
            **pulsars_default(row),
            "value": row.shown(value.value),
            "source": value.source,
            "dynamic": row.dynamic,
            "environment": f"{row.env} or {PULSAR_ENV_PREFIX}{row.key}",
        },
        as_json=as_json,
        title=row.key,
    )


@config_group.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@command_option
@output_options
@click.pass_context
def check_command(ctx: click.Context, /, file: Path, kind: str, as_json: bool) -> None:
    """Check a settings FILE, such as Pulsar's broker.conf or standalone.conf: what becomes of each key, and why.

    A key acts, has no effect, or is a fault with which no server starts: unknown, invalid, or refused because ignoring it would do harm.
    The exit code is 1 if there are faults.
    """
    found = verdicts(KINDS[kind], read_file(file), CONFIGURATIONS, PULSAR_KEYS)
    rows = [
        {
            "key": verdict.key,
            "effect": verdict.effect.value,
            "value": verdict.row.shown(verdict.text.strip()) if verdict.row and verdict.effect is Effect.ACTS else None,
            "why": verdict.because,
            "where": verdict.where,
        }
        for verdict in found
    ]
    emit(rows, as_json=as_json, title=str(file))
    ctx.exit(1 if any(verdict.effect in FAULTS for verdict in found) else 0)


def pulsars_default(row: Setting) -> dict[str, object]:
    """What Pulsar's files say for the key, and why the default here is another one."""
    if row.key not in defaults():
        return {}
    return {"pulsar_default": defaults()[row.key] or None, "differs_because": row.differs or None}


def allowed(row: Setting) -> str:
    """The values a setting takes, in words."""
    if row.choices:
        return ", ".join(row.choices)
    if row.kind is bool:
        return "true, false"
    if row.minimum is None:
        return "any"
    return f"{row.minimum:g} or more" if row.maximum is None else f"{row.minimum:g} to {row.maximum:g}"
