"""The settings of TLS, authentication and authorization: Pulsar's key names, safe defaults where Pulsar's are not."""

from __future__ import annotations

from magnetar.base.errors import ConfigError
from magnetar.base.settings import Settings, setting


class SecuritySettings(Settings):
    """A part of the server's configuration."""

    # ---- TLS
    port_tls: int = setting(
        -1,
        "brokerServicePortTls",
        "Port of the binary protocol over TLS (Pulsar's usual one is 6651); 0 takes any free one, -1: none.",
        minimum=-1,
        maximum=65535,
    )
    http_port_tls: int = setting(
        -1,
        "webServicePortTls",
        "Port of the admin API over TLS (Pulsar's usual one is 8443); 0 takes any free one, -1: none.",
        minimum=-1,
        maximum=65535,
    )
    tls_certificate_file_path: str = setting(
        "", "tlsCertificateFilePath", "Certificate of the TLS ports with its chain, PEM."
    )
    tls_key_file_path: str = setting("", "tlsKeyFilePath", "Private key of the certificate, PEM, not encrypted.")
    tls_trust_certs_file_path: str = setting(
        "",
        "tlsTrustCertsFilePath",
        "Authorities whose client certificates are trusted, PEM; empty: none are asked for.",
    )
    tls_require_trusted_client_cert_on_connect: bool = setting(
        False, "tlsRequireTrustedClientCertOnConnect", "Refuse TLS clients without a trusted certificate."
    )
    tls_allow_insecure_connection: bool = setting(
        False,
        "tlsAllowInsecureConnection",
        "Ask no client for a certificate. Pulsar: accept untrusted ones, which then authenticate nobody either.",
    )
    tls_cert_refresh_check_s: float = setting(
        300.0,
        "tlsCertRefreshCheckDurationSec",
        "How long a renewed certificate may go unnoticed; 0: it is looked at in every handshake.",
        unit="s",
        minimum=0,
    )

    # ---- Authentication
    authentication_enabled: bool = setting(False, "authenticationEnabled", "Ask every client who it is.")
    authentication_providers: str = setting(
        "",
        "authenticationProviders",
        "How clients prove it, separated by commas: token, basic, tls, or Pulsar's class names of these.",
    )
    anonymous_user_role: str = setting(
        "",
        "anonymousUserRole",
        "Role of clients that show no credential of a configured kind; empty: they are refused.",
    )
    token_secret_key: str = setting(
        "",
        "tokenSecretKey",
        "Secret that signs tokens by HS256, HS384 or HS512: file:///path, data:;base64,..., a path or base64.",
        secret=True,
    )
    token_public_key: str = setting(
        "", "tokenPublicKey", "Public key that verifies tokens by tokenPublicAlg, in the same forms; DER or PEM."
    )
    token_public_alg: str = setting("RS256", "tokenPublicAlg", "The one algorithm of tokenPublicKey: RS*, PS* or ES*.")
    token_jwks_file: str = setting(
        "", "tokenJwksFile", "File with a set of public keys (JWKS). Each verifies its own `alg` only; `kid` selects."
    )
    token_auth_claim: str = setting("", "tokenAuthClaim", "Claim of a token that names the role; empty: sub.")
    token_audience_claim: str = setting(
        "", "tokenAudienceClaim", "Claim that must hold tokenAudience; empty: aud. Checked when tokenAudience is set."
    )
    token_audience: str = setting("", "tokenAudience", "Audience that a token must be meant for; empty: any.")
    token_allowed_clock_skew_s: int = setting(
        0,
        "tokenAllowedClockSkewSeconds",
        "How far clocks may differ when a token's times are checked.",
        unit="s",
        minimum=0,
    )
    basic_auth_conf: str = setting(
        "",
        "basicAuthConf",
        "Users and passwords: an htpasswd file ($apr1$ or {SHA}), in the forms of tokenSecretKey.",
        secret=True,
    )

    # ---- This broker to the others of its cluster
    broker_client_authentication_plugin: str = setting(
        "",
        "brokerClientAuthenticationPlugin",
        "How a broker says to others of its cluster who it is: token, basic, tls or Pulsar's class names; must be a superuser.",
    )
    broker_client_authentication_parameters: str = setting(
        "",
        "brokerClientAuthenticationParameters",
        "What the plugin needs, such as token:... or file:///path.",
        secret=True,
    )
    broker_client_trust_certs_file_path: str = setting(
        "",
        "brokerClientTrustCertsFilePath",
        "Authorities that brokers believe when they talk to each other over TLS; PEM.",
    )

    # ---- Authorization
    authorization_enabled: bool = setting(
        False, "authorizationEnabled", "Allow a role only what it was granted. Without it every role may do everything."
    )
    super_user_roles: str = setting("", "superUserRoles", "Roles that may do everything, separated by commas.")
    replicator_roles: str = setting(
        "",
        "replicatorRoles",
        "Roles that may replicate from another cluster, as cluster:role separated by commas; superusers may from any. Not Pulsar's.",
    )
    proxy_roles: str = setting(
        "", "proxyRoles", "Roles of proxies: they act for the role they name, and both must be allowed."
    )
    authenticate_metrics_endpoint: bool = setting(
        True,
        "authenticateMetricsEndpoint",
        "With authentication, show /metrics to superusers only.",
        differs="Names of tenants and topics are shown to nobody who has not proved who they are.",
    )

    def check_security(self) -> None:
        """Rules that tie these settings together. Raises ConfigError."""
        if self.authentication_enabled != bool(names_of(self.authentication_providers)):
            raise ConfigError("authenticationEnabled and authenticationProviders go together: set both, or neither")
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled needs authenticationEnabled: without a proven role nothing can be granted"
            )
        replicators_of(self.replicator_roles)
        if max(self.port_tls, self.http_port_tls) >= 0 and not (
            self.tls_certificate_file_path and self.tls_key_file_path
        ):
            raise ConfigError("brokerServicePortTls, webServicePortTls: need tlsCertificateFilePath and tlsKeyFilePath")
        asks_for_certificates = self.tls_trust_certs_file_path and not self.tls_allow_insecure_connection
        if self.tls_require_trusted_client_cert_on_connect and not asks_for_certificates:
            raise ConfigError(
                "tlsRequireTrustedClientCertOnConnect needs tlsTrustCertsFilePath, and tlsAllowInsecureConnection=false"
            )

    @property
    def asks_everybody(self) -> bool:
        """Whether a stranger gets nowhere: credentials are asked for, or those who show none may only what was granted."""
        if not self.authentication_enabled or self.anonymous_user_role in names_of(self.super_user_roles):
            return False
        return self.authorization_enabled or not self.anonymous_user_role


def replicators_of(text: str) -> dict[str, tuple[str, ...]]:
    """`cluster:role,...` as roles by cluster. A cluster may have several. Raises ConfigError."""
    found: dict[str, tuple[str, ...]] = {}
    for pair in names_of(text):
        cluster, _, role = (part.strip() for part in pair.partition(":"))
        if not cluster or not role:
            raise ConfigError(f"replicatorRoles: {pair!r} is not cluster:role, such as west:replicator-of-west")
        found[cluster] = (*found.get(cluster, ()), role)
    return found


def names_of(text: str) -> tuple[str, ...]:
    """The names in a list separated by commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))
