"""NATS servers for tests: NKeys, signed JWTs, certificates, clusters."""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import ipaddress
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from support import http_calls
from support.ports import reserve_ports
from support.processes import WAIT_SECONDS_MAX, NatsServer, Node

PREFIXES = {"operator": 14 << 3, "account": 0, "user": 20 << 3}
SEED = 18 << 3


def _base32(raw: bytes) -> str:
    raw += binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(raw).rstrip(b"=").decode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass
class Identity:
    """An NKey of a kind: operator, account or user."""

    kind: str
    private: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    @property
    def public(self) -> str:
        return _base32(bytes([PREFIXES[self.kind]]) + self.private.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        prefix = PREFIXES[self.kind]
        head = bytes([SEED | prefix >> 5, (prefix & 31) << 3])
        return _base32(head + self.private.private_bytes_raw())

    def sign(self, subject: Identity, claims: Mapping[str, Any], **more: Any) -> str:
        """A JWT about `subject`, issued by this identity."""
        body = {
            "jti": os.urandom(8).hex(), "iat": int(time.time()), "iss": self.public,
            "sub": subject.public, "name": f"test {subject.kind}",
            "nats": {"type": subject.kind, "version": 2, **claims}, **more,
        }  # fmt: skip
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, body]
        text = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_base64(self.private.sign(text.encode()))}"


@dataclass
class Operator:
    """An operator with one account, and the server configuration that trusts it."""

    limits: Mapping[str, int] = field(default_factory=dict)
    """Of the account: conn, subs, payload."""
    identity: Identity = field(default_factory=lambda: Identity("operator"))
    account: Identity = field(default_factory=lambda: Identity("account"))

    def server_config(self) -> str:
        limits = {
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1,
            "leaf": -1, "wildcards": True, **self.limits,
        }  # fmt: skip
        account = self.identity.sign(self.account, {"limits": limits})
        operator = self.identity.sign(self.identity, {})
        return (
            f"operator: {operator}\nresolver: MEMORY\n"
            f"resolver_preload: {{ {self.account.public}: {account} }}\n"
        )

    def credentials(self, *, permissions: Mapping[str, Any] | None = None, **more: Any) -> str:
        """The text of a credentials file for a new user; `more` are further claims of the JWT."""
        user = Identity("user")
        claims = {"subs": -1, "data": -1, "payload": -1, **(permissions or {})}
        jwt = self.account.sign(user, claims, **more)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "NKEY Seed printed below can be used to sign and prove identity.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )


class Authority:
    """A certificate authority; certificates and keys are PEM files in its directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of `name`, valid for localhost and 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.RFC822Name(f"{name}@example.org"),
        ]
        certificate = self._builder(subject, key.public_key()).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        paths = self._directory / f"{name}.cert.pem", self._directory / f"{name}.key.pem"
        paths[0].write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths

    def _builder(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@contextlib.contextmanager
def configured_nats(directory: Path, config: str) -> Iterator[NatsServer]:
    """A `nats-server` with a configuration file of this text."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "nats.conf").write_text(config)
    server = NatsServer(directory, ("-c", str(directory / "nats.conf")))
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


def reload(server: NatsServer, config: str) -> None:
    """Replace the configuration of a running server."""
    (server.directory / "nats.conf").write_text(config)
    assert server.process is not None
    server.process.send_signal(signal.SIGHUP)


class Cluster:
    """A cluster of `nats-server`s; each can be killed and restarted."""

    def __init__(self, directory: Path, size: int, config: str = "") -> None:
        self.servers: list[NatsServer] = []
        # Fixed, so that a server that was killed finds the others, and they it.
        ports = reserve_ports(size)
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
        for number, port in enumerate(ports):
            home = directory / f"nats-{number}"
            home.mkdir(parents=True)
            (home / "nats.conf").write_text(
                f"server_name: n{number}\n{config}\n"
                f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n'
            )
            server = NatsServer(home, ("-c", str(home / "nats.conf")))
            server.start()
            self.servers.append(server)

    def stop(self) -> None:
        for server in self.servers:
            server.stop(signal.SIGKILL)


def eventually(look: Callable[[], object], what: str, seconds: float = WAIT_SECONDS_MAX) -> None:
    """Wait until `look` finds something true."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.02)


def metric(node: Node, name: str, **labels: str) -> float:
    """One sample of /metrics; 0 if it is missing."""
    text = http_calls.get(node.addresses["http"] + "/metrics")
    wanted = "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else ""
    for line in text.splitlines():
        if line.startswith(f"{name}{wanted} "):
            return float(line.rsplit(" ", 1)[1])
    return 0.0
