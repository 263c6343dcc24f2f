"""JSON web tokens: which keys are trusted with which algorithms, and what a token must say.

The configuration fixes the algorithms, never the token (CVE-2021-22160): each trusted key is bound to its own ones, so a token
that is signed by HMAC with the public key finds no key, and `none` is in no list. `jku`, `x5u` and `jwk` headers are never
followed; `kid` only selects among the keys of the configured set.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, RSAKey

from magnetar.base.errors import ConfigError
from magnetar.broker.auth.key_material import read_key
from magnetar.broker.auth.principal import Principal, checked_role
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.settings.security import SecuritySettings

TOKEN_BYTES_MAX = 16 * 1024
"""A longer token is refused before it is parsed."""

SECRET_ALGORITHMS = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Least bytes of a secret (RFC 7518, 3.2): a shorter one does not serve the algorithm."""

RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
PUBLIC_ALGORITHMS = (*RSA_ALGORITHMS, *CURVES)
RSA_BITS_MIN = 2048

Key = OctKey | RSAKey | ECKey


class TrustedKey(NamedTuple):
    """A key and the only algorithms it verifies. `kid` is None for a key that no set names."""

    key: Key
    algorithms: tuple[str, ...]
    kid: str | None = None


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The claims that a valid token must hold. An empty `audience` is not checked."""

    role_claim: str = "sub"
    audience_claim: str = "aud"
    audience: str = ""
    clock_skew_s: int = 0


class TokenAuthentication:
    """The method `token`."""

    def __init__(self, keys: list[TrustedKey], rules: TokenRules, now_ms: Callable[[], int]) -> None:
        self._keys = keys
        self._rules = rules
        self._now_ms = now_ms

    def authenticate(self, credential: bytes) -> Principal:
        """Raises AuthenticationError, whose text holds nothing of the token."""
        if len(credential) > TOKEN_BYTES_MAX:
            raise AuthenticationError("the token is too long")
        credential = credential.strip()  # clients send files as they are, with the end of the line
        claims = claims_of(verified_payload(credential, self._keys))
        expires_ms = check_times(claims, self._now_ms(), self._rules.clock_skew_s * 1000)
        self._check_audience(claims)
        role = claims.get(self._rules.role_claim)
        if isinstance(role, list) and role:
            role = role[0]  # as Pulsar: the first of several
        return Principal(checked_role(role), "token", expires_ms)

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        if not self._rules.audience:
            return
        audience = claims.get(self._rules.audience_claim)
        if self._rules.audience not in (audience if isinstance(audience, list) else [audience]):
            raise AuthenticationError("the token is meant for another audience")


def verified_payload(credential: bytes, keys: list[TrustedKey]) -> bytes:
    """The payload, if one of the keys has signed it by an algorithm of its own. Raises AuthenticationError."""
    try:
        header = jws.extract_compact(credential).headers()
    except (JoseError, ValueError, TypeError, RecursionError):
        raise AuthenticationError("the credential is not a signed token") from None
    algorithm, kid = header.get("alg"), header.get("kid")
    for trusted in keys:
        if algorithm not in trusted.algorithms or (trusted.kid and kid is not None and kid != trusted.kid):
            continue
        try:
            return jws.deserialize_compact(credential, trusted.key, algorithms=list(trusted.algorithms)).payload
        except (JoseError, ValueError, TypeError):
            continue
    raise AuthenticationError("no trusted key has signed the token")


def claims_of(payload: bytes) -> dict[str, Any]:
    """Raises AuthenticationError."""
    try:
        claims = json.loads(payload)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise AuthenticationError("the token holds no claims")
    return claims


def check_times(claims: Mapping[str, Any], now_ms: int, skew_ms: int) -> int | None:
    """When the token ends, None for never. Raises AuthenticationError for one that has ended or does not hold yet."""
    expires_ms = _time_ms(claims, "exp")
    not_before_ms = _time_ms(claims, "nbf")
    if expires_ms is not None and now_ms >= expires_ms + skew_ms:
        raise AuthenticationError("the token has expired")
    if not_before_ms is not None and now_ms + skew_ms < not_before_ms:
        raise AuthenticationError("the token is not valid yet")
    return None if expires_ms is None else expires_ms + skew_ms


def _time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if name not in claims:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise AuthenticationError(f"the token's {name} is not a valid time")
    return int(value * 1000)


# ---- Keys


def configured_tokens(config: SecuritySettings, now_ms: Callable[[], int]) -> TokenAuthentication:
    """The method as the settings describe it. Raises ConfigError."""
    keys: list[TrustedKey] = []
    if config.token_secret_key:
        keys.append(secret_key(read_key(config.token_secret_key, "tokenSecretKey")))
    if config.token_public_key:
        data = read_key(config.token_public_key, "tokenPublicKey")
        keys.append(public_key(data, config.token_public_alg, "tokenPublicKey"))
    if config.token_jwks_file:
        keys += key_set(read_key(config.token_jwks_file, "tokenJwksFile"))
    if not keys:
        raise ConfigError("token authentication needs tokenSecretKey, tokenPublicKey or tokenJwksFile")
    rules = TokenRules(
        role_claim=config.token_auth_claim or "sub",
        audience_claim=config.token_audience_claim or "aud",
        audience=config.token_audience,
        clock_skew_s=config.token_allowed_clock_skew_s,
    )
    return TokenAuthentication(keys, rules, now_ms)


def secret_key(secret: bytes, name: str = "tokenSecretKey") -> TrustedKey:
    """Raises ConfigError for a secret that anybody could guess."""
    algorithms = tuple(algorithm for algorithm, least in SECRET_ALGORITHMS.items() if len(secret) >= least)
    if not algorithms:
        raise ConfigError(
            f"{name}: a secret key has at least 32 bytes; make one by `magnetar tokens create-secret-key`"
        )
    return TrustedKey(OctKey.import_key(secret), algorithms)


def public_key(data: bytes, algorithm: str, name: str = "tokenPublicKey") -> TrustedKey:
    """X.509 SubjectPublicKeyInfo, DER as Pulsar writes it or PEM. Raises ConfigError."""
    if algorithm not in PUBLIC_ALGORITHMS:
        raise ConfigError(f"{name}: the algorithm must be one of {', '.join(PUBLIC_ALGORITHMS)}")
    try:
        load = serialization.load_pem_public_key if data.startswith(b"-----") else serialization.load_der_public_key
        loaded = load(data)
        pem = loaded.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        key = (ECKey if algorithm in CURVES else RSAKey).import_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm, JoseError):
        raise ConfigError(f"{name}: not a public key for {algorithm}") from None
    check_strength(key, algorithm, name)
    return TrustedKey(key, (algorithm,))


def check_strength(key: Key, algorithm: str, name: str) -> None:
    """Raises ConfigError for a curve of another algorithm, or for a short RSA key."""
    if isinstance(key, ECKey) and key.curve_name != CURVES.get(algorithm):
        raise ConfigError(
            f"{name}: {algorithm} needs a key on {CURVES.get(algorithm)}, this one is on {key.curve_name}"
        )
    if isinstance(key, RSAKey) and key.raw_value.key_size < RSA_BITS_MIN:
        raise ConfigError(f"{name}: an RSA key has at least {RSA_BITS_MIN} bits")


def key_set(data: bytes) -> list[TrustedKey]:
    """A JWKS document (RFC 7517): its RSA and EC signature keys. Symmetric keys in it are refused. Raises ConfigError."""
    name = "tokenJwksFile"
    try:
        entries = json.loads(data)["keys"]
        found = [_of_set(entry) for entry in entries if entry.get("use", "sig") == "sig"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, JoseError):
        raise ConfigError(f'{name}: expected a key set, {{"keys": [...]}}, of RSA and EC public keys') from None
    if not found:
        raise ConfigError(f"{name}: the set holds no signature key")
    return found


def _of_set(entry: dict[str, Any]) -> TrustedKey:
    kind = entry["kty"]
    if kind == "RSA":
        key: RSAKey | ECKey = RSAKey.import_key({part: entry[part] for part in ("kty", "n", "e")})
        algorithm = entry.get("alg", "RS256")
        fits = algorithm in RSA_ALGORITHMS
    elif kind == "EC":
        key = ECKey.import_key({part: entry[part] for part in ("kty", "crv", "x", "y")})
        algorithm = entry.get("alg") or {curve: name for name, curve in CURVES.items()}[entry["crv"]]
        fits = algorithm in CURVES
    else:
        raise ValueError(kind)
    if not fits:
        raise ValueError(algorithm)
    check_strength(key, algorithm, "tokenJwksFile")
    kid = entry.get("kid")
    return TrustedKey(key, (algorithm,), kid if isinstance(kid, str) else None)
