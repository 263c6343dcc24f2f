"""Who a process is to the metadata store, and what the metadata server asks its clients for."""

from __future__ import annotations

from magnetar.base.settings import Settings, setting

DEFAULT_METADATA_USER = "magnetar"


class MetadataAccessSettings(Settings):
    """A part of the configuration of every process of a cluster."""

    metadata_user: str = setting(
        DEFAULT_METADATA_USER, "metadataUser", "Name that goes with metadataSecret; the same everywhere."
    )
    metadata_secret: str = setting(
        "",
        "metadataSecret",
        "What clients of the metadata store have to know (SASL DIGEST-MD5): file:///path, or the text. Empty: nothing.",
        secret=True,
    )
