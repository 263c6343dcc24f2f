"""A metadata store from its URL: `memory:`, `sqlite:/path`, `zk:host:2181,host:2181/chroot`, in Pulsar's and BookKeeper's forms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.base.clock import Clock
from magnetar.base.errors import ConfigError, StartupError
from magnetar.base.executor import Executor
from magnetar.metadata import paths
from magnetar.metadata.digest_md5 import Credentials
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.metadata.store import MetadataStore

ZOOKEEPER_PORT: Final = 2181
SESSION_TIMEOUT_S: Final = 30.0
"""Pulsar's metadataStoreSessionTimeoutMillis."""

_FORMS: Final = "use memory:, sqlite:/path/to/file, or zk:host:2181,host:2181[/chroot]"
_BOOKKEEPER_SCHEMES: Final = ("zk+hierarchical", "zk+longhierarchical", "zk+null")


class MetadataUrl(NamedTuple):
    """`kind`: "memory", "sqlite" or "zk"; `address`: the file, or `host:port,host:port`; `root`: the chroot, "/" without one."""

    kind: str
    address: str = ""
    root: str = "/"


def parse_url(url: str) -> MetadataUrl:
    """Raises ConfigError, whose text names the forms there are."""
    text = url.strip().removeprefix("metadata-store:")
    scheme, colon, rest = text.partition(":")
    if scheme == "memory":
        return MetadataUrl("memory")
    if scheme in ("sqlite", "file"):
        path = re.sub("^//(?=/)", "", rest)
        if not path:
            raise ConfigError(f"metadata URL {url!r} names no file; {_FORMS}")
        return MetadataUrl("sqlite", path)
    if scheme == "zk":
        return _zookeeper(url, rest.removeprefix("//"))
    if scheme in _BOOKKEEPER_SCHEMES:
        return _bookkeeper(url, rest.removeprefix("//").replace(";", ","))
    if colon and re.fullmatch(r"\d+(/.*|,.*)?", rest):
        return _zookeeper(url, text)  # host:port,..., as in zookeeperServers
    raise ConfigError(f"metadata URL {url!r} is not understood: {_FORMS}")


async def open_store(
    url: str,
    *,
    clock: Clock,
    executor: Executor,
    session_timeout_s: float = SESSION_TIMEOUT_S,
    credentials: Credentials | None = None,
) -> MetadataStore:
    """Open the store. `executor` has one worker and is used by `sqlite:` only; close it after the store. `credentials` are for `zk:`.

    Raises ConfigError for a bad URL, StartupError when the file is taken or an extra is missing, MetadataConnectionError when no
    server answers, MetadataAuthenticationError when it does not know the same secret.
    """
    kind, address, root = parse_url(url)
    if kind == "memory":
        return MemoryMetadataStore()
    if kind == "sqlite":
        return await SqliteMetadataStore.open(Path(address), executor)
    try:
        from magnetar.metadata.zookeeper import ZooKeeperMetadataStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kazoo":
            raise
        raise StartupError("metadata in ZooKeeper needs kazoo: pip install 'magnetar[zookeeper]'") from error
    return await ZooKeeperMetadataStore.open(
        address, clock=clock, root=root, session_timeout_s=session_timeout_s, credentials=credentials
    )


def _zookeeper(url: str, rest: str) -> MetadataUrl:
    servers, slash, chroot = rest.partition("/")
    hosts = [_host(url, server) for server in servers.split(",") if server]
    if not hosts:
        raise ConfigError(f"metadata URL {url!r} names no server; {_FORMS}")
    root = f"/{chroot.strip('/')}" if slash else "/"
    return MetadataUrl("zk", ",".join(hosts), root)


def _bookkeeper(url: str, rest: str) -> MetadataUrl:
    """The path names the root of the ledgers, which is `/ledgers` below the chroot."""
    parsed = _zookeeper(url, rest)
    if not parsed.root.endswith(paths.LEDGERS_ROOT):
        raise ConfigError(f"metadata URL {url!r}: ledgers are kept below {paths.LEDGERS_ROOT}; end the URL with it")
    return parsed._replace(root=parsed.root.removesuffix(paths.LEDGERS_ROOT) or "/")


def _host(url: str, server: str) -> str:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::(\d+))?", server)
    if match is None:
        raise ConfigError(f"metadata URL {url!r}: {server!r} is not host:port")
    return f"{match[1]}:{match[2] or ZOOKEEPER_PORT}"
