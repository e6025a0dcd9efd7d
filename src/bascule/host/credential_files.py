"""Reads files of secrets and certificates; errors say how to correct them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from bascule.errors import ConfigError

SECRET_BYTES_MAX: Final = 1 << 20
"""A credentials file has a few KiB; a larger file is not one."""


def read_secret(path: str) -> str:
    """The text of a file. Raises: ConfigError if it is missing, unreadable or not text."""
    try:
        file = Path(path).expanduser()
        if file.stat().st_size > SECRET_BYTES_MAX:
            raise ConfigError(f"file {path} is larger than {SECRET_BYTES_MAX} bytes: wrong file?")
        return file.read_text()
    except UnicodeDecodeError:
        raise ConfigError(f"file {path} is not a text file") from None
    except OSError as error:
        raise ConfigError(_unreadable(path, error)) from None


def client_tls(*, ca: str, cert: str, key: str) -> ssl.SSLContext:
    """The TLS context of a client. Empty paths are ignored; without `ca` the system's CAs apply.

    Raises: ConfigError naming the file that is missing, unreadable or invalid.
    """
    for path in (ca, cert, key):
        if path:
            read_secret(path)
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except ssl.SSLError as error:
        raise ConfigError(f"{ca} contains no certificate in PEM form: {error.reason}") from None
    if cert:
        try:
            # Without `password` a key with a passphrase would prompt for it on the terminal.
            context.load_cert_chain(cert, key or None, password=lambda: "")
        except ssl.SSLError as error:
            why = "they do not belong together" if "MISMATCH" in str(error) else str(error.reason)
            raise ConfigError(
                f"client certificate {cert} with key {key or cert} cannot be used: {why}; both "
                "must be in PEM form, and the key must have no passphrase"
            ) from None
    return context


def explain_tls(error: ssl.SSLError) -> str:
    """The error text of a failed handshake, with advice."""
    text = str(error)
    if "certificate verify failed" in text:
        return f"{text}; set tls_ca to the CA that signed the server's certificate"
    if "certificate required" in text or "bad certificate" in text:
        return f"{text}; the server requires a client certificate: set tls_cert and tls_key"
    if "wrong version number" in text or "record layer failure" in text:
        return f"{text}; the server does not start with TLS: check nats.tls_first"
    return text


def _unreadable(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"file {path} does not exist"
    if isinstance(error, PermissionError):
        return f"file {path} cannot be read: this process's user lacks the permission"
    if isinstance(error, IsADirectoryError):
        return f"{path} is a directory, expected a file"
    return f"file {path} cannot be read: {error.strerror}"
