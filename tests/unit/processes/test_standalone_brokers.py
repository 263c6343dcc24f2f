"""What of the settings of `standalone --brokers` reaches its processes."""

from __future__ import annotations

import pytest

from magnetar.base.errors import ConfigError
from magnetar.processes.configurations import StandaloneConfig
from magnetar.processes.standalone_brokers import settings_for_processes

ASKING = {
    "authentication_enabled": True,
    "authentication_providers": "token",
    "authorization_enabled": True,
    "super_user_roles": "admin,broker",
    "broker_client_authentication_plugin": "token",
}


def test_brokers_that_ask_take_their_secrets_from_files() -> None:
    config = StandaloneConfig(
        **ASKING,  # type: ignore[arg-type]
        token_secret_key="file:///etc/secret",
        broker_client_authentication_parameters="file:///etc/broker.token",
    )
    words = settings_for_processes(config)
    assert "broker.tokenSecretKey=file:///etc/secret" in words
    assert "broker.brokerClientAuthenticationParameters=file:///etc/broker.token" in words
    assert "broker.superUserRoles=admin,broker" in words
    assert not [word for word in words if word.startswith("bookie.")]


def test_a_secret_that_others_could_read_is_refused() -> None:
    config = StandaloneConfig(**ASKING, token_secret_key="c2VjcmV0")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="file:///PATH"):
        settings_for_processes(config)
