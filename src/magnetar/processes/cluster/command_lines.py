"""How each process of a cluster is called."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from magnetar.base.errors import ConfigError
from magnetar.base.settings import Setting, find, name_in, parse, table_of
from magnetar.metadata.settings import MetadataAccessSettings
from magnetar.processes.cluster.plan import (
    AUTORECOVERY,
    BOOKIE,
    BROKER,
    METADATA,
    ClusterPlan,
    ProcessPlan,
    SettingPlan,
)
from magnetar.processes.configurations import (
    AutorecoveryConfig,
    BookieProcessConfig,
    BrokerProcessConfig,
    MetadataServerConfig,
    StandaloneConfig,
)

_CONFIGURATIONS: dict[str, type] = {
    METADATA: MetadataServerConfig,
    BOOKIE: BookieProcessConfig,
    BROKER: BrokerProcessConfig,
    AUTORECOVERY: AutorecoveryConfig,
}

_SUBCOMMANDS = {METADATA: "metadata-server", BOOKIE: "bookie", BROKER: "broker", AUTORECOVERY: "autorecovery"}

SECRET_FILE = "secret"
"""Of a cluster's directory: what its processes ask each other for. Made once; only its owner may read it."""

SECRET_KEYS = ("metadataSecret", "bookieSharedSecret")
"""Settings that name this file."""

BROKER_SESSION_MS = 2000
"""Of brokers on one machine, where nothing delays a sign of life: what a killed one served is taken over within this time."""

OWN_FIELDS = frozenset({"data_dir", "port", "http_port", "bind_address", "metadata_service_uri", "metadata_store_url"})
"""Fields that the cluster sets itself."""


def magnetar_command(directory: Path, plan: ClusterPlan, process: ProcessPlan) -> list[str]:
    """The arguments of one of our own processes."""
    words = [sys.executable, "-m", "magnetar", _SUBCOMMANDS[process.role]]
    if process.role in (METADATA, BOOKIE):
        words += ["--data-dir", str(directory / process.name)]
    main = next((purpose for purpose in ("bookie", "pulsar", "zk") if purpose in process.ports), None)
    if main is not None:
        words += ["--port", str(process.ports[main])]
    if "http" in process.ports:
        words += ["--http-port", str(process.ports["http"])]
    if process.role != METADATA:
        words += ["--metadata-url", plan.metadata_url]
    for key, value in settings_of(directory, plan, process).items():
        words += ["--set", f"{key}={value}"]
    return words


def make_secret(directory: Path) -> None:
    """Write the file with a new secret, durably, unless it is there. Raises OSError."""
    path = directory / SECRET_FILE
    if path.exists():
        return
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def metadata_access(directory: Path, plan: ClusterPlan) -> MetadataAccessSettings:
    """What was said about the metadata store for those that only look into it."""
    given = settings_of(directory, plan, ProcessPlan("", AUTORECOVERY, {}))
    rows = table_of(MetadataAccessSettings)
    return MetadataAccessSettings(**{name: given[row.key] for name, row in rows.items() if row.key in given})


def settings_of(directory: Path, plan: ClusterPlan, process: ProcessPlan) -> dict[str, str]:
    """What was said for the process wins over what was said for its role, and that over what was said for all. The cluster's own secret
    is named where there is one and nothing else was said."""
    table = table_of(_CONFIGURATIONS[process.role])
    settings: dict[str, str] = {}
    if (directory / SECRET_FILE).exists():
        settings = {key: (directory / SECRET_FILE).as_uri() for key in SECRET_KEYS if _knows(table, key)}
    if process.role == BROKER:
        sizes = ("managedLedgerDefaultEnsembleSize", "managedLedgerDefaultWriteQuorum", "managedLedgerDefaultAckQuorum")
        settings |= {key: str(size) for key, size in zip(sizes, plan.ensemble, strict=True)}
        settings["metadataStoreSessionTimeoutMillis"] = str(BROKER_SESSION_MS)
    for target in ("", process.role, process.name):
        settings |= {
            each.key: each.value for each in plan.settings if each.target == target and _knows(table, each.key)
        }
    return settings


def parse_setting(word: str, names: frozenset[str]) -> SettingPlan:
    """`KEY=VALUE` for whoever knows the key, `ROLE.KEY=VALUE` or `NAME.KEY=VALUE` for some. Raises ConfigError."""
    left, separator, value = word.partition("=")
    if not separator:
        raise ConfigError(
            f"--set {name_in(word, _all_rows())}: expected KEY=VALUE, or ROLE.KEY=VALUE or NAME.KEY=VALUE for some processes; what was "
            "given has no '=' and is not repeated"
        )
    where = f"--set {name_in(left.strip(), _all_rows())}".rstrip()
    target, dot, key = left.strip().rpartition(".")
    if dot and target not in _CONFIGURATIONS and target not in names:
        known = ", ".join([*_CONFIGURATIONS, *sorted(names)])
        raise ConfigError(f"{where}: what stands before the dot is neither a role nor a process; there are {known}")
    role = target if target in _CONFIGURATIONS else target.rstrip("0123456789")
    tables = (
        [table_of(_CONFIGURATIONS[role])] if role in _CONFIGURATIONS else [*map(table_of, _CONFIGURATIONS.values())]
    )
    row = _find(tables, key, where)
    if row.name in OWN_FIELDS:
        raise ConfigError(f"{where}: {row.key} is set by the cluster itself")
    parse(row, value, where)
    return SettingPlan(target, row.key, value.strip())


def _all_rows() -> list[Setting]:
    return [row for kind in _CONFIGURATIONS.values() for row in table_of(kind).values()]


def _find(tables: list[Mapping[str, Setting]], key: str, where: str) -> Setting:
    for table in tables:
        if _knows(table, key):
            return find(table, key, where)
    merged = {name: row for table in [table_of(StandaloneConfig), *tables] for name, row in table.items()}
    return find(merged, key, where)


def _knows(table: Mapping[str, Setting], key: str) -> bool:
    return key in table or any(row.key == key for row in table.values())
