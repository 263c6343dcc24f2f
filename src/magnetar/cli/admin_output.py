"""What the groups of pulsar-admin print: names, and documents of the server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click
import msgspec

from magnetar.cli.output import emit, emit_record, print_json


def show_names(names: Iterable[str], as_json: bool, column: str, title: str = "") -> None:
    """One to a line, sorted."""
    found = sorted(names)
    if as_json:
        print_json(found)
    else:
        emit([{column: name} for name in found], as_json=False, title=title)


def show_document(document: Any, as_json: bool, title: str = "") -> None:
    """A document of the server, a line for each of its fields; what is nested stays JSON."""
    value = msgspec.to_builtins(document)
    if as_json:
        print_json(value)
    elif isinstance(value, dict):
        emit_record({name: _flat(item) for name, item in value.items()}, as_json=False, title=title)
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        emit([{name: _flat(item) for name, item in row.items()} for row in value], as_json=False, title=title)
    else:
        click.echo("" if value is None else value if isinstance(value, str) else json.dumps(value))


def show_value(value: Any, as_json: bool, name: str) -> None:
    """One value: bare, or as a JSON object."""
    if as_json:
        print_json({name: value})
    else:
        click.echo(value)


def _flat(value: Any) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
