"""Names of topics, namespaces and subscriptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.base.limits import SUBSCRIPTION_NAME_BYTES_MAX, TOPIC_NAME_BYTES_MAX
from magnetar.broker.errors import InvalidTopicNameError, NotAllowedError
from magnetar.broker.naming import NamespaceName, TopicName, cursor_name, is_internal_cursor, subscription_name

ENTITY = st.text("abcXYZ019-=:._", min_size=1, max_size=20).filter(lambda text: text not in (".", ".."))
LOCAL = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1, max_size=40).filter(
    lambda text: text not in (".", "..")
)


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/t", "persistent://a/b/t"),
        ("persistent://a/b/t", "persistent://a/b/t"),
        ("non-persistent://a/b/t", "non-persistent://a/b/t"),
        ("persistent://a/b/t-partition-12", "persistent://a/b/t-partition-12"),
    ],
)
def test_complete_names(text: str, complete: str) -> None:
    assert str(TopicName.parse(text)) == complete


@pytest.mark.parametrize(
    ("local", "partition", "base"),
    [
        ("t", -1, "t"),
        ("t-partition-0", 0, "t"),
        ("t-partition-12", 12, "t"),
        ("t-partition-01", -1, "t-partition-01"),
        ("t-partition-", -1, "t-partition-"),
        ("t-partition--1", -1, "t-partition--1"),
        ("-partition-3", -1, "-partition-3"),
        ("t-partition-1-partition-2", 2, "t-partition-1"),
        ("t-partition-9999999999", -1, "t-partition-9999999999"),
        ("t-partition-\u0663", -1, "t-partition-\u0663"),
    ],
)
def test_partitions(local: str, partition: int, base: str) -> None:
    name = TopicName.parse(f"persistent://a/b/{local}")
    assert name.partition == partition
    assert name.partitioned_name.local_name == base


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "a/b/c/d",
        "other://a/b/c",
        "persistent://a/b",
        "persistent://a/b/",
        "persistent:///b/c",
        "persistent://a//c",
        "persistent://../b/c",
        "persistent://a/./c",
        "persistent://a b/c/d",
        "persistent://\u00e4/b/c",
        "persistent://a/b/.",
        "persistent://a/b/..",
        "persistent://a/b/\x00",
        "persistent://a/b/c\nd",
        "persistent://a/b/c\x7f",
        "x" * (TOPIC_NAME_BYTES_MAX + 1),
        "\u00e4" * (TOPIC_NAME_BYTES_MAX // 2 + 1),
    ],
)
def test_what_is_no_topic_name(text: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        TopicName.parse(text)


@given(tenant=ENTITY, namespace=ENTITY, local=LOCAL, index=st.integers(0, 10**9 - 1))
def test_parsing_gives_back_what_was_printed(tenant: str, namespace: str, local: str, index: int) -> None:
    name = TopicName("persistent", tenant, namespace, local)
    assert TopicName.parse(str(name)) == name
    part = name.partition_name(index)
    assert TopicName.parse(str(part)) == part
    assert (part.partition, part.partitioned_name) == (index, name)


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_an_error(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidTopicNameError:
        return
    assert TopicName.parse(str(name)) == name
    assert str(name).count("/") == 4


@pytest.mark.parametrize("text", ["", "a", "a/", "/a", "a/b/c", "a/..", "./b", "a b/c"])
def test_what_is_no_namespace(text: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        NamespaceName.parse(text)


def test_namespaces() -> None:
    assert str(NamespaceName.parse("tenant-1/name.space")) == "tenant-1/name.space"


@pytest.mark.parametrize("text", ["", ".", "..", "a\x00", "\t", "x" * (SUBSCRIPTION_NAME_BYTES_MAX + 1)])
def test_what_is_no_subscription_name(text: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        subscription_name(text)


@pytest.mark.parametrize("text", ["a", "a/b", "%2e", "\u00fc", "x" * SUBSCRIPTION_NAME_BYTES_MAX])
def test_subscription_names(text: str) -> None:
    assert subscription_name(text) == text


@pytest.mark.parametrize(
    "text", ["pulsar.repl.west", "pulsar.dedup", "pulsar.", "pulsar.replicated.subscriptions", "__compaction"]
)
def test_internal_cursors_are_no_subscriptions(text: str) -> None:
    assert is_internal_cursor(cursor_name(text))
    with pytest.raises(NotAllowedError, match="choose another name"):
        subscription_name(text)
    for other in (f"my.{text}", text.upper(), f" {text}"):
        assert not is_internal_cursor(subscription_name(other))
