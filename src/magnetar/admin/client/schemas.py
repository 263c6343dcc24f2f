"""Schemas of topics."""

from __future__ import annotations

from magnetar.admin.client.noun import Noun, topic_names
from magnetar.admin.documents.topics import (
    Compatibility,
    SchemaInfo,
    SchemaList,
    SchemaMetadata,
    SchemaPayload,
    SchemaVersion,
    Version,
)

_Schemas = list[SchemaInfo]
_TOPIC = "/schemas/{tenant}/{namespace}/{topic}"


class Schemas(Noun):
    """A topic shares one with its partitions."""

    def get(self, topic: str, version: int | None = None) -> SchemaInfo:
        """The latest, or one version."""
        template = _TOPIC + ("/schema" if version is None else "/schema/{version}")
        found: SchemaInfo = self._get(template, SchemaInfo, version=version, **topic_names(topic))
        return found

    def list(self, topic: str) -> _Schemas:
        """All versions, the oldest first."""
        found: SchemaList = self._get(_TOPIC + "/schemas", SchemaList, **topic_names(topic))
        return found.get_schema_responses

    def metadata(self, topic: str) -> SchemaMetadata:
        found: SchemaMetadata = self._get(_TOPIC + "/metadata", SchemaMetadata, **topic_names(topic))
        return found

    def upload(self, topic: str, schema: SchemaPayload) -> int:
        """Its version, the present one if the topic has it already."""
        answer = self._post(_TOPIC + "/schema", schema, **topic_names(topic))
        found: SchemaVersion = self._converted(answer, SchemaVersion)
        return found.version.version

    def delete(self, topic: str, *, force: bool = False) -> int:
        """The version of the deletion; `force` removes all versions for good."""
        answer = self._delete(_TOPIC + "/schema", {"force": force}, **topic_names(topic))
        found: Version = self._converted(answer, Version)
        return found.version

    def version_of(self, topic: str, schema: SchemaPayload) -> int:
        """-1 for one that the topic does not have."""
        answer = self._post(_TOPIC + "/version", schema, **topic_names(topic))
        found: Version = self._converted(answer, Version)
        return found.version

    def compatibility(self, topic: str, schema: SchemaPayload) -> Compatibility:
        """True if the topic accepts the schema."""
        answer = self._post(_TOPIC + "/compatibility", schema, **topic_names(topic))
        found: Compatibility = self._converted(answer, Compatibility)
        return found
