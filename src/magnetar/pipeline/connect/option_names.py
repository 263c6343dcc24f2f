"""Which option names the data source takes, and what to say to those of the Pulsar connector that it does not. A decision core."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from magnetar.pipeline.connect.errors import OptionError

CLIENT: Final = "pulsar.client."
ADMIN: Final = "pulsar.admin."
READER: Final = "pulsar.reader."
PRODUCER: Final = "pulsar.producer."

_SECURITY: Final = (
    "authPluginClassName",
    "authParams",
    "tlsTrustCertsFilePath",
    "tlsAllowInsecureConnection",
    "tlsHostnameVerificationEnable",
)
CONNECTION: Final = (
    "service.url",
    "admin.url",
    *(CLIENT + name for name in _SECURITY),
    *(
        CLIENT + name
        for name in ("operationTimeoutMs", "connectionTimeoutMs", "numIoThreads", "listenerName", "useTls")
    ),
    *(ADMIN + name for name in _SECURITY),
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
    "waitingForNonExistedTopic",
    "failOnDataLoss",
    "subscriptionPrefix",
    "predefinedSubscription",
    "heldBySubscription",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "pollTimeoutMs",
    "pushdown",
    f"{READER}receiverQueueSize",
)
WRITE: Final = (
    *CONNECTION,
    "topic",
    "producerName",
    *(PRODUCER + name for name in ("producerName", "compressionType", "sendTimeoutMs", "blockIfQueueFull")),
)
WRITE_FRAME: Final = (*WRITE, "schema")
SPARKS_OWN: Final = ("path", "serialization.format", "checkpointlocation", "queryname")
"""Options that Spark itself puts beside the user's."""

_ELSEWHERE: Final[dict[str, str]] = {
    "maxentriespertrigger": "give maxMessagesPerTrigger or maxBytesPerTrigger",
    "topic.schema.class": "leave it out: columns come from the schema that is registered with the topic",
    "pulsar.client.serviceurl": "give service.url",
    "pulsar.admin.adminurl": "give admin.url",
    "pulsar.admin.servicehttpurl": "give admin.url",
    "pulsar.client.authparammap": "give pulsar.client.authParams",
    "pulsar.client.tlscertificatefilepath": "give AuthenticationTls with tlsCertFile:...,tlsKeyFile:... as authParams",
    "pulsar.client.tlskeyfilepath": "give AuthenticationTls with tlsCertFile:...,tlsKeyFile:... as authParams",
    "pulsar.reader.topicname": "give topic",
    "pulsar.reader.topicnames": "give topics",
    "pulsar.reader.startmessageid": "give startingOffsets",
    "pulsar.reader.subscriptionname": "give predefinedSubscription",
    "pulsar.reader.subscriptionroleprefix": "give subscriptionPrefix",
    "pulsar.reader.readcompacted": "read the topic and keep the last row of each key, or use a source with FORMAT UPSERT",
    "pulsar.producer.topicname": "give topic",
    "pulsar.producer.schema": "give schema",
    "pulsar.producer.initialsequenceid": "leave it out: rows are numbered by epoch",
    "pulsar.producer.messageroutingmode": "leave it out: a key decides the partition, rows without one take turns",
    "pulsar.producer.hashingscheme": "leave it out: keys are hashed as the Java client does",
}
_BATCHES: Final = "leave it out: batches are cut by rows alone, so that those of a repeated epoch are known again"
_KEYSTORE: Final = (
    "give PEM files: pulsar.client.tlsTrustCertsFilePath, and AuthenticationTls with tlsCertFile:...,tlsKeyFile:..."
)


def known(given: Mapping[str, str], names: tuple[str, ...], use: str) -> dict[str, str]:
    """By lower-case name, as Spark treats them. OptionError for an unknown one says what to give instead; its value is not shown."""
    lower = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in lower:
            found[name.lower()] = str(value)
        elif name.lower() not in SPARKS_OWN:
            raise OptionError(f"unknown option for {use}: {name}{_instead(name.lower(), lower)}")
    return found


def _instead(name: str, names: Mapping[str, str]) -> str:
    if name in _ELSEWHERE:
        return f"; {_ELSEWHERE[name]}"
    if "keystore" in name or "truststore" in name or name == f"{CLIENT}sslprovider":
        return f"; {_KEYSTORE}"
    if name.startswith(f"{PRODUCER}batch"):
        return f"; {_BATCHES}"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    if near:
        return f"; did you mean {names[near[0]]}?"
    for prefix in (CLIENT, ADMIN, READER, PRODUCER):
        if name.startswith(prefix):
            taken = ", ".join(each for each in names.values() if each.startswith(prefix)) or "none"
            return f"; leave out what only tunes the Java client. Of {prefix}* there are here: {taken}"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {names[near[0]]}?" if near else f"; known are: {', '.join(names.values())}"
