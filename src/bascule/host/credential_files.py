"""Files that hold secrets and certificates: read with errors that say what to do."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from bascule.errors import ConfigError

SECRET_BYTES_MAX: Final = 1 << 20
"""A credentials file is a few KiB; anything larger is another file."""


def read_secret(path: str) -> str:
    """The text of a file. Raises: ConfigError for one that is missing, unreadable or no text."""
    try:
        file = Path(path).expanduser()
        if file.stat().st_size > SECRET_BYTES_MAX:
            raise ConfigError(f"file {path} is larger than {SECRET_BYTES_MAX} bytes: a wrong file?")
        return file.read_text()
    except UnicodeDecodeError:
        raise ConfigError(f"file {path} holds no text: a wrong file?") from None
    except OSError as error:
        raise ConfigError(_unreadable(path, error)) from None


def client_tls(*, ca: str, cert: str, key: str) -> ssl.SSLContext:
    """A client's TLS context; empty paths are left out, without `ca` the system's are trusted.

    Raises: ConfigError naming the file that is missing, unreadable or not what it should be.
    """
    for path in (ca, cert, key):
        if path:
            read_secret(path)
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except ssl.SSLError as error:
        raise ConfigError(f"{ca} holds no certificate in PEM form: {error.reason}") from None
    if cert:
        try:
            # A key with a pass phrase would ask for it on the terminal.
            context.load_cert_chain(cert, key or None, password=lambda: "")
        except ssl.SSLError as error:
            why = "they do not belong together" if "MISMATCH" in str(error) else str(error.reason)
            raise ConfigError(
                f"client certificate {cert} with key {key or cert} cannot be used: {why}; both "
                "have to be PEM, and the key without a pass phrase"
            ) from None
    return context


def explain_tls(error: ssl.SSLError) -> str:
    """A failed handshake or certificate, with what to do about it."""
    text = str(error)
    if "certificate verify failed" in text:
        return f"{text}; name the authority that signed the server's certificate (tls_ca)"
    if "certificate required" in text or "bad certificate" in text:
        return f"{text}; the server wants a client certificate that it trusts (tls_cert, tls_key)"
    if "wrong version number" in text or "record layer failure" in text:
        return f"{text}; the server does not begin with TLS (nats.tls_first)"
    return text


def _unreadable(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"file {path} does not exist"
    if isinstance(error, PermissionError):
        return f"file {path} cannot be read: this process's user lacks the permission"
    if isinstance(error, IsADirectoryError):
        return f"{path} is a directory, expected a file"
    return f"file {path} cannot be read: {error.strerror}"
