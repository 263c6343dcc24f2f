"""Schemas over the admin API: upload, show, versions, compatibility, deletion, and the policies around them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record

from tests.integration.admin.conftest import Api


def avro(*names: str, default: bool = True) -> dict[str, object]:
    fields = [{"name": name, "type": "string"} | ({"default": ""} if default else {}) for name in names]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    return {"type": "AVRO", "schema": schema, "properties": {"owner": "me"}}


@pytest.fixture
def path(namespace: str) -> str:
    return f"schemas/{namespace}/topic"


def upload(api: Api, path: str, body: object, status: int = 200) -> int:
    return int(api.call("POST", f"{path}/schema", body, status).json()["version"]["version"])


def test_upload_and_show(api: Api, path: str) -> None:
    assert api.reason("GET", f"{path}/schema", status=404) == "Schema not found"
    assert api.get(f"{path}/schemas") == {"getSchemaResponses": []}
    assert [upload(api, path, avro("a")), upload(api, path, avro("a", "b")), upload(api, path, avro("a"))] == [0, 1, 0]
    latest = api.get(f"{path}/schema")
    assert latest.pop("timestamp") > 0
    assert latest == {
        "version": 1,
        "type": "AVRO",
        "data": avro("a", "b")["schema"],
        "properties": {"owner": "me"},
    }
    assert api.get(f"{path}/schema/0")["data"] == avro("a")["schema"]
    assert [one["version"] for one in api.get(f"{path}/schemas")["getSchemaResponses"]] == [0, 1]
    places = api.get(f"{path}/metadata")
    assert [place["version"] for place in places["index"]] == [0, 1]
    assert places["info"] == places["index"][1]
    assert api.reason("GET", f"{path}/schema/7", status=404) == "Schema not found"
    assert "must be a number" in api.reason("GET", f"{path}/schema/x", status=404)


def test_version_and_compatibility(api: Api, path: str) -> None:
    upload(api, path, avro("a"))
    assert api.call("POST", f"{path}/version", avro("a")).json() == {"version": 0}
    assert api.call("POST", f"{path}/version", avro("z")).json() == {"version": -1}
    for body, expected in ((avro("a", "b"), True), (avro("a", "b", default=False), False), ({"type": "STRING"}, False)):
        answer = api.call("POST", f"{path}/compatibility", body).json()
        assert answer == {"compatibility": expected, "schemaCompatibilityStrategy": "FULL"}
    assert "FULL" in api.reason("POST", f"{path}/schema", avro("b", default=False), status=409)


def test_deletion(api: Api, path: str) -> None:
    assert api.reason("DELETE", f"{path}/schema", status=404) == "Schema not found"
    upload(api, path, avro("a"))
    assert api.call("DELETE", f"{path}/schema").json() == {"version": 1}
    for gone in ("schema", "schema/0", "schema/1"):
        api.get(f"{path}/{gone}", status=404)
    assert upload(api, path, {"type": "INT64"}) == 2
    assert api.call("DELETE", f"{path}/schema?force=true").json() == {"version": 2}
    api.get(f"{path}/schema/0", status=404)
    assert upload(api, path, {"type": "STRING", "schema": None}) == 0


def test_the_schema_none_is_one(api: Api, path: str) -> None:
    assert upload(api, path, {"type": "NONE", "schema": ""}) == 0
    assert api.get(f"{path}/schema")["type"] == "NONE"
    assert "INT64" in api.reason("POST", f"{path}/schema", {"type": "INT64", "schema": ""}, status=409)


def test_key_value_is_readable_json(api: Api, path: str) -> None:
    document = {"key": "", "value": json.loads(str(avro("a")["schema"]))}
    properties = {"key.schema.type": "STRING", "value.schema.type": "AVRO", "kv.encoding.type": "SEPARATED"}
    upload(api, path, {"type": "KEY_VALUE", "schema": json.dumps(document), "properties": properties})
    shown = api.get(f"{path}/schema")
    assert json.loads(shown["data"]) == document
    assert shown["properties"] == properties


REFUSED: list[tuple[object, int]] = [
    (None, 400),
    ([], 400),
    ({"schema": "{}"}, 400),
    ({"type": "NOTHING", "schema": "{}"}, 400),
    ({"type": "AVRO", "schema": {"type": "int"}}, 400),
    ({"type": "AVRO", "schema": "{}", "properties": {"a": 1}}, 400),
    ({"type": "AVRO", "schema": "{}", "properties": {"a": "\ud800"}}, 400),
    ({"type": "AVRO", "schema": "{}"}, 422),
    ({"type": "AVRO", "schema": '"\\ud800"'}, 422),
    ({"type": "JSON", "schema": "\ud800"}, 422),
    ({"type": "JSON", "schema": "[" * 100_000}, 422),
    ({"type": "KEY_VALUE", "schema": "[]"}, 422),
    ({"type": "KEY_VALUE", "schema": '{"key": "\\ud800", "value": 1}'}, 0),
    ({"type": "KEY_VALUE", "schema": '{"key": ' + "[" * 900 + "]" * 900 + ', "value": ""}'}, 422),
    ({"type": "PROTOBUF_NATIVE", "schema": "{}"}, 422),
    ({"type": "AUTO_CONSUME", "schema": ""}, 422),
]


@pytest.mark.parametrize(("body", "status"), REFUSED, ids=[str(index) for index in range(len(REFUSED))])
def test_nonsense_is_refused(api: Api, path: str, body: object, status: int) -> None:
    for action in ("schema", "version", "compatibility"):
        if status:
            assert api.reason("POST", f"{path}/{action}", body, status=status)
        else:
            api.call("POST", f"{path}/{action}", body)
    assert status == 0 or api.get(f"{path}/schemas") == {"getSchemaResponses": []}


def test_a_missing_namespace(api: Api) -> None:
    for method, path in (("GET", "schema"), ("DELETE", "schema"), ("GET", "schemas"), ("GET", "schema/0")):
        assert api.reason(method, f"schemas/public/nothing/t/{path}", status=404) == "Namespace not found"
    assert api.reason("POST", "schemas/public/nothing/t/schema", avro("a"), status=404) == "Namespace not found"


def test_policies(api: Api, namespace: str) -> None:
    base = f"namespaces/{namespace}"
    assert api.get(f"{base}/schemaCompatibilityStrategy") == "UNDEFINED"
    assert api.get(f"{base}/schemaValidationEnforced") is False
    assert api.get(f"{base}/isAllowAutoUpdateSchema") is True
    api.put(f"{base}/schemaCompatibilityStrategy", "BACKWARD_TRANSITIVE")
    api.post(f"{base}/schemaValidationEnforced", True)
    api.post(f"{base}/isAllowAutoUpdateSchema", False)
    document = api.get(base)
    assert document["schema_compatibility_strategy"] == "BACKWARD_TRANSITIVE"
    assert document["schema_validation_enforced"] is True
    assert document["is_allow_auto_update_schema"] is False
    assert api.get(f"{base}/isAllowAutoUpdateSchema") is False
    api.call("PUT", f"{base}/schemaCompatibilityStrategy", "SOMETIMES", 400)
    api.post(f"{base}/schemaValidationEnforced", "yes", status=400)


class Number(Record):
    n = Integer(required=True)


def test_what_a_client_brought_is_what_the_api_shows(
    api: Api, namespace: str, client: pulsar.Client, path: str, connect: Callable[..., pulsar.Client]
) -> None:
    client.create_producer(f"{namespace}/topic", schema=AvroSchema(Number))
    assert json.loads(api.get(f"{path}/schema")["data"]) == Number.schema()
    over_http = connect(api.base)
    over_http.subscribe(f"{namespace}/topic", "s", schema=AvroSchema(Number))


def test_a_deleted_namespace_takes_all_schemas_along(api: Api, namespace: str, path: str) -> None:
    upload(api, path, avro("a"))
    api.delete(f"namespaces/{namespace}")
    api.put(f"namespaces/{namespace}")
    api.get(f"{path}/schema", status=404)
    assert upload(api, path, {"type": "STRING"}) == 0
