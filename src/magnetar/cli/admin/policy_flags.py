"""Names and flags of pulsar-admin for each policy: what the commands of `policy_commands` are made of."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import click

_UNITS = {
    "bytes": {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40},
    "s": {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800},
}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([a-z]?)\Z", re.IGNORECASE)


class Amount(click.ParamType):  # type: ignore[type-arg]  # generic in the stubs, not in every click
    """A size (`10M`) or a time (`3h`); without a suffix it is in `bare` base units. -1 stays -1: no limit."""

    def __init__(self, kind: str, *, unit: float = 1, bare: float = 1) -> None:
        """`unit`: base units (bytes, seconds) of one unit of the result."""
        self.name = "size" if kind == "bytes" else "time"
        self._kind = kind
        self._unit = unit
        self._bare = bare

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if text == "-1":
            return -1
        found = _AMOUNT.match(text)
        units = _UNITS[self._kind]
        if found is None or found[2].lower() not in units:
            self.fail(
                f"{text!r} is not a valid {self.name}; write a number with one of {', '.join(filter(None, units))}",
                param,
                ctx,
            )
        suffix = found[2].lower()
        base = float(found[1]) * (units[suffix] if suffix else self._bare)
        amount = base / self._unit
        if amount != int(amount):
            self.fail(f"{text!r} is not a whole number of the policy's units", param, ctx)
        return int(amount)


class Names(click.ParamType):  # type: ignore[type-arg]  # as above
    """Names separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        if isinstance(value, list):
            return value
        return [part.strip() for part in str(value).split(",") if part.strip()]


class JsonObject(click.ParamType):  # type: ignore[type-arg]  # as above
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        try:
            found = value if isinstance(value, dict) else json.loads(value)
        except ValueError as error:
            self.fail(f"it is not JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail('it must be a JSON object, such as {"maxSegments": 8}', param, ctx)
        return found


SIZE = Amount("bytes")
SIZE_MB = Amount("bytes", unit=2**20)
SECONDS = Amount("s")
MINUTES = Amount("s", unit=60)
BARE_MINUTES = Amount("s", unit=60, bare=60)
MILLISECONDS = Amount("s", unit=0.001)


class Flag(NamedTuple):
    """`field` is the body's; empty when the value is the whole body. A flag without a `default` must be given."""

    names: tuple[str, ...]
    field: str
    type: click.ParamType  # type: ignore[type-arg]  # as above
    help: str
    default: Any = ...


class Switch(NamedTuple):
    """`--enable` or `--disable`: one of them must be given."""

    field: str
    names: tuple[str, str] = ("-e/-d", "--enable/--disable")


class PolicyCommands(NamedTuple):
    """The part of the commands' names behind `set-`, `get-` and `remove-` at each level; empty: not at that level."""

    namespace: str
    topic: str
    flags: tuple[Flag | Switch, ...]


def _number(*names: str, help: str) -> tuple[Flag, ...]:
    return (Flag(names, "", click.INT, help),)


_DISPATCH_RATE = (
    Flag(
        ("-md", "--msg-dispatch-rate"),
        "dispatchThrottlingRateInMsg",
        click.INT,
        "Messages per period; -1 means no limit.",
        -1,
    ),
    Flag(
        ("-bd", "--byte-dispatch-rate"),
        "dispatchThrottlingRateInByte",
        click.INT,
        "Bytes per period; -1 means no limit.",
        -1,
    ),
    Flag(("-dt", "--dispatch-rate-period"), "ratePeriodInSecond", click.INT, "Period in seconds.", 1),
    Flag(
        ("-rp", "--relative-to-publish-rate"),
        "relativeToPublishRate",
        click.BOOL,
        "Add the publish rate to the limit.",
        False,
    ),
)

POLICY_COMMANDS: dict[str, PolicyCommands] = {
    "message_ttl": PolicyCommands(
        "message-ttl",
        "message-ttl",
        (Flag(("-ttl", "-t", "--messageTTL", "--ttl"), "", SECONDS, "Age such as 1h (plain numbers are seconds)."),),
    ),
    "retention": PolicyCommands(
        "retention",
        "retention",
        (
            Flag(
                ("-t", "--time"),
                "retentionTimeInMinutes",
                MINUTES,
                "Time such as 3h (plain numbers are seconds); -1 means for ever.",
            ),
            Flag(
                ("-s", "--size"),
                "retentionSizeInMB",
                SIZE_MB,
                "Size such as 10G (plain numbers are bytes); -1 means no limit.",
            ),
        ),
    ),
    "persistence": PolicyCommands(
        "persistence",
        "persistence",
        (
            Flag(
                ("-e", "--bookkeeper-ensemble"),
                "bookkeeperEnsemble",
                click.INT,
                "Number of bookies that a ledger is spread over.",
                1,
            ),
            Flag(
                ("-w", "--bookkeeper-write-quorum"),
                "bookkeeperWriteQuorum",
                click.INT,
                "Number of copies of each entry.",
                1,
            ),
            Flag(
                ("-a", "--bookkeeper-ack-quorum"),
                "bookkeeperAckQuorum",
                click.INT,
                "Copies on disk before an entry counts as stored.",
                1,
            ),
            Flag(
                ("-r", "--ml-mark-delete-max-rate"),
                "managedLedgerMaxMarkDeleteRate",
                click.FLOAT,
                "Writes of a subscription's position per second; 0 means the broker's limit.",
                0.0,
            ),
        ),
    ),
    "deduplication": PolicyCommands("deduplication", "deduplication", (Switch(""),)),
    "deduplication_snapshot_interval": PolicyCommands(
        "deduplication-snapshot-interval",
        "deduplication-snapshot-interval",
        _number("-i", "--interval", help="Seconds between snapshots of the sequence ids."),
    ),
    "max_producers": PolicyCommands(
        "max-producers-per-topic",
        "max-producers",
        _number("-p", "--max-producers", "--max-producers-per-topic", help="Maximum number; 0 means no limit."),
    ),
    "max_consumers": PolicyCommands(
        "max-consumers-per-topic",
        "max-consumers",
        _number("-c", "--max-consumers", "--max-consumers-per-topic", help="Maximum number; 0 means no limit."),
    ),
    "max_consumers_per_subscription": PolicyCommands(
        "max-consumers-per-subscription",
        "max-consumers-per-subscription",
        _number("-c", "--max-consumers-per-subscription", help="Maximum number; 0 means no limit."),
    ),
    "max_subscriptions": PolicyCommands(
        "max-subscriptions-per-topic",
        "max-subscriptions-per-topic",
        _number("-m", "-s", "--max-subscriptions-per-topic", help="Maximum number; 0 means no limit."),
    ),
    "max_topics": PolicyCommands(
        "max-topics-per-namespace",
        "",
        _number("-t", "--max-topics-per-namespace", help="Maximum number; 0 means no limit."),
    ),
    "max_message_size": PolicyCommands(
        "",
        "max-message-size",
        (Flag(("-m", "--max-message-size"), "", SIZE, "Maximum size in bytes; 0 means the broker's limit."),),
    ),
    "max_unacked_per_consumer": PolicyCommands(
        "max-unacked-messages-per-consumer",
        "max-unacked-messages-per-consumer",
        _number(
            "-m",
            "-c",
            "--maxNum",
            "--max-unacked-messages-per-topic",
            "--max-unacked-messages-per-consumer",
            help="Maximum number; 0 means no limit.",
        ),
    ),
    "max_unacked_per_subscription": PolicyCommands(
        "max-unacked-messages-per-subscription",
        "max-unacked-messages-per-subscription",
        _number(
            "-m", "-c", "--maxNum", "--max-unacked-messages-per-subscription", help="Maximum number; 0 means no limit."
        ),
    ),
    "dispatch_rate": PolicyCommands("dispatch-rate", "dispatch-rate", _DISPATCH_RATE),
    "subscription_dispatch_rate": PolicyCommands(
        "subscription-dispatch-rate", "subscription-dispatch-rate", _DISPATCH_RATE
    ),
    "replicator_dispatch_rate": PolicyCommands("replicator-dispatch-rate", "replicator-dispatch-rate", _DISPATCH_RATE),
    "publish_rate": PolicyCommands(
        "publish-rate",
        "publish-rate",
        (
            Flag(
                ("-m", "--msg-publish-rate"),
                "publishThrottlingRateInMsg",
                click.INT,
                "Messages per second; -1 means no limit.",
                -1,
            ),
            Flag(
                ("-b", "--byte-publish-rate"),
                "publishThrottlingRateInByte",
                click.INT,
                "Bytes per second; -1 means no limit.",
                -1,
            ),
        ),
    ),
    "subscribe_rate": PolicyCommands(
        "subscribe-rate",
        "subscribe-rate",
        (
            Flag(
                ("-sr", "--subscribe-rate"),
                "subscribeThrottlingRatePerConsumer",
                click.INT,
                "Subscribe operations per period; -1 means no limit.",
                -1,
            ),
            Flag(("-st", "--subscribe-rate-period"), "ratePeriodInSecond", click.INT, "Period in seconds.", 30),
        ),
    ),
    "delayed_delivery": PolicyCommands(
        "delayed-delivery",
        "delayed-delivery",
        (Switch("active"), Flag(("-t", "--time"), "tickTime", MILLISECONDS, "Tick such as 1s.", "1s")),
    ),
    "compaction_threshold": PolicyCommands(
        "compaction-threshold",
        "compaction-threshold",
        (
            Flag(
                ("-t", "--threshold"),
                "",
                SIZE,
                "Backlog size such as 100M at which a topic is compacted; 0 means never.",
            ),
        ),
    ),
    "inactive_topic": PolicyCommands(
        "inactive-topic-policies",
        "inactive-topic-policies",
        (
            Switch("deleteWhileInactive", ("-e/-d", "--enable-delete-while-inactive/--disable-delete-while-inactive")),
            Flag(("-t", "--max-inactive-duration"), "maxInactiveDurationSeconds", SECONDS, "Time such as 1h."),
            Flag(
                ("-m", "--delete-mode"),
                "inactiveTopicDeleteMode",
                click.Choice(["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]),
                "When an inactive topic is deleted: without subscriptions, or when they have caught up.",
            ),
        ),
    ),
    "scalable_auto_scale": PolicyCommands(
        "scalable-topic-auto-scale-policy",
        "",
        (
            Flag(
                ("--policy",),
                "",
                JsonObject(),
                'When scalable topics split and merge, as JSON of what differs from the broker: {"maxSegments": 8}.',
            ),
        ),
    ),
    "auto_topic_creation": PolicyCommands(
        "auto-topic-creation",
        "",
        (
            Switch("allowAutoTopicCreation"),
            Flag(
                ("-t", "--type"),
                "topicType",
                click.Choice(["partitioned", "non-partitioned"]),
                "Type of topic that is created.",
                None,
            ),
            Flag(("-n", "--num-partitions"), "defaultNumPartitions", click.INT, "Number of partitions.", None),
        ),
    ),
    "auto_subscription_creation": PolicyCommands(
        "auto-subscription-creation", "auto-subscription-creation", (Switch("allowAutoSubscriptionCreation"),)
    ),
    "subscription_expiration": PolicyCommands(
        "subscription-expiration-time",
        "subscription-expiration-time",
        (Flag(("-t", "--time"), "", BARE_MINUTES, "Time such as 7d (plain numbers are minutes); 0 means never."),),
    ),
    "encryption_required": PolicyCommands("encryption-required", "", (Switch(""),)),
    "subscription_auth_mode": PolicyCommands(
        "subscription-auth-mode",
        "",
        (
            Flag(
                ("-m", "--subscription-auth-mode"),
                "",
                click.Choice(["None", "Prefix"]),
                "Which subscription names a role may use.",
            ),
        ),
    ),
    "schema_compatibility": PolicyCommands(
        "schema-compatibility-strategy",
        "schema-compatibility-strategy",
        (
            Flag(
                ("-c", "-s", "--compatibility", "--strategy"),
                "",
                click.STRING,
                "Strategy, such as BACKWARD or FULL_TRANSITIVE.",
            ),
        ),
    ),
    "schema_validation": PolicyCommands("schema-validation-enforce", "schema-validation-enforce", (Switch(""),)),
    "auto_update_schema": PolicyCommands("is-allow-auto-update-schema", "", (Switch(""),)),
    "subscription_types": PolicyCommands(
        "subscription-types-enabled",
        "subscription-types-enabled",
        (Flag(("-t", "--types"), "", Names(), "Some of Exclusive,Shared,Failover,Key_Shared."),),
    ),
    "replication": PolicyCommands(
        "clusters",
        "replication-clusters",
        (
            Flag(
                ("-c", "--clusters"),
                "",
                Names(),
                "Replication clusters including this one, separated by commas, such as a,b.",
            ),
        ),
    ),
    "offload_threshold": PolicyCommands(
        "offload-threshold", "", (Flag(("-s", "--size"), "", SIZE, "Size such as 10G; -1 means never."),)
    ),
    "offload_threshold_seconds": PolicyCommands(
        "offload-threshold-in-seconds", "", (Flag(("-t", "--time"), "", SECONDS, "Time such as 3h; -1 means never."),)
    ),
}
"""By the rows' names. Without commands: `offload` and `offload_deletion_lag`, which nothing here acts upon."""
