"""Which cluster a command is about: its metadata store by URL, by a standalone server's data directory, or by a cluster's directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from magnetar.base.clock import SystemClock
from magnetar.base.executor import ThreadExecutor
from magnetar.cli.errors import CommandError
from magnetar.metadata.open import open_store, parse_url
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.metadata.store import InspectableStore, MetadataStore
from magnetar.processes.cluster.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])

SESSION_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class StoreSource:
    """Exactly one of the three is set."""

    url: str | None
    data_dir: Path | None
    cluster_dir: Path | None

    def metadata_url(self) -> str:
        """Raises CommandError or ClusterError when the directory holds no such thing."""
        if self.data_dir is not None:
            path = self.data_dir / "metadata.sqlite"
            if not path.exists():
                raise CommandError(
                    f"{path} does not exist: {self.data_dir} is no data directory of a standalone server"
                )
            return f"sqlite:{path.absolute()}"
        if self.cluster_dir is not None:
            return Cluster(self.cluster_dir).plan.metadata_url
        assert self.url is not None
        return self.url


def store_options(function: F) -> F:
    """`--metadata`, `--data-dir` and `--dir`, given to the command as `source`."""

    @click.option(
        "--metadata", "url", envvar="MAGNETAR_METADATA_URL", show_envvar=True, help="zk:HOST:PORT, sqlite:FILE."
    )
    @click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        help="Of a server on this machine; it may run while a command only looks.",
    )
    @click.option("--dir", "cluster_dir", type=click.Path(path_type=Path), help="Of magnetar cluster.")
    @wraps(function)
    def wrapper(*args: Any, url: str | None, data_dir: Path | None, cluster_dir: Path | None, **kwargs: Any) -> Any:
        if data_dir is not None or cluster_dir is not None:
            context = click.get_current_context()
            if context.get_parameter_source("url") is not click.core.ParameterSource.COMMANDLINE:
                url = None  # the environment's is a default
        if sum(each is not None for each in (url, data_dir, cluster_dir)) != 1:
            raise click.UsageError(
                "which cluster? Give one of --metadata URL, --dir DIR (magnetar cluster), --data-dir DIR"
            )
        return function(*args, source=StoreSource(url, data_dir, cluster_dir), **kwargs)

    return wrapper  # type: ignore[return-value]


@asynccontextmanager
async def opened_store(source: StoreSource) -> AsyncIterator[MetadataStore]:
    """The store, closed afterwards. Raises CommandError, ConfigError, StartupError, MetadataConnectionError."""
    executor = ThreadExecutor("metadata")
    try:
        store = await open_store(
            source.metadata_url(), clock=SystemClock(), executor=executor, session_timeout_s=SESSION_TIMEOUT_S
        )
        try:
            yield store
        finally:
            await store.close()
    finally:
        executor.close()


@asynccontextmanager
async def opened_for_reading(source: StoreSource) -> AsyncIterator[InspectableStore]:
    """The same for commands that only look: a file may belong to a server that is running."""
    url = parse_url(source.metadata_url())
    if url.kind == "memory":
        raise CommandError("memory: lies inside another process; give --metadata zk:HOST:PORT or sqlite:FILE")
    executor = ThreadExecutor("metadata")
    try:
        store: InspectableStore
        if url.kind == "sqlite":
            store = await SqliteMetadataStore.open_read_only(url.address, executor)
        else:
            store = await open_store(
                source.metadata_url(), clock=SystemClock(), executor=executor, session_timeout_s=SESSION_TIMEOUT_S
            )
        try:
            yield store
        finally:
            await store.close()
    finally:
        executor.close()
