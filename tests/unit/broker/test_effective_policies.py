"""What is remembered of policies has a bound, however many topics come and go."""

from __future__ import annotations

import pytest

from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces import registry
from magnetar.broker.naming import TopicName
from magnetar.metadata.memory import MemoryMetadataStore


async def test_policies_of_topics_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EFFECTIVE_POLICIES_KEPT_MAX", 10)
    found = registry.NamespaceRegistry(MemoryMetadataStore(), BrokerConfig())
    await found.create_defaults()
    first = await found.effective_of(TopicName.parse("persistent://public/default/topic-0"))
    for number in range(100):
        assert await found.effective_of(TopicName.parse(f"persistent://public/default/topic-{number}")) == first
    assert len(found._effective) <= 10
    found.close()
