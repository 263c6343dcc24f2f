"""Checks the schemas of producers and consumers against the registry, under the namespace's policies."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.broker.errors import IncompatibleSchemaError
from magnetar.broker.namespaces.policies import EffectivePolicies
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import TopicName
from magnetar.broker.schemas.compatibility import Strategy
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.types import Schema, SchemaId, SchemaType, pack_version

NO_VERSION = b""
"""The version of what is published without a schema."""


def strategy_of(policies: EffectivePolicies) -> Strategy:
    """The namespace's, else the broker's; FULL when that one is undefined as well."""
    strategy = Strategy(policies.schema_compatibility_strategy)
    return Strategy.FULL if strategy is Strategy.UNDEFINED else strategy


class SchemaAdmission:
    """Asked once for each PRODUCER, SUBSCRIBE and GET_OR_CREATE_SCHEMA. `registry` is public for lookups."""

    def __init__(self, registry: SchemaRegistry, namespaces: NamespaceRegistry) -> None:
        self.registry = registry
        self._namespaces = namespaces

    async def producer(self, name: TopicName, schema: Schema | None) -> bytes:
        """The version its messages will carry. Raises IncompatibleSchemaError."""
        policies = await self._namespaces.effective_of(name)
        if schema is not None:
            return await self._add(name, schema, policies)
        if policies.schema_validation_enforced and await self.registry.exists(SchemaId.of(name)):
            raise IncompatibleSchemaError(
                "Producers cannot connect or send message without a schema to topics with a schema "
                "when SchemaValidationEnforced is enabled"
            )
        return NO_VERSION

    async def consumer(self, name: TopicName, schema: Schema | None, unused: Callable[[], bool]) -> None:
        """A schema is checked; on a topic that nobody has used yet it becomes the topic's. Raises IncompatibleSchemaError."""
        if schema is None or schema.type is SchemaType.AUTO_CONSUME:
            return
        policies = await self._namespaces.effective_of(name)
        if unused() and not await self.registry.exists(SchemaId.of(name)):
            await self._add(name, schema, policies)
        else:
            await self.registry.check_consumer(SchemaId.of(name), schema, strategy_of(policies))

    async def _add(self, name: TopicName, schema: Schema, policies: EffectivePolicies) -> bytes:
        version = await self.registry.put(
            SchemaId.of(name), schema, strategy_of(policies), may_add=policies.allow_auto_update_schema
        )
        return pack_version(version)
