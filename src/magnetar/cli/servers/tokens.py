"""`magnetar tokens`: the commands and flags of `bin/pulsar tokens`; keys and tokens are exchangeable with Pulsar's."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, RSAKey

from magnetar.base.errors import MagnetarError
from magnetar.broker.auth import token as trusted
from magnetar.broker.auth.key_material import read_key
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit_done, json_option, print_json

SECRET_BYTES = trusted.SECRET_ALGORITHMS
ALGORITHMS = (*SECRET_BYTES, *trusted.PUBLIC_ALGORITHMS)
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}

_OWNER_ONLY = stat.S_IRUSR | stat.S_IWUSR

_FORCE = click.option("--force", is_flag=True, help="Overwrite a file that exists.")

_SECRET = click.option("-sk", "--secret-key", help="Secret key: file:///path, data:;base64,..., a path or base64.")


@click.group("tokens")
def tokens_group() -> None:
    """Create keys and tokens, and check tokens.

    The server verifies tokens with tokenSecretKey (a secret key) or tokenPublicKey (the public key of a pair).
    """


@tokens_group.command("create-secret-key")
@click.option(
    "-a",
    "--signature-algorithm",
    type=click.Choice([*SECRET_BYTES]),
    default="HS256",
    show_default=True,
    help="Token for this algorithm.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the key (mode 0600). [default: stdout]")
@click.option("-b", "--base64", "as_base64", is_flag=True, help="Write the key in Base64 instead of bytes.")
@_FORCE
@json_option
def create_secret_key_command(
    signature_algorithm: str, output: Path | None, as_base64: bool, force: bool, as_json: bool
) -> None:
    """Create a random secret key. Whoever has it can make tokens for any role."""
    key = secrets.token_bytes(SECRET_BYTES[signature_algorithm])
    if as_json and output is None:
        print_json({"secretKey": base64.b64encode(key).decode()})
        return
    write(base64.b64encode(key) if as_base64 else key, output, newline=as_base64, force=force)
    emit_done(as_json, output=str(output))


@tokens_group.command("create-key-pair")
@click.option(
    "-a",
    "--signature-algorithm",
    type=click.Choice(trusted.PUBLIC_ALGORITHMS),
    default="RS256",
    show_default=True,
    help="The server's tokenPublicAlg must be the same.",
)
@click.option(
    "--output-private-key",
    type=click.Path(path_type=Path),
    required=True,
    help="File for the private key (PKCS#8, DER), which makes tokens.",
)
@click.option(
    "--output-public-key",
    type=click.Path(path_type=Path),
    required=True,
    help="File for the public key (X.509, DER), which verifies them.",
)
@_FORCE
@json_option
def create_key_pair_command(
    signature_algorithm: str, output_private_key: Path, output_public_key: Path, force: bool, as_json: bool
) -> None:
    """Create a private key, which makes tokens, and its public key, which verifies them."""
    refuse_existing([output_private_key, output_public_key], force)
    private = new_private_key(signature_algorithm)
    form = serialization.PrivateFormat.PKCS8
    write(
        private.private_bytes(serialization.Encoding.DER, form, serialization.NoEncryption()),
        output_private_key,
        force=force,
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write(public, output_public_key, secret=False, force=force)
    emit_done(as_json, privateKey=str(output_private_key), publicKey=str(output_public_key))


@tokens_group.command("create")
@_SECRET
@click.option("-pk", "--private-key", help="Private key, in the same forms.")
@click.option("-s", "--subject", required=True, help="Role that the token stands for.")
@click.option(
    "-e",
    "--expiry-time",
    help="Lifetime of the token: 30s, 10m, 24h, 7d, 4w, 1y. Without it the token does not expire.",
)
@click.option(
    "-a", "--signature-algorithm", type=click.Choice(ALGORITHMS), help="[default: HS256 or RS256, as the key is]"
)
@click.option("-h", "--headers", multiple=True, metavar="NAME=VALUE", help="Further headers, such as kid=1.")
@click.option("-c", "--claims", multiple=True, metavar="NAME=VALUE", help="Further claims, such as aud=cluster.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File for the token (mode 0600). [default: stdout]"
)
@_FORCE
@json_option
def create_command(
    secret_key: str | None,
    private_key: str | None,
    subject: str,
    expiry_time: str | None,
    signature_algorithm: str | None,
    headers: tuple[str, ...],
    claims: tuple[str, ...],
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Create a token for the role SUBJECT."""
    refuse_existing([output], force)
    if (secret_key is None) == (private_key is None):
        raise click.UsageError("give --secret-key or --private-key")
    payload: dict[str, Any] = pairs(claims) | {"sub": subject}
    if expiry_time is not None:
        payload["exp"] = int(time.time()) + seconds_of(expiry_time)
    algorithm = signature_algorithm or ("HS256" if private_key is None else "RS256")
    header = {**pairs(headers), "alg": algorithm}
    try:
        key = signing_key(secret_key, private_key, algorithm)
        token = jws.serialize_compact(header, json.dumps(payload).encode(), key, algorithms=[algorithm])
    except (JoseError, ValueError) as error:
        raise CommandError(f"cannot sign by {algorithm} with this key: {error}") from None
    if as_json and output is None:
        print_json({"token": token})
        return
    write(token.encode() + b"\n", output, force=force)
    emit_done(as_json, subject=subject, output=str(output))


@tokens_group.command("validate")
@click.argument("token", required=False)
@_SECRET
@click.option("-pk", "--public-key", help="Public key, in the same forms.")
@click.option(
    "-a", "--signature-algorithm", type=click.Choice(ALGORITHMS), default="RS256", help="Algorithm of the public key."
)
@click.option("-i", "--stdin", is_flag=True, help="Read the token from stdin.")
@click.option("-f", "--token-file", type=click.Path(path_type=Path), help="Read the token from a file.")
@json_option
def validate_command(
    token: str | None,
    secret_key: str | None,
    public_key: str | None,
    signature_algorithm: str,
    stdin: bool,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Verify the signature and times of TOKEN and print its claims. The exit code is 1 if a server would refuse it."""
    if (secret_key is None) == (public_key is None):
        raise click.UsageError("give --secret-key or --public-key")
    if secret_key is not None:
        key = trusted.secret_key(read_key(secret_key, "--secret-key"), "--secret-key")
    else:
        key = trusted.public_key(read_key(public_key or "", "--public-key"), signature_algorithm, "--public-key")
    claims = trusted.claims_of(trusted.verified_payload(token_text(token, stdin, token_file).encode(), [key]))
    trusted.check_times(claims, int(time.time() * 1000), 0)
    print_json(claims)  # with or without --json: they are a JSON object


@tokens_group.command("show")
@click.argument("token", required=False)
@click.option("-i", "--stdin", is_flag=True, help="Read the token from stdin.")
@click.option("-f", "--token-file", type=click.Path(path_type=Path), help="Read the token from a file.")
@json_option
def show_command(token: str | None, stdin: bool, token_file: Path | None, as_json: bool) -> None:
    """Show the header and claims of TOKEN without verifying it."""
    try:
        content = jws.extract_compact(token_text(token, stdin, token_file).encode())
        headers, claims = content.headers(), json.loads(content.payload)
    except (JoseError, ValueError, MagnetarError) as error:
        raise CommandError(f"not a token: {error}") from None
    if as_json:
        print_json({"headers": headers, "claims": claims})
        return
    click.echo(json.dumps(headers))
    click.echo("---")
    click.echo(json.dumps(claims))


def new_private_key(algorithm: str) -> rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey:
    """A key that fits the algorithm."""
    curves: dict[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    if algorithm in curves:
        return ec.generate_private_key(curves[algorithm])
    return rsa.generate_private_key(public_exponent=65537, key_size=trusted.RSA_BITS_MIN)


def signing_key(secret: str | None, private: str | None, algorithm: str) -> OctKey | RSAKey | ECKey:
    """Raises CommandError for a key of another family, ConfigError for one that cannot be read."""
    if private is None:
        data = read_key(secret or "", "--secret-key")
        if len(data) < SECRET_BYTES.get(algorithm, sys.maxsize):
            raise CommandError(f"--secret-key: too short for {algorithm}, or {algorithm} needs a --private-key")
        return OctKey.import_key(data)
    if algorithm in SECRET_BYTES:
        raise CommandError(f"{algorithm} needs a --secret-key")
    data = read_key(private, "--private-key")
    pem = data.startswith(b"-----")
    loaded = (serialization.load_pem_private_key if pem else serialization.load_der_private_key)(data, None)
    text = loaded.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (ECKey if algorithm in trusted.CURVES else RSAKey).import_key(text)


def seconds_of(text: str) -> int:
    """`90`, `30s`, `10m`, `24h`, `7d`, `4w`, `1y`. Raises CommandError."""
    match = re.fullmatch(r"(\d{1,9})([smhdwy]?)", text.strip())
    if match is None:
        raise CommandError(f"--expiry-time {text}: write it as 30s, 10m, 24h, 7d, 4w or 1y")
    return int(match[1]) * UNITS_S[match[2] or "s"]


def pairs(words: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` words. Raises click.UsageError."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise click.UsageError("a header or claim is written NAME=VALUE")
        found[name] = value
    return found


def token_text(token: str | None, stdin: bool, file: Path | None) -> str:
    """From the argument, stdin, or a file; `token:` and `file:` before it are understood. Raises CommandError."""
    if sum((token is not None, stdin, file is not None)) != 1:
        raise click.UsageError("give TOKEN, --stdin or --token-file")
    if token is not None and not token.startswith("file:"):
        return token.strip().removeprefix("token:")
    if token is not None:
        file = Path(token.removeprefix("file://").removeprefix("file:"))
    try:
        text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the token: {error}") from None
    return text.strip().removeprefix("token:")


def refuse_existing(outputs: Sequence[Path | None], force: bool) -> None:
    """Raises CommandError if a file would be replaced: the key in it may be the only one that made tokens in use."""
    for output in outputs:
        if output is not None and not force and os.path.lexists(output):
            raise CommandError(f"{output} exists and is not overwritten; choose another file, or add --force")


def write(data: bytes, output: Path | None, *, force: bool, newline: bool = False, secret: bool = True) -> None:
    """To a file that only its owner may read if it is secret (mode 0600), else everybody (0644); to stdout without a file.

    The file is complete or not there. Raises CommandError.
    """
    if output is None:
        sys.stdout.buffer.write(data + (b"\n" if newline else b""))
        return
    refuse_existing([output], force)
    temporary = output.with_name(f".{output.name}.{secrets.token_hex(8)}.tmp")
    try:
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), _OWNER_ONLY if secret else 0o644)
                os.fsync(file.fileno())
            if force:
                temporary.replace(output)
            else:
                os.link(temporary, output)  # unlike a rename it never replaces a file that came meanwhile
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}") from error
