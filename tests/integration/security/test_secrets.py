"""Secrets are shown nowhere: not by the configuration, not over HTTP, not in logs; and the metrics are not for everybody."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.base.settings import table_of
from magnetar.processes.configurations import StandaloneConfig
from tests.integration.security.conftest import PASSWORD, Secured, check_log
from tests.support.tokens import SECRET, token

KEY = f"data:;base64,{base64.b64encode(SECRET).decode()}"


def test_runtime_configuration(secured: Secured) -> None:
    for path in ("brokers/configuration/runtime", "brokers/configuration/values", "brokers/internal-configuration"):
        text = secured.http("GET", f"/admin/v2/{path}").text
        assert base64.b64encode(SECRET).decode() not in text
    shown = secured.http("GET", "/admin/v2/brokers/configuration/runtime").json()
    assert shown["tokenSecretKey"] == shown["basicAuthConf"] == "*****"
    assert shown["authenticationEnabled"] == "true"


@pytest.mark.parametrize("command", [["explain", "tokenSecretKey"], ["list"], ["list", "--json"]])
def test_config_commands(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"tokenSecretKey={KEY}\nbasicAuthConf=data:;base64,AAAA\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAGNETAR_")}
    for more, where in (({}, ["--config", str(file)]), ({"MAGNETAR_TOKEN_SECRET_KEY": KEY}, [])):
        result = subprocess.run(
            [sys.executable, "-m", "magnetar", "config", *command, *where],
            env=environment | more,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        assert "*****" in result.stdout
        assert base64.b64encode(SECRET).decode() not in result.stdout + result.stderr


def test_a_configuration_can_be_printed() -> None:
    assert KEY not in repr(StandaloneConfig(token_secret_key=KEY))
    assert {row.key for row in table_of(StandaloneConfig).values() if row.secret} == {
        "tokenSecretKey",
        "basicAuthConf",
        "brokerClientAuthenticationParameters",
    }


def test_the_log_of_refusals(secured: Secured) -> None:
    """Good and bad credentials were shown above and here; the log names roles and addresses, and nothing else of them."""
    for credential in (f"Bearer {token('root')}", f"Bearer {token('root', secret=b'x' * 32)}", "Bearer eyJ.eyJ.eyJ"):
        secured.http("GET", "/admin/v2/tenants", "anonymous", headers={"Authorization": credential})
    basic = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    assert (
        secured.http("GET", "/admin/v2/tenants", "anonymous", headers={"Authorization": f"Basic {basic}"}).status_code
        == 200
    )
    log = secured.process.log()
    check_log(log)
    assert basic not in log


def test_metrics_are_for_superusers(secured: Secured) -> None:
    assert secured.http("GET", "/metrics", "anonymous").status_code == 403
    assert secured.http("GET", "/metrics", "tenant-admin").status_code == 403
    assert secured.http("GET", "/metrics", "root").status_code == 200
    assert secured.http("GET", "/status.html", "anonymous").status_code == 200
