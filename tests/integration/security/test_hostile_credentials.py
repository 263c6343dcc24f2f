"""Raw frames with credentials that no well-behaved client would show. Each is refused, and the server goes on."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.integration.security.conftest import PASSWORD, Secured, check_log
from tests.support.raw import RawClient, connect_command
from tests.support.tokens import AUDIENCE, SECRET, part, token
from tests.support.types import StartServer

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


def der(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def unsigned(header: dict[str, object], payload: dict[str, object] | None = None) -> bytes:
    return part(header) + b"." + part(payload or {"sub": "root", "aud": AUDIENCE})


def rs256(key: rsa.RSAPrivateKey, header: dict[str, object] | None = None, **claims: object) -> str:
    signed = unsigned({"alg": "RS256"} | (header or {}), {"sub": "root"} | claims)
    return (signed + b"." + part(key.sign(signed, padding.PKCS1v15(), hashes.SHA256()))).decode()


def es256(key: ec.EllipticCurvePrivateKey, header: dict[str, object] | None = None) -> str:
    signed = unsigned({"alg": "ES256"} | (header or {}), {"sub": "root"})
    r, s = decode_dss_signature(key.sign(signed, ec.ECDSA(hashes.SHA256())))
    return (signed + b"." + part(r.to_bytes(32, "big") + s.to_bytes(32, "big"))).decode()


def hs256(secret: bytes, header: dict[str, object] | None = None) -> str:
    return token("root", secret=secret, header=header)


def refused(port: int, method: str, data: bytes, **fields: object) -> str:
    """ERROR with AuthenticationError, then the end. The text."""
    with RawClient(port) as client:
        client.send(connect_command(auth_method_name=method, auth_data=data, **fields))
        (said,) = client.closed_within(8)
        assert said.error.error == ServerError.AuthenticationError, said
        assert said.error.request_id == 2**64 - 1
        return str(said.error.message)


def accepted(port: int, data: str) -> None:
    with RawClient(port) as client:
        client.connect(auth_method_name="token", auth_data=data.encode())
        command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
        command.getTopicsOfNamespace.namespace = "public/default"
        command.getTopicsOfNamespace.request_id = 1
        client.send(command)
        client.expect(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)


@pytest.fixture(autouse=True)
def unharmed(secured: Secured) -> Iterator[None]:
    """Afterwards a good client is served at once."""
    yield
    started = time.monotonic()
    with secured.raw("tenant-admin") as client:
        assert client.producer("t/ns/good").type == BaseCommand.PRODUCER_SUCCESS
    assert time.monotonic() - started < 8.0


TOKENS = {
    "alg none": unsigned({"alg": "none"}) + b".",
    "alg None": unsigned({"alg": "None"}) + b".",
    "alg NONE with a signature": unsigned({"alg": "NONE"}) + b"." + part(b"x" * 32),
    "no alg": unsigned({"typ": "JWT"}) + b"." + part(b"x" * 32),
    "alg is a list": unsigned({"alg": ["HS256"]}) + b"." + part(b"x" * 32),
    "empty signature": unsigned({"alg": "HS256"}) + b".",
    "no signature": unsigned({"alg": "HS256"}),
    "another secret": token("root", secret=b"z" * 32).encode(),
    "empty secret": token("root", secret=b"").encode(),
    "hs512 by a short secret": token("root", header={"alg": "HS512"}).encode(),
    "kid path": token("root", secret=b"", header={"kid": "../../../../dev/null"}).encode(),
    "kid sql": token("root", secret=b"x" * 32, header={"kid": "' OR 1=1 --"}).encode(),
    "jku": token("root", secret=b"x" * 32, header={"jku": "http://169.254.169.254/keys"}).encode(),
    "own key in jwk": token(
        "root", secret=b"x" * 32, header={"jwk": {"kty": "oct", "k": part(b"x" * 32).decode()}}
    ).encode(),
    "unknown crit": token("root", header={"crit": ["exp"]}).encode(),
    "expired": token("root", lifetime_s=-1).encode(),
    "not yet": token("root", nbf=time.time() + 3600).encode(),
    "exp is a text": token("root", lifetime_s=None, exp="9999999999").encode(),
    "exp is true": token("root", lifetime_s=None, exp=True).encode(),
    "exp is null": token("root", lifetime_s=None, exp=None).encode(),
    "exp is NaN": token("root", lifetime_s=None, exp=float("nan")).encode(),
    "exp is infinite": token("root", lifetime_s=None, exp=float("inf")).encode(),
    "wrong audience": token("root", aud="another").encode(),
    "no audience": token("root", aud=None).encode(),
    "audience in a longer list": token("root", aud=["another", f"{AUDIENCE}2"]).encode(),
    "no role": token(None).encode(),
    "empty role": token("").encode(),
    "role is an object": token({"sub": "root"}).encode(),
    "role with a line break": token("root\nINFO admin logged in").encode(),
    "huge role": token("r" * 2000).encode(),
    "claims are a list": part({"alg": "HS256"}) + b"." + part([1]) + b"." + part(b"x"),
    "deep claims": part({"alg": "HS256"}) + b"." + part(b"[" * 5000) + b"." + part(b"x"),
    "deep header": part(b"[" * 10_000) + b"." + part({}) + b"." + part(b"x"),
    "too long": b"a" * 20_000,
    "empty": b"",
    "dots": b"...",
    "five parts": b"e30.e30.e30.e30.e30",
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("name", TOKENS)
def test_token(secured: Secured, name: str) -> None:
    text = refused(secured.process.port, "token", TOKENS[name])
    assert "eyJ" not in text
    if TOKENS[name].isascii() and name != "bytes":
        headers = {"Authorization": f"Bearer {TOKENS[name].decode()}".strip()}
        assert secured.http("GET", "/admin/v2/tenants", "anonymous", headers=headers).status_code == 401


def test_signature_of_deep_claims_is_checked_first(secured: Secured) -> None:
    signed = part({"alg": "HS256"}) + b"." + part(b'{"a":' * 3000 + b"1" + b"}" * 3000)
    good = signed + b"." + part(hmac.new(SECRET, signed, hashlib.sha256).digest())
    refused(secured.process.port, "token", good)


@pytest.mark.parametrize(
    "pair",
    [f"admin:{PASSWORD}x", "admin:", "admin", ":", f"nobody:{PASSWORD}", f"admin\0:{PASSWORD}", "admin:" + "p" * 300],
)
def test_password(secured: Secured, pair: str) -> None:
    refused(secured.process.port, "basic", pair.encode())


def test_tls_without_tls(secured: Secured) -> None:
    refused(secured.process.port, "tls", b"")


@pytest.mark.parametrize(
    ("role", "original"),
    [("stranger", "root"), ("proxy", ""), ("proxy", "proxy"), ("producer", "consumer"), ("anonymous", "root")],
)
def test_speaking_for_another(secured: Secured, role: str, original: str) -> None:
    method, data = ("", b"") if role == "anonymous" else ("token", token(role).encode())
    refused(secured.process.port, method, data, original_principal=original)
    headers = {"X-Original-Principal": original} if original else {}
    assert secured.http("GET", "/admin/v2/tenants", role, headers=headers).status_code == 401


def test_a_proxy_gets_no_more_than_its_own_rights(secured: Secured) -> None:
    """`proxy` may produce in t/ns2, `root` may do everything: together they may produce in t/ns2."""
    secured.admin("PUT", "namespaces/t/ns2")
    secured.admin("POST", "namespaces/t/ns2/permissions/proxy", ["produce"])
    with RawClient(secured.process.port) as client:
        client.connect(auth_method_name="token", auth_data=token("proxy").encode(), original_principal="root")
        assert client.producer("t/ns2/x").type == BaseCommand.PRODUCER_SUCCESS
        assert client.producer("t/ns/x", 2).error.error == ServerError.AuthorizationError
    headers = {"X-Original-Principal": "root"}
    assert secured.http("GET", "/admin/v2/tenants", "proxy", headers=headers).status_code == 403


def test_nothing_is_served_after_a_refusal(secured: Secured) -> None:
    """Also to the client that is told late: every command is refused, and the connection ends by itself."""
    with RawClient(secured.process.port) as client:
        client.send(connect_command(auth_method_name="token", auth_data=b"bad", client_version="Pulsar-CPP-v3.7.0"))
        client.expect(BaseCommand.CONNECTED)
        client.ping()
        assert client.producer("t/ns/x").error.error == ServerError.AuthenticationError
        assert client.subscribe("t/ns/x").error.error == ServerError.AuthenticationError
        client.send(connect_command(auth_method_name="token", auth_data=token("root").encode()))
        (said,) = client.closed_within(8)
        assert said.error.error == ServerError.NotAllowedError
    with RawClient(secured.process.port) as client:
        client.send(connect_command(auth_method_name="token", auth_data=b"bad", client_version="Pulsar-CPP-v3.7.0"))
        client.expect(BaseCommand.CONNECTED)
        client.closed_within(30)


# ---- The life of a credential

EXPIRED = "the credential of this connection has expired"

SHORT_S = 4.0
"""A token's life: longer than a busy machine takes to connect with it."""


def challenged(client: RawClient, lifetime_s: float, role: str = "tenant-admin") -> None:
    """Connect with a short token; returns when AUTH_CHALLENGE has come."""
    command = connect_command(auth_method_name="token", auth_data=token(role, lifetime_s=lifetime_s).encode())
    command.connect.feature_flags.supports_auth_refresh = True
    client.send(command)
    client.expect(BaseCommand.CONNECTED)
    challenge = client.expect(BaseCommand.AUTH_CHALLENGE).authChallenge.challenge
    assert challenge.auth_method_name == "token"


def answer(client: RawClient, data: str) -> None:
    command = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
    command.authResponse.response.auth_method_name = "token"
    command.authResponse.response.auth_data = data.encode()
    client.send(command)


def test_a_refreshed_connection_lives_on(secured: Secured) -> None:
    with RawClient(secured.process.port) as client:
        challenged(client, SHORT_S)
        answer(client, token("tenant-admin"))
        time.sleep(SHORT_S)
        assert client.producer("t/ns/x").type == BaseCommand.PRODUCER_SUCCESS


@pytest.mark.parametrize(
    "data", [token("root"), token("tenant-admin", lifetime_s=-1), "bad"], ids=["role", "expired", "bad"]
)
def test_a_wrong_answer_ends_the_connection(secured: Secured, data: str) -> None:
    with RawClient(secured.process.port) as client:
        challenged(client, SHORT_S)
        answer(client, data)
        (said,) = client.closed_within()
        assert said.error.error == ServerError.AuthenticationError
        assert said.error.message != EXPIRED, "by the answer, not by the end of the first token"


def test_without_an_answer_the_connection_ends_with_its_token(secured: Secured) -> None:
    with RawClient(secured.process.port) as client:
        started = time.monotonic()
        challenged(client, SHORT_S)
        (said,) = client.closed_within()
        assert said.error.error == ServerError.AuthenticationError
        assert said.error.message == EXPIRED
        assert time.monotonic() - started > 1.0


def test_a_client_that_cannot_refresh_is_ended_in_time(secured: Secured) -> None:
    with RawClient(secured.process.port) as client:
        client.connect(auth_method_name="token", auth_data=token("tenant-admin", lifetime_s=SHORT_S).encode())
        assert client.producer("t/ns/x").type == BaseCommand.PRODUCER_SUCCESS
        assert client.closed_within()[-1].error.error == ServerError.AuthenticationError


def test_an_answer_nobody_asked_for(secured: Secured) -> None:
    with secured.raw("tenant-admin") as client:
        answer(client, token("root"))
        (said,) = client.closed_within()
        assert said.error.error == ServerError.NotAllowedError


# ---- Public keys


@pytest.fixture(scope="module")
def public_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServerProcess]]:
    started: dict[str, ServerProcess] = {}

    def start(key: str, **settings: object) -> ServerProcess:
        if key not in started:
            both = {"authenticationEnabled": True, "authenticationProviders": "token"} | settings
            started[key] = ServerProcess(tmp_path_factory.mktemp(key) / "data", both).start()
        return started[key]

    yield start
    for process in started.values():
        check_log(process.log())
        process.close()


def test_rs256(public_keys: Callable[..., ServerProcess]) -> None:
    server = public_keys("rsa", tokenPublicKey=f"data:;base64,{base64.b64encode(der(RSA)).decode()}")
    accepted(server.port, rs256(RSA))
    for forged in (
        rs256(OTHER_RSA),
        hs256(der(RSA)),
        hs256(pem(RSA)),
        hs256(pem(RSA).strip()),
        rs256(RSA, {"alg": "none"}),
        rs256(RSA, {"alg": "RS512"}),
        es256(CURVE),
    ):
        refused(server.port, "token", forged.encode())


def test_es256(public_keys: Callable[..., ServerProcess], tmp_path: Path) -> None:
    file = tmp_path / "public.der"
    file.write_bytes(der(CURVE))
    server = public_keys("ec", tokenPublicKey=f"file://{file}", tokenPublicAlg="ES256")
    accepted(server.port, es256(CURVE))
    zero = unsigned({"alg": "ES256"}) + b"." + part(b"\0" * 64)
    for forged in (es256(ec.generate_private_key(ec.SECP256R1())).encode(), hs256(der(CURVE)).encode(), zero):
        refused(server.port, "token", forged)


def test_key_set(public_keys: Callable[..., ServerProcess], tmp_path: Path) -> None:
    def number(value: int) -> str:
        return part(value.to_bytes((value.bit_length() + 7) // 8, "big")).decode()

    rsa_numbers, point = RSA.public_key().public_numbers(), CURVE.public_key().public_numbers()
    keys = [
        {"kty": "RSA", "kid": "one", "use": "sig", "n": number(rsa_numbers.n), "e": number(rsa_numbers.e)},
        {"kty": "EC", "kid": "two", "crv": "P-256", "x": number(point.x), "y": number(point.y)},
    ]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": keys}))
    server = public_keys("jwks", tokenJwksFile=str(file))
    for good in (rs256(RSA, {"kid": "one"}), rs256(RSA), es256(CURVE, {"kid": "two"})):
        accepted(server.port, good)
    for forged in (
        rs256(RSA, {"kid": "two"}),
        rs256(OTHER_RSA, {"kid": "one"}),
        rs256(OTHER_RSA, {"kid": "/etc/passwd"}),
        rs256(OTHER_RSA, {"kid": ["one"]}),
        hs256(json.dumps(keys[0]).encode(), {"kid": "one"}),
    ):
        refused(server.port, "token", forged.encode())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"authenticationEnabled": True}, "authenticationProviders"),
        ({"authorizationEnabled": True}, "authorizationEnabled needs"),
        ({"authenticationEnabled": True, "authenticationProviders": "token"}, "tokenSecretKey"),
        (
            {"authenticationEnabled": True, "authenticationProviders": "token", "tokenSecretKey": "c2hvcnQ="},
            "at least 32 bytes",
        ),
        ({"authenticationEnabled": True, "authenticationProviders": "kerberos"}, "kerberos"),
        ({"brokerServicePortTls": 0}, "tlsCertificateFilePath"),
        ({"bindAddress": "0.0.0.0"}, "authenticationEnabled"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_meant_does_not_start(start_server: StartServer, settings: dict[str, object], text: str) -> None:
    with pytest.raises(RuntimeError, match=text) as problem:
        start_server(**settings)
    assert "Traceback" not in str(problem.value)
    assert "c2hvcnQ" not in str(problem.value)
