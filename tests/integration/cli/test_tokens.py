"""`magnetar tokens`, and the options by which commands say who they are."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from magnetar.cli.main import cli, run
from tests.integration.security.conftest import PASSWORD, Secured, grant, start
from tests.support.tokens import token


def tokens(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["tokens", *args], input=stdin)


def made(*args: str) -> str:
    result = tokens(*args)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_secret_key(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    made("create-secret-key", "--output", str(file))
    assert len(file.read_bytes()) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = made("create", "-sk", f"file://{file}", "-s", "alice", "-e", "1h", "-c", "aud=x", "-h", "kid=7")
    claims = json.loads(made("validate", text, "--secret-key", str(file)))
    assert claims["sub"] == "alice"
    assert claims["aud"] == "x"
    header, line, body = made("show", text).splitlines()
    assert json.loads(header) == {"alg": "HS256", "kid": "7"}
    assert (line, json.loads(body)) == ("---", claims)
    assert tokens("validate", "-i", "-sk", str(file), stdin=text).exit_code == 0
    held = tmp_path / "token"
    held.write_text(text)
    assert tokens("validate", "-f", str(held), "-sk", str(file)).exit_code == 0
    other = made("create-secret-key", "--base64")
    assert tokens("validate", text, "-sk", other).exit_code == 1


@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "ES256", "ES512"])
def test_key_pair(tmp_path: Path, algorithm: str) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    made("create-key-pair", "-a", algorithm, "--output-private-key", str(private), "--output-public-key", str(public))
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    text = made("create", "--private-key", str(private), "-a", algorithm, "--subject", "bob")
    assert json.loads(made("validate", text, "-pk", str(public), "-a", algorithm)) == {"sub": "bob"}
    wrong = "RS384" if algorithm != "RS384" else "RS256"
    assert tokens("validate", text, "-pk", str(public), "-a", wrong).exit_code == 1
    assert tokens("create", "-sk", str(private), "-s", "x", "-a", algorithm).exit_code == 1


def test_expired(tmp_path: Path) -> None:
    key = made("create-secret-key", "-b")
    text = made("create", "-sk", key, "-s", "alice", "-e", "0s")
    assert tokens("validate", text, "-sk", key).exit_code == 1
    for bad in (["-e", "soon"], ["-e", "-5s"], ["-a", "ES256"], ["-h", "x"]):
        assert tokens("create", "-sk", key, "-s", "alice", *bad).exit_code != 0


def test_nothing_secret_in_complaints(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["tokens", "create", "-sk", "c2VjcmV0LWJ1dC1zaG9ydA==", "-s", "x"]) == 1
    assert run(["tokens", "validate", "eyJ.eyJ.eyJ", "-sk", "c2VjcmV0LWJ1dC1zaG9ydA=="]) == 1
    said = capfd.readouterr()
    assert "c2Vj" not in said.err + said.out


# ---- Commands against a server that asks


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    server = start(tmp_path_factory.mktemp("secured"))
    grant(server)
    yield server
    server.process.close()


@pytest.fixture(params=["tcp", "tls"])
def where(request: pytest.FixtureRequest, secured: Secured) -> dict[str, list[str]]:
    if request.param == "tcp":
        return {"admin": ["--admin-url", secured.process.http_url], "client": ["--url", secured.process.service_url]}
    trust = ["--tls-trust-certs", str(secured.authority.file)]
    return {
        "admin": ["--admin-url", f"https://localhost:{secured.http_port_tls}", *trust],
        "client": ["--url", f"pulsar+ssl://localhost:{secured.port_tls}", *trust],
    }


def credentials(secured: Secured, kind: str) -> list[str]:
    name = "org.apache.pulsar.client.impl.auth.Authentication"
    return {
        "token": ["--token", token("root")],
        "plugin": ["--auth-plugin", f"{name}Token", "--auth-params", f"token:{token('root')}"],
        "basic": [
            "--auth-plugin",
            f"{name}Basic",
            "--auth-params",
            json.dumps({"userId": "admin", "password": PASSWORD}),
        ],
    }[kind]


@pytest.mark.parametrize("kind", ["token", "plugin", "basic"])
def test_commands(secured: Secured, where: dict[str, list[str]], kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    shown = credentials(secured, kind)
    topic = f"persistent://t/ns/cli-{kind}-{len(where['client'])}"
    assert run(["topics", "create", topic, *where["admin"], *shown]) == 0
    assert run(["produce", topic, "-m", "hello", *where["client"], *shown]) == 0
    assert run(["consume", topic, "-s", "sub", "-p", "Earliest", "-n", "1", *where["client"], *shown]) == 0
    assert "hello" in capfd.readouterr().out
    assert run(["topics", "list", "t/ns", *where["admin"]]) == 1
    assert run(["produce", topic, "-m", "hello", *where["client"]]) == 1
    said = capfd.readouterr().err
    assert "HTTP 403" in said
    assert "Authorization" in said


def test_certificate(secured: Secured) -> None:
    certificate, key = secured.authority.sign("root")
    shown = ["--auth-plugin", "tls", "--auth-params", f"tlsCertFile:{certificate},tlsKeyFile:{key}"]
    trust = ["--tls-trust-certs", str(secured.authority.file)]
    assert (
        run(["topics", "list", "t/ns", "--admin-url", f"https://localhost:{secured.http_port_tls}", *trust, *shown])
        == 0
    )
    url = ["--url", f"pulsar+ssl://localhost:{secured.port_tls}"]
    assert run(["produce", "persistent://t/ns/cli-tls", "-m", "x", *url, *trust, *shown]) == 0


def test_servers_that_cannot_be_verified_get_nothing(secured: Secured) -> None:
    url = f"https://localhost:{secured.http_port_tls}"
    assert run(["topics", "list", "t/ns", "--admin-url", url, "--token", token("root")]) == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--token", "x", "--auth-plugin", "token"],
        ["--auth-plugin", "kerberos"],
        ["--auth-plugin", "basic", "--auth-params", "{"],
        ["--auth-plugin", "basic", "--auth-params", "userId"],
        ["--auth-plugin", "basic"],
        ["--token", "file:///no/such/token"],
    ],
)
def test_options_that_make_no_sense(secured: Secured, options: list[str]) -> None:
    assert run(["topics", "list", "--admin-url", secured.process.http_url, *options]) == 1
