"""What the console shows of messages, schemas, policies and keys, and what it does: publish, skip, reset, clear."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pulsar
import pytest
import requests
from pulsar.schema import AvroSchema, Double, Integer, JsonSchema, Record, String

from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api
from tests.integration.admin.test_console import HOSTILE, Elements, Pages, topic_page
from tests.support.waiting import wait_until


class Order(Record):
    id = Integer()
    customer = String()
    total = Double()


@pytest.fixture
def pages(server: ServerProcess) -> Iterator[Pages]:
    found = Pages(server)
    yield found
    found.session.close()


def post(pages: Pages, form: str, fields: dict[str, str], path: str = "", status: int = 303) -> requests.Response:
    """The form of a page with its token, sent to `path` or to the page itself."""
    token = re.search(r'name="form_token" value="(\w+)"', pages.get(form).text)
    assert token is not None
    response = pages.session.post(
        f"{pages.base}{path or form}", fields | {"form_token": token[1]}, timeout=60, allow_redirects=False
    )
    assert response.status_code == status, response.text[-2000:]
    return response


def browse(api: Api, topic: str, **query: object) -> dict:  # type: ignore[type-arg]
    return api.call("GET", topic.replace("://", "/") + "/messages", params=query).json()


def test_messages_page_by_page(api: Api, namespace: str, client: pulsar.Client) -> None:
    """Batches and single messages; both ways, and each once."""
    topic = f"persistent://{namespace}/log"
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000)
    for number in range(7):
        producer.send_async(f"b{number}".encode(), None, partition_key=f"k{number % 2}")
    producer.flush()
    single = client.create_producer(topic, batching_enabled=False)
    for number in range(5):
        single.send(f"s{number}".encode())
    seen, start = [], "earliest"
    while start:
        page = browse(api, topic, **{"from": start, "limit": 4})
        seen += [each["text"] for each in page["messages"]]
        start = page["next"]
    assert seen == [*(f"b{number}" for number in range(7)), *(f"s{number}" for number in range(5))]
    assert [each["text"] for each in browse(api, topic, key="k1")["messages"]] == ["b1", "b3", "b5"]
    last = browse(api, topic, **{"from": "latest", "limit": 2})
    assert [each["text"] for each in last["messages"]] == ["s3", "s4"]
    before = browse(api, topic, **{"from": last["previous"], "limit": 2})
    assert [each["text"] for each in before["messages"]] == ["s1", "s2"]
    assert browse(api, topic, **{"from": "0:0"})["messages"][0]["text"] == "b0"
    assert browse(api, topic, **{"from": f"{2**62}:0"})["messages"] == []
    moment = last["messages"][0]["publishTime"]
    assert browse(api, topic, time=moment)["messages"][-1]["text"] == "s4"
    assert browse(api, topic, time=moment + 10**9)["messages"] == []
    path = topic.replace("://", "/") + "/messages"
    for wrong in ("1", "a:b", "1:2:3:4", "-1:0", "١:٢"):
        assert "LEDGER:ENTRY" in api.reason("GET", f"{path}?from={wrong}", status=400)


def test_messages_are_decoded_by_their_schema(api: Api, pages: Pages, namespace: str, client: pulsar.Client) -> None:
    for name, schema in (("avro", AvroSchema(Order)), ("json", JsonSchema(Order))):
        producer = client.create_producer(f"persistent://{namespace}/{name}", schema=schema)
        producer.send(Order(id=7, customer="Łukasz", total=1.5), properties={"source": "web"})
        (shown,) = browse(api, f"persistent://{namespace}/{name}")["messages"]
        assert json.loads(shown["text"]) == {"id": 7, "customer": "Łukasz", "total": 1.5}
        assert shown["encoding"] == name.upper()
        assert shown["schemaVersion"] == 0
        text = pages.text(topic_page(namespace, name, "/messages"))
        assert '"customer": "Łukasz"' in text
        assert "source=web" in text


def test_any_bytes_are_shown(api: Api, pages: Pages, namespace: str, client: pulsar.Client) -> None:
    topic = f"persistent://{namespace}/bytes"
    producer = client.create_producer(topic, compression_type=pulsar.CompressionType.ZSTD)
    payloads = [b"\xff\x00", b"", b"[" * 5000, b"x" * 10_000, HOSTILE.encode(), b'{"a":1}', b'{"a":NaN}', b"12"]
    for payload in payloads:
        producer.send(payload, partition_key=HOSTILE, properties={HOSTILE: HOSTILE})
    shown = browse(api, topic)["messages"]
    assert [each["encoding"] for each in shown] == ["hex", "text", "text", "text", "text", "JSON", "JSON", "text"]
    assert shown[0]["text"] == "ff00"
    assert shown[3]["truncated"]
    assert len(shown[3]["text"]) == 4096
    page = pages.get(topic_page(namespace, "bytes", "/messages")).text
    found = Elements(page)
    assert [each for _, each in found.found if any(name.startswith("on") for name in each)] == []
    assert found.text.count("onerror=alert(1)") >= 10


def test_a_message_published_by_hand(api: Api, pages: Pages, namespace: str, client: pulsar.Client) -> None:
    name = topic_page(namespace, "hand", "/messages")
    topic = f"persistent://{namespace}/hand"
    consumer = client.subscribe(topic, "s")
    response = post(pages, name, {"payload": "hello", "key": "k", "properties": "a=1\r\nb = x=y\r\n"})
    assert "Published" in response.headers["Location"]
    message = consumer.receive(30_000)
    assert (message.data(), message.partition_key(), message.properties()) == (b"hello", "k", {"a": "1", "b": " x=y"})
    assert "NAME=VALUE" in post(pages, name, {"payload": "x", "properties": "a"}, status=400).text
    avro = client.create_producer(f"persistent://{namespace}/typed", schema=AvroSchema(Order))
    reader = client.subscribe(f"persistent://{namespace}/typed", "s", schema=AvroSchema(Order))
    typed = topic_page(namespace, "typed", "/messages")
    good = '{"id": 1, "customer": "c", "total": 2.5}'
    post(pages, typed, {"payload": good, "by_schema": "yes"})
    assert reader.receive(30_000).value().customer == "c"
    assert "schema" in post(pages, typed, {"payload": '{"id": "x"}', "by_schema": "yes"}, status=400).text
    assert "not JSON" in post(pages, typed, {"payload": "{", "by_schema": "yes"}, status=400).text
    avro.close()
    for wrong in (
        {"payload": "\ud800"},
        {"payload": "x", "key": "\udfff"},
        {"payload": "x", "eventTime": -1},
        {},
        {"payload": 1},
    ):
        api.post(f"persistent/{namespace}/hand/messages", wrong, 400)
    exclusive = client.create_producer(
        f"persistent://{namespace}/alone", access_mode=pulsar.ProducerAccessMode.Exclusive
    )
    refused = post(pages, topic_page(namespace, "alone", "/messages"), {"payload": "x"}, status=412).text
    assert "exclusive" in refused.lower() or "Exclusive" in refused
    exclusive.close()
    api.post(f"{topic.replace('://', '/')}/terminate", status=200)
    assert "terminated" in post(pages, name, {"payload": "x"}, status=405).text
    assert api.get(f"{topic.replace('://', '/')}/stats")["publishers"] == []


def test_a_subscription_is_changed_after_a_preview(
    api: Api, pages: Pages, namespace: str, client: pulsar.Client
) -> None:
    topic, path = f"persistent://{namespace}/work", f"persistent/{namespace}/work"
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(f"m{number}".encode()) for number in range(10)]
    page = topic_page(namespace, "work", "/subscriptions/s")

    def backlog() -> int:
        return int(api.get(f"{path}/stats")["subscriptions"]["s"]["msgBacklog"])

    preview = post(pages, page, {"count": "4"}, f"{page}/skip", 200)
    text = Elements(preview.text).text
    assert "10 entries" in text
    assert "about 6 entries" in text
    assert "m0" in text
    assert backlog() == 10, "a preview does nothing"
    post(pages, page, {"count": "4", "confirm": "yes"}, f"{page}/skip")
    assert backlog() == 6
    post(pages, page, {"confirm": "yes"}, f"{page}/clear")
    assert backlog() == 0
    post(pages, page, {"to": "earliest", "confirm": "yes"}, f"{page}/reset")
    assert backlog() == 10
    place = f"{ids[7].ledger_id()}:{ids[7].entry_id()}"
    done = post(pages, page, {"to": "message", "message": place, "confirm": "yes"}, f"{page}/reset")
    assert backlog() == 3
    assert "Done" in pages.text(done.headers["Location"])
    post(pages, page, {"to": "time", "time": "2001-01-01T00:00", "confirm": "yes"}, f"{page}/reset")
    assert backlog() == 10
    for action, fields, status in (
        ("skip", {"count": "x"}, 400),
        ("skip", {"count": "-1"}, 400),
        ("reset", {"to": "time", "time": "soon"}, 400),
        ("reset", {"to": "message", "message": "1"}, 400),
        ("burn", {}, 404),
    ):
        post(pages, page, {**fields, "confirm": "yes"}, f"{page}/{action}", status)
    assert backlog() == 10
    pages.get(topic_page(namespace, "work", "/subscriptions/nobody"), 404)


def test_a_form_needs_its_token(pages: Pages, api: Api, namespace: str, client: pulsar.Client) -> None:
    topic = f"persistent://{namespace}/guarded"
    client.subscribe(topic, "s").close()
    client.create_producer(topic).send(b"x")
    page = topic_page(namespace, "guarded", "/subscriptions/s")
    pages.get(page)
    for fields in ({}, {"form_token": "x"}, {"form_token": "0" * 64}):
        for path in (f"{page}/clear", topic_page(namespace, "guarded", "/messages")):
            response = pages.session.post(
                f"{pages.base}{path}", {**fields, "confirm": "yes", "payload": "x"}, timeout=10
            )
            assert response.status_code == 403
    assert api.get(f"persistent/{namespace}/guarded/stats")["subscriptions"]["s"]["msgBacklog"] == 1


def test_schemas_are_compared(api: Api, pages: Pages, namespace: str) -> None:
    fields = [{"name": "a", "type": "string"}]
    for more in ([], [{"name": HOSTILE.encode("ascii", "ignore").hex(), "type": "int", "default": 1}]):
        fields += more
        text = json.dumps({"type": "record", "name": "R", "fields": fields})
        api.post(
            f"schemas/{namespace}/typed/schema",
            {"type": "AVRO", "schema": text, "properties": {HOSTILE[:-1]: "<b>"}},
            200,
        )
    page = pages.get(topic_page(namespace, "typed", "/schemas")).text
    found = Elements(page)
    added = [attributes for tag, attributes in found.found if attributes.get("class") == "add"]
    assert len(added) >= 4
    assert "From version 0 to 1" in found.text
    assert "&lt;b&gt;" in page
    assert [each for _, each in found.found if any(name.startswith("on") for name in each)] == []
    same = pages.text(topic_page(namespace, "typed", "/schemas?old=1&new=1"))
    assert "From version" not in same
    assert "no schema" in pages.text(topic_page(namespace, "untyped", "/schemas"))


def test_policies_say_where_they_come_from(api: Api, pages: Pages, namespace: str) -> None:
    api.put(f"persistent/{namespace}/ruled")
    api.post(f"namespaces/{namespace}/retention", {"retentionTimeInMinutes": 30, "retentionSizeInMB": 10})
    api.post(f"namespaces/{namespace}/maxProducersPerTopic", 5)
    api.post(f"persistent/{namespace}/ruled/maxProducers", 2)
    found = api.get(f"persistent/{namespace}/ruled/policySources")
    assert (found["max_producers"]["level"], found["max_producers"]["effective"]) == ("topic", 2)
    assert found["max_producers"]["namespace"] == 5
    assert found["retention"]["level"] == "namespace"
    assert found["max_consumers"]["level"] == "broker"
    for name, applied in (("max_producers", "maxProducers"), ("retention", "retention"), ("message_ttl", "messageTTL")):
        assert found[name]["effective"] == api.get(f"persistent/{namespace}/ruled/{applied}?applied=true")
    text = pages.text(topic_page(namespace, "ruled", "/policies"))
    assert text.index("max producers") < text.index("retention") < text.index("max consumers")
    assert "retention" in pages.text(f"/console/tenants/{namespace}/policies")


def test_bundles(pages: Pages, api: Api, namespace: str, client: pulsar.Client) -> None:
    client.create_producer(f"persistent://{namespace}/x").close()
    page = pages.get(f"/console/tenants/{namespace}/bundles").text
    assert "0x00000000_0x40000000" in page
    assert "taken when a client asks" in page
    assert 'class="c0"' in page


def test_keys_over_consumers_and_slots_that_drain(
    api: Api, pages: Pages, namespace: str, client: pulsar.Client
) -> None:
    """A consumer holds messages of all keys; another one joins: its slots drain until the first one acknowledges."""
    topic = f"persistent://{namespace}/keys"
    kind = pulsar.ConsumerType.KeyShared
    first = client.subscribe(topic, "s", consumer_type=kind, consumer_name="first")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(50):
        producer.send(b"x", partition_key=f"key-{number}")
    held = [first.receive(30_000) for _ in range(50)]
    page = topic_page(namespace, "keys", "/subscriptions/s")
    assert "100.0 %" in pages.text(page)
    second = client.subscribe(topic, "s", consumer_type=kind, consumer_name="second")
    stats = api.get(f"persistent/{namespace}/keys/stats")["subscriptions"]["s"]["consumers"]
    draining = next(each for each in stats if each["consumerName"] == "first")
    assert draining["drainingHashesCount"] > 0
    assert draining["drainingHashesUnackedMessages"] >= draining["drainingHashesCount"]
    found = pages.get(page)
    assert f"{draining['drainingHashesCount']} slots drain" in Elements(found.text).text
    assert re.search(r"first\s+\d+\s+second", Elements(found.text.replace("<td", " <td")).text), (
        "who holds it, and who waits"
    )
    assert found.text.count('class="drain"') == draining["drainingHashesCount"]
    assert 'class="arc c1"' in found.text
    for message in held:
        first.acknowledge(message)
    wait_until(lambda: "slots drain" not in pages.text(page))
    assert "2 consumers are connected" in pages.text(page)
    second.close()


def test_what_an_ordinary_page_costs(pages: Pages, api: Api, namespace: str, client: pulsar.Client) -> None:
    """A topic with 120 subscriptions is one page with the first ones."""
    topic = f"persistent://{namespace}/many"
    client.create_producer(topic).close()
    for number in range(120):
        api.put(f"persistent/{namespace}/many/subscription/s{number:03}")
    page = pages.text(topic_page(namespace, "many"))
    assert "s099" in page
    assert "s100" not in page
    assert "The first 100 are shown" in page
    began_s = time.monotonic()
    pages.get(topic_page(namespace, "many", "/subscriptions/s110"))
    assert time.monotonic() - began_s < 20


def test_why(api: Api, pages: Pages, namespace: str, client: pulsar.Client) -> None:
    """Every "why?" leads to what `explain` answers, with names of strangers as text."""
    topic = f"persistent://{namespace}/stuck"
    client.subscribe(topic, HOSTILE).close()
    client.create_producer(topic).send(b"x")
    shown = Elements(pages.get(topic_page(namespace, "stuck")).text)
    links = {attributes["href"] for _, attributes in shown.found if attributes.get("class") == "why"}
    assert len(links) == 2
    for link in sorted(str(each) for each in links):
        answer = pages.get(link).text
        query = link.removeprefix("/console/")
        document = api.get(query)
        found = Elements(answer)
        for reason in document["reasons"]:
            assert reason["code"] in found.text
        assert [each for _, each in found.found if any(name.startswith("on") for name in each)] == []
        assert pages.first_events(link)["answer"]
    pages.get("/console/explain/nonsense?topic=x", 404)
