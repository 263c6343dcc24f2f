"""Which cluster a command is about: its metadata store by URL, by a standalone server's data directory, or by a cluster's directory."""

from __future__ import annotations

import json
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
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore

F = TypeVar("F", bound=Callable[..., Any])

SESSION_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class StoreSource:
    """Exactly one of the three is set."""

    url: str | None
    data_dir: Path | None
    cluster_dir: Path | None

    def metadata_url(self) -> str:
        """Raises CommandError when the directory holds no such thing."""
        if self.data_dir is not None:
            path = self.data_dir / "metadata.sqlite"
            if not path.exists():
                raise CommandError(
                    f"{path} does not exist: {self.data_dir} is no data directory of a standalone server"
                )
            return f"sqlite:{path.absolute()}"
        if self.cluster_dir is not None:
            return cluster_metadata_url(self.cluster_dir)
        assert self.url is not None
        return self.url


def store_options(function: F) -> F:
    """`--metadata`, `--data-dir` and `--dir`, given to the command as `source`."""

    @click.option(
        "--metadata", "url", envvar="MAGNETAR_METADATA_URL", show_envvar=True, help="zk:HOST:PORT, sqlite:FILE."
    )
    @click.option("--data-dir", type=click.Path(path_type=Path), help="Of a standalone server that is not running.")
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


def cluster_metadata_url(directory: Path) -> str:
    """The URL that the processes of a `magnetar cluster` use. Raises CommandError."""
    path = directory / "cluster.json"
    try:
        processes = json.loads(path.read_text(encoding="utf-8"))["processes"]
        server = next(each for each in processes if each["role"] in ("metadata", "zookeeper"))
        return f"zk:127.0.0.1:{server['ports']['zk']}"
    except FileNotFoundError:
        raise CommandError(
            f"there is no cluster in {directory}; start one with: magnetar cluster up --dir {directory}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise CommandError(f"{path} is no state file of `magnetar cluster`: {error}") from error
