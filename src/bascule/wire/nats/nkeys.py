"""NKeys: Ed25519 seeds and signatures, credentials files, and the claims of a user JWT.

The text of a seed is base32 without padding. The bytes are two prefix bytes with `S` and the kind
of key, 32 bytes of seed, and the CRC-16/XMODEM of these 34 bytes, little-endian. A public key has
one prefix byte. Source: github.com/nats-io/nkeys, README and `strkey.go`.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bascule.errors import ConfigError

SEED_BYTES: Final = 32
_PREFIX_SEED: Final = 18 << 3
_PREFIX_USER: Final = 20 << 3
_KINDS: Final = {
    13 << 3: "server", 2 << 3: "cluster", 14 << 3: "operator", 0: "account", 20 << 3: "user",
    23 << 3: "curve",
}  # fmt: skip
_ARMOUR: Final = re.compile(
    r"-{3,}BEGIN (?P<what>[^-\r\n]+?)-{3,}\s*(?P<text>\S+)\s*-{3,}END (?P=what)-{3,}"
)


class NKey:
    """A user's key: its public key and signatures."""

    def __init__(self, seed: bytes) -> None:
        """`seed` is 32 bytes."""
        # Imported only if a key is used, because the library takes megabytes of memory.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = _encode(bytes([_PREFIX_USER]), self._private.public_key().public_bytes_raw())
        """The name of the user in a server's configuration: `U...`."""

    def sign(self, nonce: str) -> str:
        """The signature of INFO's nonce for CONNECT: base64url without padding."""
        signature = self._private.sign(nonce.encode())
        return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


def decode_seed(text: str, *, origin: str) -> NKey:
    """Decode a user's seed, `SU...`; `origin` is its source, for error texts.

    Raises: ConfigError, which never contains the seed.
    """
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        raise ConfigError(f"{origin} contains no NKey seed: it is not base32 text") from None
    if len(raw) != 2 + SEED_BYTES + 2 or raw[0] & 0xF8 != _PREFIX_SEED:
        found = "a public key" if text[:1] in {"U", "A", "O"} else "other text"
        raise ConfigError(f"{origin} contains {found}, expected an NKey seed (SU...)")
    if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise ConfigError(f"{origin} contains an NKey seed with a wrong checksum: is it complete?")
    kind = (raw[0] & 7) << 5 | (raw[1] & 0xF8) >> 3
    if kind != _PREFIX_USER:
        found = _KINDS.get(kind, "unknown")
        raise ConfigError(f"{origin} contains a seed of kind {found}, expected user (SU)")
    return NKey(raw[2:-2])


def _encode(prefix: bytes, key: bytes) -> str:
    raw = prefix + key
    raw += binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(raw).rstrip(b"=").decode()


def find_seed(text: str) -> str:
    """The seed in a seed file, on a line of its own; ignores comments and armour lines."""
    armoured = _armoured(text)
    for what, inner in armoured.items():
        if "SEED" in what:
            return inner
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if re.fullmatch(r"S[A-Z2-7]{20,}", line)), "")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The content of a credentials file."""

    jwt: str = field(repr=False)
    seed: str = field(repr=False)
    """Empty for a bearer token, which needs no signature."""


def parse_credentials(text: str, *, origin: str) -> Credentials:
    """Parse a decorated credentials file (`nsc generate creds`): a user JWT and its NKey seed.

    Raises: ConfigError naming the missing part.
    """
    armoured = _armoured(text)
    jwt = next((inner for what, inner in armoured.items() if "JWT" in what), "")
    if not jwt and text.strip().count(".") == 2 and len(text.split()) == 1:
        jwt = text.strip()
    if not jwt:
        raise ConfigError(
            f"{origin} contains no user JWT, expected -----BEGIN NATS USER JWT-----, "
            "as `nsc generate creds` writes it"
        )
    seed = next((inner for what, inner in armoured.items() if "SEED" in what), "")
    claims = decode_claims(jwt, origin=origin)
    if not seed and not claims.nats.bearer_token:
        raise ConfigError(
            f"{origin} contains a user JWT without its NKey seed, expected "
            "-----BEGIN USER NKEY SEED-----, as `nsc generate creds` writes it"
        )
    return Credentials(jwt, seed)


class _NatsClaims(msgspec.Struct, frozen=True):
    bearer_token: bool = False


class Claims(msgspec.Struct, frozen=True):
    """The claims of a user JWT. Only the server verifies them."""

    name: str = ""
    sub: str = ""
    """The user's public key."""
    iss: str = ""
    exp: int = 0
    """Unix time in seconds at which it expires; 0: never."""
    nbf: int = 0
    """Unix time in seconds from which it is valid."""
    nats: _NatsClaims = _NatsClaims()


def decode_claims(jwt: str, *, origin: str) -> Claims:
    """Decode the claims of a JWT. Raises: ConfigError."""
    parts = jwt.split(".")
    try:
        if len(parts) != 3:
            raise ValueError(f"{len(parts)} parts, expected 3")
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(body, type=Claims)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{origin} contains a malformed JWT: {error}") from None


def _armoured(text: str) -> dict[str, str]:
    return {match["what"].strip().upper(): match["text"] for match in _ARMOUR.finditer(text)}
