"""`magnetar schemas`: the names and flags of `pulsar-admin schemas`."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from magnetar.admin.documents.topics import SchemaInfo, SchemaPayload
from magnetar.cli.admin.common import show_document
from magnetar.cli.admin.http import admin_url_option, connected
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit, emit_done, emit_record, json_option, output_options, print_json


@click.group("schemas")
def schemas_group() -> None:
    """Show, upload, delete and compare the schemas of topics.

    A topic is named in full (persistent://tenant/namespace/topic) or by its last part alone, which means public/default.
    """


def payload_of(file: Path) -> SchemaPayload:
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
    payload = {"type": document["type"], "schema": text, "properties": document.get("properties") or {}}
    try:
        return msgspec.convert(payload, SchemaPayload)
    except msgspec.ValidationError as error:
        raise CommandError(f"{file}: {error}") from error


filename_option = click.option(
    "-f",
    "--filename",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='JSON file: {"type": "AVRO", "schema": ..., "properties": {}}.',
)


@schemas_group.command("get")
@click.argument("topic")
@click.option("-v", "--version", type=click.IntRange(0), help="Version of the schema. [default: the latest]")
@click.option("-a", "--all-version", "every", is_flag=True, help="Show all versions.")
@admin_url_option
@output_options
def get_command(topic: str, version: int | None, every: bool, admin_url: str, as_json: bool) -> None:
    """Show the schema of TOPIC."""
    with connected(admin_url) as admin:
        if every:
            all_of_them = admin.schemas.list(topic)
            show_document(all_of_them, as_json, topic)
            return
        found = admin.schemas.get(topic, version)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        emit_record(row_of(found) | {"data": found.data}, as_json=False, title=topic)


@schemas_group.command("list")
@click.argument("topic")
@admin_url_option
@output_options
def list_command(topic: str, admin_url: str, as_json: bool) -> None:
    """List all versions of the schema of TOPIC."""
    with connected(admin_url) as admin:
        found = admin.schemas.list(topic)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        emit([row_of(info) for info in found], as_json=False, title=topic)


def row_of(info: SchemaInfo) -> dict[str, object]:
    properties = ", ".join(f"{key}={value}" for key, value in sorted(info.properties.items()))
    return {"version": info.version, "type": info.type, "timestamp": info.timestamp, "properties": properties}


@schemas_group.command("metadata")
@click.argument("topic")
@admin_url_option
@output_options
def metadata_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show where the versions of TOPIC's schema are stored."""
    with connected(admin_url) as admin:
        show_document(admin.schemas.metadata(topic), as_json, topic)


@schemas_group.command("upload")
@click.argument("topic")
@filename_option
@admin_url_option
@output_options
def upload_command(topic: str, filename: Path, admin_url: str, as_json: bool) -> None:
    """Upload a schema to TOPIC; an identical schema keeps its version."""
    payload = payload_of(filename)
    with connected(admin_url) as admin:
        version = admin.schemas.upload(topic, payload)
    emit_record({"version": version}, as_json=as_json, title=topic)


@schemas_group.command("delete")
@click.argument("topic")
@click.option("-f", "--force", is_flag=True, help="Remove all versions; consumers cannot decode old messages any more.")
@admin_url_option
@json_option
def delete_command(topic: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete the schema of TOPIC. With --force all versions are removed."""
    with connected(admin_url) as admin:
        admin.schemas.delete(topic, force=force)
    emit_done(as_json, deleted=topic)


@schemas_group.command("compatibility")
@click.argument("topic")
@filename_option
@admin_url_option
@output_options
def compatibility_command(topic: str, filename: Path, admin_url: str, as_json: bool) -> None:
    """Check whether a schema is compatible with those of TOPIC."""
    payload = payload_of(filename)
    with connected(admin_url) as admin:
        answer = admin.schemas.compatibility(topic, payload)
    record = {"compatible": answer.compatibility, "strategy": answer.schema_compatibility_strategy}
    emit_record(record, as_json=as_json, title=topic)
