"""Which URL means which store, and what is said about the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.errors import ConfigError, StartupError
from magnetar.base.executor import InlineExecutor
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.open import MetadataUrl, open_store, parse_url
from magnetar.metadata.sqlite import SqliteMetadataStore


@pytest.mark.parametrize(
    ("url", "meaning"),
    [
        ("memory:", MetadataUrl("memory")),
        ("sqlite:/var/m.db", MetadataUrl("sqlite", "/var/m.db")),
        ("sqlite:///var/m.db", MetadataUrl("sqlite", "/var/m.db")),
        ("sqlite:data/m.db", MetadataUrl("sqlite", "data/m.db")),
        ("zk:a:2181,b:2182", MetadataUrl("zk", "a:2181,b:2182")),
        ("zk:a,b:2182/pulsar/one/", MetadataUrl("zk", "a:2181,b:2182", "/pulsar/one")),
        ("zk://a:2181/", MetadataUrl("zk", "a:2181")),
        ("zk:[::1]:2181", MetadataUrl("zk", "[::1]:2181")),
        ("a:2181,b:2181/x", MetadataUrl("zk", "a:2181,b:2181", "/x")),
        ("zk+hierarchical://h:2181/ledgers", MetadataUrl("zk", "h:2181")),
        ("zk+hierarchical://h:2181;i:2181/x/ledgers", MetadataUrl("zk", "h:2181,i:2181", "/x")),
        ("metadata-store:zk:h:2181", MetadataUrl("zk", "h:2181")),
    ],
)
def test_urls(url: str, meaning: MetadataUrl) -> None:
    assert parse_url(url) == meaning


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "not understood"),
        ("etcd://h:2379", "use memory:"),
        ("sqlite:", "names no file"),
        ("zk:", "names no server"),
        ("zk:h:port", "not host:port"),
        ("zk+hierarchical://h:2181/elsewhere", "/ledgers"),
    ],
)
def test_bad_urls_are_told_the_good_ones(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_url(url)


async def test_stores_are_opened_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, executor = SystemClock(), InlineExecutor()
    assert isinstance(await open_store("memory:", clock=clock, executor=executor), MemoryMetadataStore)
    store = await open_store(f"sqlite:{tmp_path}/m.db", clock=clock, executor=executor)
    assert isinstance(store, SqliteMetadataStore)
    await store.close()
    monkeypatch.delitem(sys.modules, "magnetar.metadata.zookeeper", raising=False)
    monkeypatch.delitem(sys.modules, "magnetar.metadata.kazoo_bridge", raising=False)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(StartupError, match=r"magnetar\[zookeeper\]"):
        await open_store("zk:127.0.0.1:1", clock=clock, executor=executor)
