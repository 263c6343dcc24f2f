"""`magnetar topicPolicies` and `magnetar namespaces` against the real admin API."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from magnetar.admin.policy_rows import POLICY_ROWS
from magnetar.cli.admin.policy_commands import namespaces_group, topic_policies_group
from magnetar.cli.admin.policy_flags import POLICY_COMMANDS, SECONDS, SIZE, SIZE_MB
from tests.integration.cli.conftest import Shell

WORDS: dict[str, tuple[list[str], Any]] = {
    "message-ttl": (["-ttl", "1h"], 3600),
    "retention": (["-t", "3h", "-s", "10G"], {"retentionTimeInMinutes": 180, "retentionSizeInMB": 10240}),
    "deduplication": (["--disable"], False),
    "max-message-size": (["-m", "10K"], 10240),
    "dispatch-rate": (
        ["-md", "5", "-dt", "2", "-rp", "true"],
        {
            "dispatchThrottlingRateInMsg": 5,
            "dispatchThrottlingRateInByte": -1,
            "relativeToPublishRate": True,
            "ratePeriodInSecond": 2,
        },
    ),
    "publish-rate": (["-b", "100"], {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": 100}),
    "subscribe-rate": (["-sr", "3"], {"subscribeThrottlingRatePerConsumer": 3, "ratePeriodInSecond": 30}),
    "delayed-delivery": (["-e", "-t", "2s"], {"active": True, "tickTime": 2000}),
    "inactive-topic-policies": (
        ["-e", "-t", "1h", "-m", "delete_when_no_subscriptions"],
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 3600,
            "deleteWhileInactive": True,
        },
    ),
    "compaction-threshold": (["-t", "100M"], 104857600),
    "schema-compatibility-strategy": (["-c", "FORWARD"], "FORWARD"),
}


def test_topic_policies(shell: Shell) -> None:
    shell.run("topics", "create", "ruled")
    for noun, (words, value) in WORDS.items():
        assert json.loads(shell.run("topicPolicies", f"get-{noun}", "ruled", "--json")) is None
        shell.run("topicPolicies", f"set-{noun}", "ruled", *words)
        assert json.loads(shell.run("topicPolicies", f"get-{noun}", "ruled", "--json")) == value
        assert json.loads(shell.run("topicPolicies", f"get-{noun}", "ruled", "-ap", "--json")) == value
    for noun in ("message-ttl", "retention"):
        shell.run("topicPolicies", f"remove-{noun}", "ruled")
        assert shell.run("topicPolicies", f"get-{noun}", "ruled") == "null\n"
    shell.run("topicPolicies", "set-max-producers", "ruled", "-p", "4", "-g")
    assert json.loads(shell.run("topicPolicies", "get-max-producers", "ruled", "--json")) is None
    assert shell.run("topicPolicies", "get-max-producers", "ruled", "-ap") == "4\n"


def test_namespace_policies(shell: Shell) -> None:
    shell.run("namespaces", "set-subscription-expiration-time", "public/default", "-t", "7d")
    assert shell.run("namespaces", "get-subscription-expiration-time", "public/default") == "10080\n"
    shell.run("namespaces", "set-max-topics-per-namespace", "public/default", "-t", "100")
    shell.run("namespaces", "set-auto-topic-creation", "public/default", "-e", "-t", "partitioned", "-n", "3")
    policy = ("namespaces", "set-scalable-topic-auto-scale-policy", "public/default", "--policy")
    shell.run(*policy, '{"maxSegments": 8}')
    assert "has no field maxSegment;" in shell.run(*policy, '{"maxSegment": 8}', code=1)
    assert "must be a JSON object" in shell.run(*policy, "8", code=2)
    shown = shell.run("namespaces", "get-scalable-topic-auto-scale-policy", "public/default", "--json")
    assert json.loads(shown) == {"maxSegments": 8}
    shell.run("namespaces", "remove-scalable-topic-auto-scale-policy", "public/default")
    document = json.loads(shell.run("namespaces", "policies", "public/default", "--json"))
    assert document["max_topics_per_namespace"] == 100
    assert document["autoTopicCreationOverride"]["defaultNumPartitions"] == 3
    shell.run("namespaces", "remove-auto-topic-creation", "public/default")
    shell.run("namespaces", "remove-max-topics-per-namespace", "public/default")
    assert shell.run("namespaces", "get-encryption-required", "public/default") == "false\n"


def test_backlog_quotas(shell: Shell) -> None:
    shell.run("namespaces", "set-backlog-quota", "public/default", "-l", "10G", "-p", "producer_exception")
    shell.run(
        "namespaces",
        "set-backlog-quota",
        "public/default",
        "-lt",
        "3h",
        "-p",
        "producer_exception",
        "-t",
        "message_age",
    )
    quotas = json.loads(shell.run("namespaces", "get-backlog-quotas", "public/default", "--json"))
    assert quotas["destination_storage"]["limitSize"] == 10 * 2**30
    assert quotas["message_age"]["limitTime"] == 10800
    shell.run("namespaces", "remove-backlog-quota", "public/default", "-t", "message_age")
    assert "message_age" not in shell.run("namespaces", "get-backlog-quotas", "public/default")
    shell.run("namespaces", "remove-backlog-quota", "public/default")


def test_refusals_are_one_line(shell: Shell) -> None:
    assert "HTTP 404" in shell.run("topicPolicies", "get-retention", "nowhere", code=1)
    assert "is not a namespace" in shell.run("namespaces", "get-retention", "nowhere", code=1)
    shell.run("topics", "create", "refused")
    assert "maxProducers must be 0 or more" in shell.run(
        "topicPolicies", "set-max-producers", "refused", "-p", "-1", code=1
    )
    assert "write a number with one of" in shell.run(
        "topicPolicies", "set-message-ttl", "refused", "-t", "soon", code=2
    )
    assert "say one of --enable, --disable" in shell.run("topicPolicies", "set-deduplication", "refused", code=2)


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (SIZE, "4096", 4096),
        (SIZE, "1.5k", 1536),
        (SIZE, "-1", -1),
        (SIZE_MB, "3T", 3 * 2**20),
        (SECONDS, "5w", 3_024_000),
    ],
)
def test_sizes_and_times(type: Any, text: str, value: int) -> None:
    assert type.convert(text, None, None) == value


@pytest.mark.parametrize("text", ["", "-2", "10X", "ten", "1.5", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SIZE.convert(text, None, None)


def test_every_row_has_its_commands() -> None:
    without = {row.name for row in POLICY_ROWS} - set(POLICY_COMMANDS)
    assert without == {"offload", "offload_deletion_lag"}
    for row in POLICY_ROWS:
        commands = POLICY_COMMANDS.get(row.name)
        if commands is not None:
            assert bool(commands.topic) == bool(row.topic), row.name
            assert bool(commands.namespace) == bool(row.namespace), row.name
            for noun, group in ((commands.topic, topic_policies_group), (commands.namespace, namespaces_group)):
                if noun:
                    assert {f"{verb}-{noun}" for verb in ("get", "set", "remove")} <= set(group.commands)
