"""The data source's options, by the names of the Pulsar connector for Spark; credentials never show in their text. A decision core."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.pipeline.connect.errors import OptionError
from magnetar.pipeline.connect.offsets import Position, parse

CLIENT_PREFIX: Final = "pulsar.client."
CONNECTION: Final = (
    "service.url",
    "admin.url",
    "pulsar.client.authPluginClassName",
    "pulsar.client.authParams",
    "pulsar.client.tlsTrustCertsFilePath",
    "pulsar.client.tlsAllowInsecureConnection",
    "pulsar.client.tlsHostnameVerificationEnable",
    "pulsar.client.operationTimeoutMs",
)
TOPICS: Final = ("topic", "topics", "topicsPattern")
READ: Final = (
    *CONNECTION,
    *TOPICS,
    "startingOffsets",
    "endingOffsets",
    "startingTime",
    "endingTime",
    "allowDifferentTopicSchemas",
    "failOnDataLoss",
    "subscriptionPrefix",
    "predefinedSubscription",
    "heldBySubscription",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "pollTimeoutMs",
)
WRITE: Final = (*CONNECTION, "topic", "producerName")
SPARKS_OWN: Final = ("path", "serialization.format", "checkpointlocation", "queryname")
"""Options that Spark itself puts beside the user's."""

POLL_TIMEOUT_MS: Final = 120_000
"""A task that gets no message for so long fails, with ReadStalledError; Spark runs it again."""
OPERATION_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True)
class Connection:
    """How to reach the broker. `repr` leaves the credentials out."""

    service_url: str
    admin_url: str | None = None
    auth_plugin: str | None = None
    auth_params: str | None = field(default=None, repr=False)
    tls_trust_certs: str | None = None
    tls_allow_insecure: bool = False
    tls_validate_hostname: bool = True
    operation_timeout_ms: int = OPERATION_TIMEOUT_MS


@dataclass(frozen=True)
class ReadOptions:
    """What to read. Exactly one of `topics` (one name or more) and `pattern` is set.

    `subscription`: acknowledge there. `held_by`: somebody else acknowledges there what was read, and nothing else.
    """

    connection: Connection
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    starting: str | dict[str, Position | str] | None = None
    ending: str | dict[str, Position | str] = "latest"
    starting_time_ms: int | None = None
    ending_time_ms: int | None = None
    allow_different_schemas: bool = False
    fail_on_data_loss: bool = True
    subscription: str | None = None
    held_by: str | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    min_partitions: int = 1
    poll_timeout_ms: int = POLL_TIMEOUT_MS


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Raises OptionError, which names the option and the fix."""
    options = _known(given, READ, "reading")
    topics, pattern = _topics(options)
    connection = _connection(options)
    if pattern and not connection.admin_url:
        raise OptionError(
            "topicsPattern needs the broker's list of topics: give admin.url, such as http://localhost:8080"
        )
    starting = options.get("startingoffsets")
    starting_time = _integer(options, "startingTime", 0)
    if starting is not None and starting_time is not None:
        raise OptionError("startingOffsets and startingTime exclude each other: leave one out")
    ending = parse(options.get("endingoffsets", "latest"))
    if ending == "earliest":
        raise OptionError("endingOffsets=earliest would read nothing: give latest or JSON")
    ending_time = _integer(options, "endingTime", 0)
    if ending_time is not None and "endingoffsets" in options:
        raise OptionError("endingOffsets and endingTime exclude each other: leave one out")
    named, prefix = options.get("predefinedsubscription"), options.get("subscriptionprefix")
    if named and prefix:
        raise OptionError("predefinedSubscription and subscriptionPrefix exclude each other: leave one out")
    return ReadOptions(
        connection=connection,
        topics=topics,
        pattern=pattern,
        starting=None if starting is None else parse(starting),
        ending=ending,
        starting_time_ms=starting_time,
        ending_time_ms=ending_time,
        allow_different_schemas=_boolean(options, "allowDifferentTopicSchemas", False),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", True),
        subscription=named or (f"{prefix}-magnetar" if prefix else None),
        held_by=options.get("heldbysubscription"),
        max_messages=_integer(options, "maxMessagesPerTrigger", 1),
        max_bytes=_integer(options, "maxBytesPerTrigger", 1),
        min_partitions=_integer(options, "minPartitions", 1) or 1,
        poll_timeout_ms=_integer(options, "pollTimeoutMs", 1) or POLL_TIMEOUT_MS,
    )


@dataclass(frozen=True)
class WriteOptions:
    """Where to write. Without `topic` the rows say it."""

    connection: Connection
    topic: str | None = None
    producer_name: str | None = None


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Raises OptionError, which names the option and the fix."""
    options = _known(given, WRITE, "writing")
    return WriteOptions(
        connection=_connection(options),
        topic=full_name(options["topic"]) if "topic" in options else None,
        producer_name=options.get("producername"),
    )


def full_name(topic: str) -> str:
    """`a` and `tenant/namespace/a` as Pulsar completes them. Raises OptionError."""
    name = topic.strip()
    domain, mark, path = name.rpartition("://")
    parts = path.split("/")
    if not mark and len(parts) == 1:
        parts = ["public", "default", *parts]
    if domain not in ("", "persistent") or len(parts) != 3 or not all(parts):
        raise OptionError(f"{topic!r} is no persistent topic; name it persistent://tenant/namespace/topic")
    return "persistent://" + "/".join(parts)


def _topics(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    given = [name for name in TOPICS if name.lower() in options]
    if len(given) != 1:
        raise OptionError(
            f"give exactly one of topic, topics and topicsPattern; there are: {', '.join(given) or 'none'}"
        )
    value = options[given[0].lower()]
    if given[0] == "topicsPattern":
        try:
            re.compile(value)
        except re.error as error:
            raise OptionError(f"topicsPattern is no regular expression: {error}") from error
        return (), value
    names = [value] if given[0] == "topic" else [name for name in value.split(",") if name.strip()]
    if not names:
        raise OptionError("topics is empty: give names separated by commas")
    return tuple(dict.fromkeys(full_name(name) for name in names)), None


def _connection(options: Mapping[str, str]) -> Connection:
    url = options.get("service.url", "").strip()
    if not re.match(r"pulsar(\+ssl)?://[^\s/]", url):
        raise OptionError(
            f"service.url is {'missing' if not url else 'no Pulsar URL'}: give one like pulsar://localhost:6650"
        )
    admin = options.get("admin.url", "").strip().rstrip("/") or None
    if admin and not re.match(r"https?://[^\s/]", admin):
        raise OptionError("admin.url is no HTTP URL: give one like http://localhost:8080")
    prefix = CLIENT_PREFIX
    return Connection(
        service_url=url,
        admin_url=admin,
        auth_plugin=options.get(f"{prefix}authpluginclassname"),
        auth_params=options.get(f"{prefix}authparams"),
        tls_trust_certs=options.get(f"{prefix}tlstrustcertsfilepath"),
        tls_allow_insecure=_boolean(options, f"{prefix}tlsAllowInsecureConnection", False),
        tls_validate_hostname=_boolean(options, f"{prefix}tlsHostnameVerificationEnable", True),
        operation_timeout_ms=_integer(options, f"{prefix}operationTimeoutMs", 1) or OPERATION_TIMEOUT_MS,
    )


def _known(given: Mapping[str, str], known: tuple[str, ...], use: str) -> dict[str, str]:
    """By lower-case name, as Spark treats them. An unknown one is an error that names the nearest; its value is not shown."""
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for name, value in given.items():
        lower = name.lower()
        if lower in names:
            found[lower] = str(value)
        elif lower not in SPARKS_OWN:
            near = difflib.get_close_matches(lower, names, n=1, cutoff=0.5)
            hint = f"; did you mean {names[near[0]]}?" if near else f"; known are: {', '.join(known)}"
            raise OptionError(f"unknown option for {use}: {name}{hint}")
    return found


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name.lower())
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise OptionError(f"{name} is {value!r}: give true or false")
    return value.lower() == "true"


def _integer(options: Mapping[str, str], name: str, least: int) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,18}", value) or int(value) < least:
        raise OptionError(f"{name} is {value!r}: give a whole number of at least {least}")
    return int(value)
