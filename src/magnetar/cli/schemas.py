"""`magnetar schemas`: the names and flags of `pulsar-admin schemas`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from magnetar.broker.naming import TopicName
from magnetar.cli.admin_http import admin_url_option, request
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit, emit_record, json_option, print_json


@click.group("schemas")
def schemas_group() -> None:
    """Show, upload, delete and compare the schemas of topics.

    A topic is named in full (persistent://tenant/namespace/topic) or by its last part alone, which means public/default.
    """


def schema_path(topic: str) -> str:
    """`schemas/tenant/namespace/topic`, quoted. Raises InvalidTopicNameError."""
    name = TopicName.parse(topic)
    return "/".join(("schemas", name.tenant, name.namespace, quote(name.local_name, safe="")))


def payload_of(file: Path) -> dict[str, Any]:
    """A file as `pulsar-admin` takes it: `{"type": ..., "schema": ..., "properties": {...}}`.

    The schema may be a text, or the JSON itself. Raises CommandError.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{file}: {error}") from error
    if not isinstance(document, dict) or "type" not in document:
        raise CommandError(f'{file} must be {{"type": "AVRO", "schema": ..., "properties": {{}}}}')
    schema = document.get("schema", "")
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return {"type": document["type"], "schema": text, "properties": document.get("properties") or {}}


filename_option = click.option(
    "-f",
    "--filename",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='JSON file: {"type": "AVRO", "schema": ..., "properties": {}}.',
)


@schemas_group.command("get")
@click.argument("topic")
@click.option("-v", "--version", type=click.IntRange(0), help="A version; without it the latest.")
@admin_url_option
@json_option
def get_command(topic: str, version: int | None, admin_url: str, as_json: bool) -> None:
    """Show the schema of TOPIC."""
    path = f"{schema_path(topic)}/schema" + ("" if version is None else f"/{version}")
    document = request("GET", admin_url, path).json()
    if as_json:
        print_json(document)
    else:
        emit_record(row_of(document) | {"data": document["data"]}, as_json=False, title=topic)


@schemas_group.command("list")
@click.argument("topic")
@admin_url_option
@json_option
def list_command(topic: str, admin_url: str, as_json: bool) -> None:
    """All versions of the schema of TOPIC."""
    documents = request("GET", admin_url, f"{schema_path(topic)}/schemas").json()["getSchemaResponses"]
    if as_json:
        print_json(documents)
    else:
        emit([row_of(document) for document in documents], as_json=False, title=topic)


def row_of(document: dict[str, Any]) -> dict[str, object]:
    properties = ", ".join(f"{key}={value}" for key, value in sorted((document.get("properties") or {}).items()))
    return {name: document.get(name) for name in ("version", "type", "timestamp")} | {"properties": properties}


@schemas_group.command("upload")
@click.argument("topic")
@filename_option
@admin_url_option
@json_option
def upload_command(topic: str, filename: Path, admin_url: str, as_json: bool) -> None:
    """Add a schema to TOPIC; one that it has already keeps its version."""
    answer = request("POST", admin_url, f"{schema_path(topic)}/schema", payload_of(filename)).json()
    emit_record({"version": answer["version"]["version"]}, as_json=as_json, title=topic)


@schemas_group.command("delete")
@click.argument("topic")
@click.option("-f", "--force", is_flag=True, help="Remove all versions; consumers cannot decode old messages any more.")
@admin_url_option
def delete_command(topic: str, force: bool, admin_url: str) -> None:
    """Delete the schema of TOPIC. Its versions stay readable by number, for messages that carry them."""
    request("DELETE", admin_url, f"{schema_path(topic)}/schema?force={str(force).lower()}")


@schemas_group.command("compatibility")
@click.argument("topic")
@filename_option
@admin_url_option
@json_option
def compatibility_command(topic: str, filename: Path, admin_url: str, as_json: bool) -> None:
    """Would TOPIC take this schema?"""
    answer = request("POST", admin_url, f"{schema_path(topic)}/compatibility", payload_of(filename)).json()
    record = {"compatible": answer["compatibility"], "strategy": answer["schemaCompatibilityStrategy"]}
    emit_record(record, as_json=as_json, title=topic)
