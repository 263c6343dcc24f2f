"""`magnetar schemas` against the real admin API."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.cli.conftest import Shell


def write(folder: Path, name: str, *fields: str, **attributes: object) -> str:
    """A file as pulsar-admin takes it; the schema as JSON, not as a text."""
    made = [{"name": field, "type": "string", **attributes} for field in fields]
    file = folder / name
    file.write_text(json.dumps({"type": "AVRO", "schema": {"type": "record", "name": "R", "fields": made}}))
    return str(file)


def test_upload_get_list_and_delete(shell: Shell, tmp_path: Path) -> None:
    one, two = write(tmp_path, "1.json", "a", default=""), write(tmp_path, "2.json", "a", "b", default="")
    assert json.loads(shell.run("schemas", "upload", "shaped", "-f", one, "--json")) == {"version": 0}
    assert shell.run("schemas", "upload", "shaped", "-f", two, "--table") == "version\t1\n"
    latest = json.loads(shell.run("schemas", "get", "shaped", "--json"))
    assert (latest["version"], latest["type"]) == (1, "AVRO")
    assert "type\tAVRO" in shell.run("schemas", "get", "shaped", "-v", "0", "--table")
    assert [one["version"] for one in json.loads(shell.run("schemas", "list", "shaped", "--json"))] == [0, 1]
    assert shell.run("schemas", "list", "shaped", "--table").startswith("version\ttype\t")
    shell.run("schemas", "delete", "shaped")
    assert "HTTP 404" in shell.run("schemas", "get", "shaped", code=1)
    shell.run("schemas", "delete", "shaped", "--force")
    assert "HTTP 404" in shell.run("schemas", "get", "shaped", "-v", "0", code=1)


def test_compatibility(shell: Shell, tmp_path: Path) -> None:
    shell.run("schemas", "upload", "compared", "-f", write(tmp_path, "1.json", "a"))
    same, other = write(tmp_path, "2.json", "a"), write(tmp_path, "3.json", "b")
    assert json.loads(shell.run("schemas", "compatibility", "compared", "-f", same, "--json")) == {
        "compatible": True,
        "strategy": "FULL",
    }
    assert "compatible\tno" in shell.run("schemas", "compatibility", "compared", "-f", other, "--table")
    assert "HTTP 409" in shell.run("schemas", "upload", "compared", "-f", other, code=1)


def test_files_that_are_no_schemas(shell: Shell, tmp_path: Path) -> None:
    for text in ("", "[]", "{}"):
        (tmp_path / "x.json").write_text(text)
        error = shell.run("schemas", "upload", "t", "-f", str(tmp_path / "x.json"), code=1)
        assert error.startswith("magnetar: ")
        assert error.count("\n") == 1
