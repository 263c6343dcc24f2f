"""A server starts with Pulsar's own configuration files, obeys what it knows, and says what it does not."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.cli.main import run
from magnetar.processes.pulsar_keys import PULSAR_KEYS, defaults
from magnetar.testing.server import ServerProcess

STANDALONE = {
    "clusterName": "standalone",
    "backlogQuotaDefaultLimitGB": "10",
    "statusFilePath": "/usr/local/apache/htdocs",
    "webSocketServiceEnabled": "true",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "loadBalancerEnabled": "false",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "journalSyncData": "false",
    "gcWaitTime": "300000",
    "maxTenants": "7",
}
"""Where Pulsar's standalone.conf says something else than its broker.conf, and one that an operator changed."""


def pulsar_file(path: Path, **changed: str) -> Path:
    """Every key of Pulsar's files with its default, as the files have them."""
    values = defaults() | {key: other.default for key, other in PULSAR_KEYS.keys.items()} | changed
    if "backlogQuotaDefaultLimitGB" in changed:
        del values["backlogQuotaDefaultLimitBytes"]
    lines = [f"# what it is for\n{key}={value}\n" for key, value in values.items()]
    path.write_text("### --- General broker settings --- ###\n" + "".join(lines))
    return path


def get(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["standalone.conf", "broker.conf"])
def test_pulsars_files_start_a_server(tmp_path: Path, name: str) -> None:
    file = pulsar_file(tmp_path / name, **(STANDALONE if name == "standalone.conf" else {"maxTenants": "7"}))
    server = ServerProcess(tmp_path / "data", environment={"MAGNETAR_CONFIG": str(file)})
    try:
        server.start()
        held = get(f"{server.http_url}/admin/v2/brokers/configuration/runtime")
        assert held["maxTenants"] == "7"
        if name == "standalone.conf":
            assert held["backlogQuotaDefaultLimitBytes"] == str(10 * 2**30)
        log = server.log()
        assert log.count("keys have no effect here") == 1
        named = "not Pulsar's default have " in log
        assert named == (name == "standalone.conf"), log
        assert ("statusFilePath" in log) == named
        assert "bindAddress=0.0.0.0 would let other machines in" in log
        assert held["bindAddress"] == "127.0.0.1"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("maxTenats=3", "unknown key 'maxTenats'; the nearest is 'maxTenants'"),
        ("numIoThread=3", "unknown key 'numIoThread'; the nearest is 'numIOThreads'"),
        ("maxTenants=many", "maxTenants must be a whole number"),
        ("tlsEnabledWithKeyStore=true", "cannot be obeyed. Certificates and keys are PEM files here"),
        ("entryFilterNames=secrets", "cannot be obeyed. Java classes"),
    ],
)
def test_a_server_does_not_start_with_what_cannot_be_meant(
    tmp_path: Path, line: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pulsar_file(tmp_path / "broker.conf")
    with file.open("a") as lines:
        lines.write(line + "\n")
    assert run(["standalone", "--config", str(file)]) == 1
    error = capsys.readouterr().err
    assert text in error
    assert f"{file}:{len(file.read_text().splitlines())}: " in error
    assert run(["config", "check", str(file)]) == 1
    assert text.removeprefix("cannot be obeyed. ") in capsys.readouterr().out


def test_check_says_of_each_key_what_becomes_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = pulsar_file(tmp_path / "broker.conf", tokenSecretKey="c2VjcmV0", numIOThreads="8")
    assert run(["config", "check", str(file), "--json"]) == 0
    found = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(found) == len(defaults()) + len(PULSAR_KEYS.keys)
    assert {row["effect"] for row in found.values()} == {"acts", "no effect"}
    assert found["brokerServicePort"]["effect"] == "acts"
    assert found["tokenSecretKey"]["value"] == "*****"
    assert found["numIOThreads"]["effect"] == "no effect"
    assert found["numIOThreads"]["why"].startswith("An event loop serves here")
    assert "c2VjcmV0" not in json.dumps(found)
    assert run(["config", "check", str(file), "--for", "broker", "--json"]) == 0
    of_broker = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert of_broker["journalSyncData"]["why"] == "It is a setting of another kind of process."


def test_explain_says_why_a_default_differs_and_why_a_key_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "explain", "lowerBoundarySheddingEnabled", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["default"], about["pulsar_default"]) == (True, "false")
    assert about["differs_because"].endswith(".")
    assert run(["config", "explain", "functionsWorkerEnabled", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["why"] == "There is no functions worker, and no package management."


def test_the_variables_of_pulsars_images_are_taken_in_the_same_way(
    start_server: Callable[..., ServerProcess], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSAR_PREFIX_functionsWorkerEnabled", "true")
    monkeypatch.setenv("PULSAR_PREFIX_maxTenants", "5")
    assert run(["config", "list", "--json"]) == 0
    held = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert held["maxTenants"]["value"] == 5
    monkeypatch.setenv("PULSAR_PREFIX_haProxyProtocolEnabled", "true")
    assert run(["config", "list"]) == 1
    assert "haProxyProtocolEnabled cannot be obeyed" in capsys.readouterr().err


def test_limits_of_pulsars_keys_hold(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(
        maxNumPartitionsPerPartitionedTopic=3,
        defaultNumberOfNamespaceBundles=6,
        forceDeleteNamespaceAllowed="false",
        forceDeleteTenantAllowed="false",
    )
    admin = f"{server.http_url}/admin/v2"

    def ask(method: str, path: str, body: object = None) -> tuple[int, str]:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{admin}/{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert ask("PUT", "persistent/public/default/three/partitions", 3)[0] == 204
    refused = ask("PUT", "persistent/public/default/four/partitions", 4)
    assert refused[0] == 412
    assert "less than or equal to 3" in refused[1]
    assert ask("POST", "persistent/public/default/three/partitions", 4)[0] == 412
    assert ask("PUT", "namespaces/public/six", {})[0] == 204
    assert json.loads(ask("GET", "namespaces/public/six")[1])["bundles"]["numBundles"] == 6
    assert ask("DELETE", "namespaces/public/six?force=true")[0] == 405
    assert ask("DELETE", "tenants/public?force=true")[0] == 405
    assert ask("POST", "brokers/configuration/forceDeleteNamespaceAllowed/true")[0] == 204
    assert ask("DELETE", "namespaces/public/six?force=true")[0] == 204
