"""The official client with the options of a connection: credentials, TLS, time-outs."""

from __future__ import annotations

from typing import Any

import pulsar

from magnetar.pipeline.connect.options import Connection


def open_client(connection: Connection) -> pulsar.Client:
    options: dict[str, Any] = {
        "operation_timeout_seconds": max(connection.operation_timeout_ms // 1000, 1),
        # The console logger writes to stdout, into what commands print.
        "logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr"),
        "tls_allow_insecure_connection": connection.tls_allow_insecure,
        "tls_validate_hostname": connection.tls_validate_hostname,
    }
    tuned = {
        "connection_timeout_ms": connection.connection_timeout_ms,
        "io_threads": connection.io_threads,
        "listener_name": connection.listener_name,
    }
    options |= {name: value for name, value in tuned.items() if value is not None}
    if connection.tls_trust_certs:
        options["tls_trust_certs_file_path"] = connection.tls_trust_certs
    if connection.auth_plugin:
        options["authentication"] = _authentication(connection.auth_plugin, connection.auth_params or "")
    return pulsar.Client(connection.service_url, **options)


def _authentication(plugin: str, params: str) -> pulsar.Authentication:
    name = plugin.rpartition(".")[2].lower()
    if "token" in name:
        value = params.removeprefix("token:")
        if params.startswith("file:"):
            path = params.removeprefix("file:").removeprefix("//")
            return pulsar.AuthenticationToken(lambda: open(path, encoding="utf-8").read().strip())
        return pulsar.AuthenticationToken(value)
    if name == "authenticationtls":
        pairs = dict(pair.split(":", 1) for pair in params.split(","))
        return pulsar.AuthenticationTLS(pairs["tlsCertFile"], pairs["tlsKeyFile"])
    return pulsar.Authentication(plugin, params)
