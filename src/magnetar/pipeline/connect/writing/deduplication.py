"""Broker deduplication of a topic: whether it is on, and switching it on where that is allowed."""

from __future__ import annotations

import time
from typing import Final

from magnetar.pipeline.connect.admin_rest import AdminRest
from magnetar.pipeline.connect.errors import AdminRequestError
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.connect.segment_order import SCALABLE, is_scalable

ENABLED_TIMEOUT_S: Final = 10.0
"""For the broker to apply the policy; after that there is a warning."""
_POLL_S: Final = 0.1


def _of_scalable(admin: AdminRest, topic: str) -> str | None:
    """Its segments do what the namespace says: that is for who administers it."""
    tenant_namespace = topic.removeprefix(SCALABLE).rpartition("/")[0]
    advice = (
        f"{topic}: it is not known that the broker drops repeated messages, so after a crash some may be sent again. "
        f"Switch it on with `magnetar namespaces set-deduplication --enable {tenant_namespace}`"
    )
    try:
        return None if admin.namespace_deduplication(topic) else advice
    except AdminRequestError as error:
        return f"{advice} ({error})"


def ensure_deduplication(connection: Connection, topic: str, partitions: list[str]) -> str | None:
    """None when the broker drops repeated messages of the topic, else a warning that says what to do. The topic is there."""
    advice = (
        f"{topic}: it is not known that the broker drops repeated messages, so after a crash some may be sent again. "
        f"Switch it on with `magnetar topicPolicies set-deduplication --enable {topic}`"
    )
    if connection.admin_url is None:
        return f"{advice}, or give admin.url and it is done here"
    admin = AdminRest(connection)
    if is_scalable(topic):
        return _of_scalable(admin, topic)
    try:
        if not admin.deduplication(topic):
            admin.set_deduplication(topic)
        give_up = time.monotonic() + ENABLED_TIMEOUT_S
        while not all(admin.deduplicates(name) for name in partitions):
            if time.monotonic() >= give_up:
                return advice
            time.sleep(_POLL_S)
    except AdminRequestError as error:
        return f"{advice} ({error})"
    return None
