"""Configuration: four sources, one order, and errors that name the fix."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from magnetar.base.errors import ConfigError
from magnetar.base.settings import resolve, table_of
from magnetar.broker.settings.security import replicators_of
from magnetar.processes.configurations import StandaloneConfig, load_config


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults() -> None:
    config = load_config(env={})
    assert (config.port, config.http_port, config.bind_address) == (6650, 8080, "127.0.0.1")
    assert config.subscription_key_shared_use_consistent_hashing
    assert config.journal_sync_data
    assert config.warnings() == []


def test_flags_beat_our_environment_beats_pulsars_beats_the_file_beats_defaults(tmp_path: Path) -> None:
    keys = ["brokerServicePort", "webServicePort", "maxMessageSize", "defaultNumPartitions"]
    file = write(tmp_path / "broker.conf", "".join(f"{key}=2001\n" for key in keys))
    env = {
        "PULSAR_PREFIX_brokerServicePort": "2002",
        "PULSAR_PREFIX_webServicePort": "2002",
        "PULSAR_PREFIX_maxMessageSize": "2002",
        "MAGNETAR_PORT": "2003",
        "MAGNETAR_HTTP_PORT": "2003",
    }
    config = load_config(file, env, {"port": 2004, "http_port": None})
    assert (config.port, config.http_port, config.max_message_size, config.default_num_partitions) == (
        2004,
        2003,
        2002,
        2001,
    )


def test_every_value_knows_its_source(tmp_path: Path) -> None:
    file = write(tmp_path / "a.conf", "# comment\n\nmaxMessageSize=2048\n")
    values = resolve(StandaloneConfig, file, {"MAGNETAR_PORT": "1"}, {"http_port": 2})
    assert values["max_message_size"] == (2048, f"{file}:3")
    assert values["port"] == (1, "MAGNETAR_PORT")
    assert values["http_port"] == (2, "flag")
    assert values["data_dir"].source == "default"


def test_properties_as_pulsar_writes_them(tmp_path: Path) -> None:
    file = write(
        tmp_path / "broker.conf", "# a\n! b\n advertisedAddress=\nallowAutoTopicCreation = no\nclusterName=a=b\n"
    )
    config = load_config(file, {})
    assert config.advertised_address == ""
    assert not config.allow_auto_topic_creation
    assert config.cluster_name == "a=b"


def test_toml_with_types_tables_and_both_names(tmp_path: Path) -> None:
    text = """
        port = 0
        [topics]
        brokerDeduplicationEnabled = true
        allowAutoTopicCreationType = "partitioned"
        [a.b]
        keepAliveIntervalSeconds = 1.5
    """
    config = load_config(write(tmp_path / "a.toml", text), {})
    assert (config.port, config.broker_deduplication_enabled, config.allow_auto_topic_creation_type) == (
        0,
        True,
        "partitioned",
    )
    assert config.keep_alive_interval_s == 1.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("maxMesageSize=1", "unknown key 'maxMesageSize'; the nearest is 'maxMessageSize'"),
        ("hello", "expected key=value; the line is not repeated"),
        ("brokerServicePort=abc", "brokerServicePort must be a whole number, not 'abc'"),
        ("brokerServicePort=65536", "brokerServicePort must be at most 65535, not 65536"),
        ("brokerServicePort=-1", "brokerServicePort must be at least 0, not -1"),
        ("journalSyncData=perhaps", "journalSyncData must be true or false, not 'perhaps'"),
        ("keepAliveIntervalSeconds=nan", "keepAliveIntervalSeconds must be a finite number"),
        ("allowAutoTopicCreationType=some", "must be one of non-partitioned, partitioned, not 'some'"),
    ],
)
def test_a_bad_line_is_named_with_file_and_number(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "broker.conf", f"# first\n{text}\n")
    with pytest.raises(ConfigError) as raised:
        load_config(file, {})
    assert str(raised.value).startswith(f"{file}:2: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"MAGNETAR_HTTPPORT": "1"}, "environment variable MAGNETAR_HTTPPORT: unknown key 'httpport'; the nearest is"),
        ({"PULSAR_PREFIX_webPort": "1"}, "environment variable PULSAR_PREFIX_webPort: unknown key"),
        ({"MAGNETAR_PORT": "x"}, "MAGNETAR_PORT: brokerServicePort must be a whole number"),
        ({"MAGNETAR_BIND_ADDRESS": "0.0.0.0"}, "--insecure-listen"),
        ({"MAGNETAR_MANAGED_LEDGER_WRITE_QUORUM": "2"}, "managedLedgerDefaultEnsembleSize must hold"),
    ],
)
def test_a_bad_environment_is_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(None, env)


def test_variables_of_the_command_line_and_of_others_are_left_alone() -> None:
    env = {"MAGNETAR_CONFIG": "x", "MAGNETAR_URL": "x", "MAGNETAR_ADMIN_URL": "x", "PATH": "x", "PULSAR_MEM": "x"}
    assert load_config(None, env) == StandaloneConfig()


@pytest.mark.parametrize("name", ["missing.conf", "."])
def test_an_unreadable_file_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        load_config(tmp_path / name, {})


def test_broken_toml_and_binary_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.toml"):
        load_config(write(tmp_path / "a.toml", "port = = 1"), {})
    (tmp_path / "b.conf").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        load_config(tmp_path / "b.conf", {})


def test_relaxing_durability_is_said_loudly() -> None:
    (line,) = StandaloneConfig(journal_sync_data=False).warnings()
    assert "ACKNOWLEDGED MESSAGES ARE LOST" in line


def test_listening_to_everybody_needs_a_word_and_warns() -> None:
    with pytest.raises(ConfigError, match="insecure-listen"):
        StandaloneConfig(bind_address="192.0.2.1")
    config = StandaloneConfig(bind_address="0.0.0.0", insecure_listen=True)
    assert "anybody" in config.warnings()[0]
    assert config.advertised_host == "127.0.0.1"
    assert dataclasses.replace(config, advertised_address="example.org").advertised_host == "example.org"


def test_the_table_is_complete_and_unambiguous() -> None:
    table = table_of(StandaloneConfig)
    keys = [row.key for row in table.values()]
    assert len({key.lower() for key in [*keys, *table]}) >= len(keys)
    assert len(set(keys)) == len(keys)
    for row in table.values():
        assert row.doc.endswith("."), row.key
        assert row.kind in (bool, int, float, str, Path), row.key
        assert type(row.default) is row.kind or isinstance(row.default, Path), row.key


def test_replicators_roles_by_cluster() -> None:
    text = "west:peer, north:spiffe://n/r,west:second,"
    assert replicators_of(text) == {"west": ("peer", "second"), "north": ("spiffe://n/r",)}
    assert replicators_of("") == {}
    for wrong in ("west", "west:", ":peer", "west=peer", "west:peer,east"):
        with pytest.raises(ConfigError, match="replicatorRoles"):
            StandaloneConfig(replicator_roles=wrong)


ASKED = {"authentication_enabled": True, "authentication_providers": "token"}


@pytest.mark.parametrize(
    ("settings", "enough"),
    [
        ({}, False),
        (ASKED, True),
        (ASKED | {"anonymous_user_role": "guest"}, False),
        (ASKED | {"anonymous_user_role": "guest", "authorization_enabled": True}, True),
        (
            ASKED | {"anonymous_user_role": "guest", "authorization_enabled": True, "super_user_roles": "root,guest"},
            False,
        ),
    ],
)
def test_other_machines_are_let_in_when_everybody_is_asked(settings: dict[str, Any], enough: bool) -> None:
    if enough:
        assert "do not encrypt" in StandaloneConfig(bind_address="0.0.0.0", **settings).warnings()[0]
    else:
        with pytest.raises(ConfigError, match="authenticationEnabled"):
            StandaloneConfig(bind_address="0.0.0.0", **settings)
