"""Which cluster a command is about: its metadata store by URL, by a standalone server's data directory, or by a cluster's directory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from magnetar.base.clock import SystemClock
from magnetar.base.executor import ThreadExecutor
from magnetar.base.settings import load_settings
from magnetar.cli.admin.http import admin_url_option, connected
from magnetar.cli.errors import CommandError
from magnetar.cli.storage.admin_store import ONLY_LOOKS, AdminMetadataStore
from magnetar.metadata.digest_md5 import Credentials
from magnetar.metadata.open import open_store, parse_url
from magnetar.metadata.settings import MetadataAccessSettings
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.metadata.sqlite_file import FILE_NAME
from magnetar.metadata.store import MetadataStore
from magnetar.processes.cluster.cluster import Cluster
from magnetar.processes.cluster.plan import METADATA
from magnetar.processes.configurations import CONFIGURATIONS
from magnetar.processes.metadata_access import metadata_credentials
from magnetar.processes.pulsar_keys import PULSAR_KEYS

F = TypeVar("F", bound=Callable[..., Any])

SESSION_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class StoreSource:
    """At most one of the first three is set; without them it is a running server that is asked, through its admin API."""

    url: str | None
    data_dir: Path | None
    cluster_dir: Path | None
    admin_url: str = ""

    @property
    def online(self) -> bool:
        return self.url is None and self.data_dir is None and self.cluster_dir is None

    def metadata_url(self) -> str:
        """Raises CommandError or ClusterError when the directory holds no such thing."""
        if self.data_dir is not None:
            path = self.data_dir / FILE_NAME
            if not path.exists():
                raise CommandError(
                    f"{path} does not exist: {self.data_dir} is not a data directory of a standalone server"
                )
            return f"sqlite:{path.absolute()}"
        if self.cluster_dir is not None:
            return Cluster(self.cluster_dir).plan.metadata_url
        if self.url is None:
            raise CommandError(ONLY_LOOKS)
        return self.url

    def sqlite_file(self) -> Path:
        """The file that the tree lies in, on this machine. It need not exist. Raises CommandError when there is none."""
        if self.data_dir is not None:
            return self.data_dir / FILE_NAME
        if self.cluster_dir is not None:
            servers = Cluster(self.cluster_dir).plan.of_role(METADATA)
            if servers:
                return self.cluster_dir / servers[0].name / FILE_NAME
        elif self.url is not None and (url := parse_url(self.url)).kind == "sqlite":
            return Path(url.address)
        raise CommandError(
            "only the file of a metadata server or of a standalone server can be copied as of one moment: give --data-dir DIR, on the "
            "machine of the server. A ZooKeeper has its own way: its snapshots and transaction logs, or its admin server's `snapshot`"
        )

    def credentials(self) -> Credentials | None:
        """What the metadata store asks for: the cluster's, or the environment's. Raises ConfigError, ClusterError."""
        if self.cluster_dir is not None:
            return Cluster(self.cluster_dir).metadata_credentials()
        return environment_credentials()


def environment_credentials() -> Credentials | None:
    """MAGNETAR_metadataSecret and MAGNETAR_metadataUser; None without. Raises ConfigError."""
    return metadata_credentials(
        load_settings(MetadataAccessSettings, None, os.environ, {}, CONFIGURATIONS, PULSAR_KEYS)
    )


def store_options(function: F) -> F:
    """`--metadata`, `--data-dir`, `--dir` and `--admin-url`, given to the command as `source`."""

    @admin_url_option
    @click.option(
        "--metadata",
        "url",
        envvar="MAGNETAR_METADATA_URL",
        show_envvar=True,
        help="Metadata store: zk:HOST:PORT or sqlite:FILE.",
    )
    @click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        help="Data directory of a server on this machine; commands that only read work while it runs.",
    )
    @click.option(
        "--dir",
        "cluster_dir",
        type=click.Path(path_type=Path),
        help="Directory of a cluster started by `magnetar cluster up`.",
    )
    @wraps(function)
    def wrapper(
        *args: Any, url: str | None, data_dir: Path | None, cluster_dir: Path | None, admin_url: str, **kwargs: Any
    ) -> Any:
        if data_dir is not None or cluster_dir is not None:
            context = click.get_current_context()
            if context.get_parameter_source("url") is not click.core.ParameterSource.COMMANDLINE:
                url = None  # the environment's is a default
        if sum(each is not None for each in (url, data_dir, cluster_dir)) > 1:
            raise click.UsageError(
                "which cluster? Give one of --metadata URL, --dir DIR (magnetar cluster), --data-dir DIR, --admin-url URL"
            )
        return function(*args, source=StoreSource(url, data_dir, cluster_dir, admin_url), **kwargs)

    return wrapper  # type: ignore[return-value]


@asynccontextmanager
async def opened_store(source: StoreSource) -> AsyncIterator[MetadataStore]:
    """The store, closed afterwards. Raises CommandError, ConfigError, StartupError, MetadataConnectionError."""
    async with _opened(source, read_only=False) as store:
        yield store


@asynccontextmanager
async def opened_for_reading(source: StoreSource) -> AsyncIterator[MetadataStore]:
    """The same for commands that only look: a file may belong to a server that is running, which may also be asked itself."""
    if source.online:
        with connected(source.admin_url) as admin:
            yield AdminMetadataStore(admin)
        return
    if parse_url(source.metadata_url()).kind == "memory":
        raise CommandError("memory: lies inside another process; give --metadata zk:HOST:PORT or sqlite:FILE")
    async with _opened(source, read_only=True) as store:
        yield store


@asynccontextmanager
async def _opened(source: StoreSource, *, read_only: bool) -> AsyncIterator[MetadataStore]:
    """`read_only` makes a difference for a file, which its server goes on writing; a server of metadata has sessions anyway."""
    executor = ThreadExecutor("metadata")
    try:
        store: MetadataStore
        url = parse_url(source.metadata_url())
        if read_only and url.kind == "sqlite":
            store = await SqliteMetadataStore.open_read_only(url.address, executor)
        else:
            store = await open_store(
                source.metadata_url(),
                clock=SystemClock(),
                executor=executor,
                session_timeout_s=SESSION_TIMEOUT_S,
                credentials=source.credentials(),
            )
        try:
            yield store
        finally:
            await store.close()
    finally:
        executor.close()
