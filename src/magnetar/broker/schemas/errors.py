"""Refusals of the schema registry, all answered with IncompatibleSchema: on that code the official clients' calls end at once."""

from __future__ import annotations

from magnetar.broker.errors import IncompatibleSchemaError


class InvalidSchemaError(IncompatibleSchemaError):
    """The schema itself is malformed, or larger than what is checked."""

    slug = "invalid-schema"
