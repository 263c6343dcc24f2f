"""Settings changed over HTTP while the broker runs: in effect at once on live topics, and after a restart."""

from __future__ import annotations

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api

CONFIGURATION = "brokers/configuration"


def test_a_limit_holds_for_a_topic_that_is_loaded_already(api: Api, client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic)
    api.post(f"{CONFIGURATION}/maxProducersPerTopic/1")
    try:
        assert api.get(f"{CONFIGURATION}/values") == {"maxProducersPerTopic": "1"}
        assert api.get(f"{CONFIGURATION}/runtime")["maxProducersPerTopic"] == "1"
        with pytest.raises(pulsar.ProducerBusy):
            client.create_producer(topic)
    finally:
        api.delete(f"{CONFIGURATION}/maxProducersPerTopic")
    assert api.get(f"{CONFIGURATION}/values") == {}
    assert api.get(f"{CONFIGURATION}/runtime")["maxProducersPerTopic"] == "0"
    client.create_producer(topic).close()
    first.close()


def test_auto_creation_switches_off_and_on(api: Api, client: pulsar.Client, topic: str) -> None:
    api.post(f"{CONFIGURATION}/allowAutoTopicCreation/false")
    try:
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer(topic)
    finally:
        api.delete(f"{CONFIGURATION}/allowAutoTopicCreation")
    client.create_producer(topic).close()


def test_what_a_namespace_shows_as_applied_follows(api: Api, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).close()
    path = topic.replace("://", "/")
    api.post(f"{CONFIGURATION}/brokerServiceCompactionThresholdInBytes/12345")
    try:
        assert api.get(f"{path}/compactionThreshold?applied=true") == 12345
    finally:
        api.delete(f"{CONFIGURATION}/brokerServiceCompactionThresholdInBytes")
    assert api.get(f"{path}/compactionThreshold?applied=true") == 0


def test_what_is_refused(api: Api) -> None:
    names = api.get(CONFIGURATION)
    assert "maxProducersPerTopic" in names
    assert "dataDir" not in names
    reason = api.reason("POST", f"{CONFIGURATION}/dataDir/%2Ftmp", status=412)
    assert reason == "Can't update non-dynamic configuration"
    reason = api.reason("POST", f"{CONFIGURATION}/maxProducersPerTopic/many", status=412)
    assert "whole number" in reason
    api.reason("POST", f"{CONFIGURATION}/backlogQuotaDefaultRetentionPolicy/a%2Fb", status=412)
    assert api.reason("DELETE", f"{CONFIGURATION}/port", status=412) == "Can't delete non-dynamic configuration"


def test_a_restart_keeps_what_was_set(start_server: object) -> None:
    server: ServerProcess = start_server()  # type: ignore[operator]  # the fixture's own type is in its conftest
    api = Api(server)
    api.post(f"{CONFIGURATION}/defaultNumPartitions/3")
    api.post(f"{CONFIGURATION}/allowAutoTopicCreationType/partitioned")
    server.restart()
    api = Api(server)
    assert api.get(f"{CONFIGURATION}/values")["defaultNumPartitions"] == "3"
    path = "persistent/public/default/made/partitions?checkAllowAutoCreation=true"
    assert api.get(path)["partitions"] == 3
    api.session.close()


def test_shutdown_ends_the_server_cleanly(start_server: object) -> None:
    server: ServerProcess = start_server()  # type: ignore[operator]  # as above
    api = Api(server)
    api.post("brokers/shutdown")
    api.session.close()
    assert server.wait() == 0
