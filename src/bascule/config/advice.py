"""What an operator can do about a listener that cannot be opened."""

from __future__ import annotations

from bascule.config.keys import KEYS


def listen_advice(section: str, why: str) -> str:
    """The options that choose another address for the listener of `section`: nats, client or http.

    `why` is the system's text, such as "address already in use".
    """
    if not any(word in why for word in ("in use", "denied")):
        key = KEYS[f"{section}.host"]
        return f"set another address of this machine as {key.name} ({key.variable})"
    variable = KEYS[f"{section}.port"].variable
    text = f"choose another port with --{section}-port N ({variable}), 0 for a free one"
    if section == "nats":
        text += ", or use a running NATS server with --nats URL"
    return text
