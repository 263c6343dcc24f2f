"""Compacting a topic over the admin API, and what is left of it for those who read compacted."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pulsar

from magnetar.testing.server import ServerProcess
from tests.support.waiting import wait_until

COMPACTION_TIMEOUT_S = 20.0


def admin(server: ServerProcess, method: str, path: str, body: object = None) -> Any:
    """The JSON that `path` below /admin/v2 answers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.http_url}/admin/v2/{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=COMPACTION_TIMEOUT_S) as response:
        answer = response.read()
    return json.loads(answer) if answer else None


def refused(server: ServerProcess, method: str, path: str, body: object = None) -> int:
    """The status of a call that must fail."""
    try:
        admin(server, method, path, body)
    except urllib.error.HTTPError as error:
        return error.code
    raise AssertionError(f"{method} {path} succeeded")


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def hold(server: ServerProcess, namespace: str = "public/default") -> None:
    """From now on topics keep what was not compacted; the threshold itself is never reached."""
    admin(server, "PUT", f"namespaces/{namespace}/compactionThreshold", 2**40)


def compact(server: ServerProcess, topic: str) -> None:
    """Start, wait, succeed."""
    admin(server, "PUT", f"{path_of(topic)}/compaction")
    wait_until(lambda: status(server, topic) != "RUNNING", COMPACTION_TIMEOUT_S, "the end of the compaction")
    assert admin(server, "GET", f"{path_of(topic)}/compaction") == {"status": "SUCCESS", "lastError": ""}


def status(server: ServerProcess, topic: str) -> str:
    return str(admin(server, "GET", f"{path_of(topic)}/compaction")["status"])


def drop_consumed(server: ServerProcess, topic: str) -> list[int]:
    """Trim what is consumed, compacted and not retained; the ledgers that are left."""
    admin(server, "POST", f"{path_of(topic)}/trim")
    return [held["ledgerId"] for held in admin(server, "GET", f"{path_of(topic)}/internalStats")["ledgers"]]


def read_compacted(client: pulsar.Client, topic: str, start: pulsar.MessageId | None = None) -> list[pulsar.Message]:
    """Everything a reader gets until it says that no more is available."""
    reader = client.create_reader(topic, start or pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000))
    reader.close()
    return found


def table_of(messages: list[pulsar.Message]) -> dict[str, bytes]:
    """The messages replayed: empty values delete."""
    table: dict[str, bytes] = {}
    for message in messages:
        if message.data():
            table[message.partition_key()] = message.data()
        else:
            table.pop(message.partition_key(), None)
    return table


def table_view(client: pulsar.Client, topic: str) -> dict[str, bytes]:
    """What a new table view holds."""
    view = client.create_table_view(topic)
    found: dict[str, bytes] = {}
    view.for_each(found.__setitem__)
    view.close()
    return found
