"""Names of topics, namespaces and subscriptions: Pulsar's rules in one place.

    topic                                -> persistent://public/default/topic
    tenant/namespace/topic               -> persistent://tenant/namespace/topic
    {persistent|non-persistent}://tenant/namespace/topic[-partition-N]
    topic://tenant/namespace/topic       a scalable topic (PIP-460), which is made of segments
    segment://tenant/namespace/topic/0000-7fff-1   one of its segments: first hash, last hash, id

Names are checked here, at the parser, once and for all: what comes out can be used in metadata paths and URLs without thought.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from magnetar.base.limits import SUBSCRIPTION_NAME_BYTES_MAX, TOPIC_NAME_BYTES_MAX
from magnetar.broker.errors import InvalidTopicNameError, NotAllowedError

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
DOMAINS = (PERSISTENT, NON_PERSISTENT)
SCALABLE = "topic"
SEGMENT = "segment"
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"
PARTITION_SUFFIX = "-partition-"
SYSTEM_NAMESPACE = "pulsar/system"
SYSTEM_TOPIC_PREFIX = "__"
"""Name prefix of the server's own topics: limits do not count them, lists do not show them, other clusters keep their own."""

TRANSACTION_LOG_PREFIX = "__transaction_log_"
"""Name prefix of the logs of transaction coordinators, in the system namespace."""

COMPACTION_CURSOR = "__compaction"
"""Cursor of every compacted topic, which marks how far it is compacted (Pulsar's name)."""

INTERNAL_CURSOR_PREFIX = "pulsar."
"""Name prefix of all other cursors that the server keeps for itself: `pulsar.repl.<cluster>`, `pulsar.dedup`, `pulsar.transactions`,
`pulsar.replicated.subscriptions...`."""

PENDING_ACKS_SUFFIX = "__transaction_pending_ack"
"""Name suffix, behind `<topic>-<subscription>`, of the logs of pending acknowledgements of transactions."""

_NAMED_ENTITY = re.compile(r"[-=:.\w]+\Z", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_RELATIVE = (".", "..")  # no metadata path may hold them: ZooKeeper refuses them, and they are never escaped
_SEGMENT = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]{0,18})\Z")
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})\Z", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/namespace`."""

    tenant: str
    namespace: str

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        """Raises InvalidTopicNameError for anything but `tenant/namespace`."""
        parts = text.split("/")
        if len(parts) != 2:
            raise InvalidTopicNameError(f"'{text}' is not a namespace; write it as tenant/namespace")
        return cls(entity_name(parts[0], "tenant"), entity_name(parts[1], "namespace"))

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}"


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A complete topic name. `local_name` keeps its partition suffix; `partition` is -1 without one. That of a segment is
    `topic/descriptor`."""

    domain: str
    tenant: str
    namespace: str
    local_name: str

    @classmethod
    def parse(cls, text: str, *, scalable: bool = False) -> TopicName:
        """A short or complete name of something that holds messages; with `scalable` also `topic://`, which only names its segments.

        Raises InvalidTopicNameError, whose text says what is wrong.
        """
        if len(text.encode("utf-8", "surrogatepass")) > TOPIC_NAME_BYTES_MAX:
            raise InvalidTopicNameError(f"the topic name is longer than {TOPIC_NAME_BYTES_MAX} bytes")
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = PERSISTENT, text
            if "/" not in rest:
                rest = f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}/{rest}"
        if domain == SEGMENT:
            return cls._segment(text, rest)
        if domain == SCALABLE and not scalable:
            raise InvalidTopicNameError(
                f"'{text}' is a scalable topic, whose messages are in segments: clients of Pulsar 5 open it by this name, "
                "`scalable-topics stats` lists its segments (segment://...), `scalable-topics explain` says what becomes of them"
            )
        if domain not in (*DOMAINS, SCALABLE):
            raise InvalidTopicNameError(f"'{text}': the domain must be persistent or non-persistent, not '{domain}'")
        parts = rest.split("/")
        if len(parts) != 3:
            raise InvalidTopicNameError(f"'{text}' is not a topic name; write it as {domain}://tenant/namespace/topic")
        tenant, namespace, local_name = parts
        return cls(
            domain, entity_name(tenant, "tenant"), entity_name(namespace, "namespace"), local_topic_name(local_name)
        )

    @classmethod
    def _segment(cls, text: str, rest: str) -> TopicName:
        parts = rest.split("/")
        found = _SEGMENT.match(parts[-1])
        if len(parts) != 4 or found is None or int(found[1], 16) > int(found[2], 16):
            raise InvalidTopicNameError(
                f"'{text}' is not a segment's name; write it as segment://tenant/namespace/topic/0000-ffff-0"
            )
        tenant, namespace, topic, descriptor = parts
        local = f"{local_topic_name(topic)}/{descriptor}"
        return cls(SEGMENT, entity_name(tenant, "tenant"), entity_name(namespace, "namespace"), local)

    @property
    def persistent(self) -> bool:
        return self.domain != NON_PERSISTENT

    @property
    def is_segment(self) -> bool:
        return self.domain == SEGMENT

    @property
    def namespace_name(self) -> NamespaceName:
        return NamespaceName(self.tenant, self.namespace)

    @property
    def partition(self) -> int:
        """The index behind `-partition-`, or -1."""
        match = _PARTITION.match(self.local_name)
        return int(match[2]) if match else -1

    @property
    def partitioned_name(self) -> TopicName:
        """The topic that this is a partition or a segment of, whose policies, rights and schema it shares; itself if it is a whole one."""
        if self.domain == SEGMENT:
            return TopicName(SCALABLE, self.tenant, self.namespace, self.local_name.rpartition("/")[0])
        match = _PARTITION.match(self.local_name)
        return TopicName(self.domain, self.tenant, self.namespace, match[1]) if match else self

    def partition_name(self, index: int) -> TopicName:
        """The name of one partition of this topic."""
        return TopicName(self.domain, self.tenant, self.namespace, f"{self.local_name}{PARTITION_SUFFIX}{index}")

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}"


def is_transaction_log(namespace: str, local_name: str) -> bool:
    """True if a managed ledger of that name keeps records of the server instead of messages, and is not a topic."""
    in_system = namespace == SYSTEM_NAMESPACE
    return local_name.endswith(PENDING_ACKS_SUFFIX) or (in_system and local_name.startswith(TRANSACTION_LOG_PREFIX))


def entity_name(text: str, kind: str) -> str:
    """A tenant, namespace or cluster name: letters, digits and `-=:._`."""
    if not _NAMED_ENTITY.match(text) or text in _RELATIVE:
        raise InvalidTopicNameError(f"'{text}' is not a {kind} name; use letters, digits and - = : . _")
    return text


def local_topic_name(text: str) -> str:
    """A topic's own name: not empty, no slash, no control characters, no step in a path."""
    if not text or _CONTROL.search(text) or "/" in text or text in (".", ".."):
        raise InvalidTopicNameError(f"{text!r} is not a topic name; it must not be empty or hold control characters")
    return text


def is_internal_cursor(name: str) -> bool:
    """True for the name of a cursor that is the server's own and not a subscription: to read, move or remove it from outside would lose or
    repeat messages, here or in another cluster."""
    return name.startswith(INTERNAL_CURSOR_PREFIX) or name == COMPACTION_CURSOR


def subscription_name(text: str) -> str:
    """A subscription of clients. Raises InvalidTopicNameError, or NotAllowedError for a cursor of the server's own."""
    cursor_name(text)
    if is_internal_cursor(text):
        raise NotAllowedError(
            f"{text} is not a subscription but a cursor of the server itself: names that begin with {INTERNAL_CURSOR_PREFIX} and "
            f"{COMPACTION_CURSOR} are reserved; choose another name"
        )
    return text


def cursor_name(text: str) -> str:
    """A name that a subscription or an internal cursor may have: not empty, no control characters, no step in a path, bounded."""
    too_long = len(text.encode("utf-8", "surrogatepass")) > SUBSCRIPTION_NAME_BYTES_MAX
    if not text or _CONTROL.search(text) or text in (".", "..") or too_long:
        raise InvalidTopicNameError(f"{text[:80]!r} is not a subscription name")
    return text
