"""The credentials of one CONNECT. They are read for each connection, because files may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bascule.errors import ConfigError
from bascule.wire.nats.addresses import ServerAddress
from bascule.wire.nats.errors import ErrorKind, ServerError
from bascule.wire.nats.nkeys import NKey, decode_claims, decode_seed, find_seed, parse_credentials


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """The options of CONNECT. Credentials in a server's URL take precedence over these."""

    name: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    """A user's seed, `SU...`."""
    nkey: str | None = None
    """Path of a file with such a seed."""
    creds: str | None = None
    """Path of a credentials file: user JWT and seed."""
    tls: bool = False
    """Whether TLS is required."""
    tls_first: bool = False
    """Whether to start TLS before the server's INFO. The server must be configured for it."""
    ping_interval_ms: int = 10_000
    """Time without data from the server after which the client sends a PING."""
    echo: bool = True
    """Whether the server sends our own messages back to our own subscriptions."""


@dataclass(frozen=True, slots=True)
class Login:
    """Loaded credentials."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    key: NKey | None = field(default=None, repr=False)
    jwt: str | None = field(default=None, repr=False)
    origin: str = ""
    """The source of the credentials, for error texts."""

    def fields(self, nonce: str) -> dict[str, str]:
        """The credential fields of CONNECT; `nonce` is that of INFO.

        Raises: ConfigError if there is an NKey and `nonce` is empty.
        """
        plain = {"user": self.user, "pass": self.password, "auth_token": self.token}
        fields = {name: value for name, value in plain.items() if value is not None}
        if self.jwt is not None:
            fields["jwt"] = self.jwt
        if self.key is not None:
            if not nonce:
                raise ConfigError(
                    f"the server asks for no NKey, but {self.origin} is given: "
                    "it has no user with an NKey and no operator"
                )
            if self.jwt is None:
                fields["nkey"] = self.key.public
            fields["sig"] = self.key.sign(nonce)
        return fields

    def explain(self, error: ServerError, *, now_s: int) -> str:
        """The text for a refusal, with the likely reason."""
        if error.kind is not ErrorKind.AUTHENTICATION:
            return str(error)
        if self.jwt is not None:
            claims = decode_claims(self.jwt, origin=self.origin)
            if claims.exp and claims.exp <= now_s:
                ago = now_s - claims.exp
                return (
                    f"{error.text}: the user JWT in {self.origin} expired {ago} s ago; put a new "
                    "one there"
                )
            if claims.nbf > now_s:
                return (
                    f"{error.text}: the user JWT in {self.origin} is not valid for another "
                    f"{claims.nbf - now_s} s; is this machine's clock right?"
                )
            return (
                f"{error.text}: the server does not accept the user JWT in {self.origin} "
                f"(user {claims.name or claims.sub}, issued by {claims.iss}); is its account known "
                "to the server, and neither expired nor revoked?"
            )
        if self.key is not None:
            return (
                f"{error.text}: the server knows no user with NKey {self.key.public}, the public "
                f"key of {self.origin}"
            )
        if self.user is not None:
            return f"{error.text}: user {self.user!r} is unknown or the password is wrong"
        if self.token is not None:
            return f"{error.text}: the token is wrong"
        return (
            f"{error.text}: no credentials are given; set nats.user and nats.password, nats.token, "
            "nats.nkey, nats.creds, or a client certificate"
        )


def load_login(
    options: ConnectOptions, address: ServerAddress, read: Callable[[str], str]
) -> Login:
    """Load the credentials for `address`; `read` returns the text of a file.

    Raises: ConfigError if a file cannot be read or does not contain credentials.
    """
    if address.user is not None or address.token is not None:
        return Login(address.user, address.password, address.token, origin="the URL")
    user, password, token = options.user, options.password, options.token
    if options.creds is not None:
        origin = f"credentials file {options.creds}"
        found = parse_credentials(read(options.creds), origin=origin)
        key = decode_seed(found.seed, origin=origin) if found.seed else None
        return Login(user, password, token, key, found.jwt, origin)
    if options.nkey is not None or options.nkey_seed is not None:
        origin, seed = "the NKey seed given", options.nkey_seed or ""
        if options.nkey is not None:
            origin = f"NKey file {options.nkey}"
            seed = find_seed(read(options.nkey))
            if not seed:
                raise ConfigError(f"{origin} contains no NKey seed, expected a line SU...")
        return Login(user, password, token, decode_seed(seed, origin=origin), None, origin)
    return Login(user, password, token, origin="the configuration")
