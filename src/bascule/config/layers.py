"""Read each source of configuration, and merge them into one checked `Config`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bascule.config.keys import ENVIRONMENT_PREFIX, KEYS, SECTIONS, Key
from bascule.config.sections import Config
from bascule.config.stream_rules import check_stream_values, contradictions
from bascule.errors import ConfigError

ENVIRONMENT_RESERVED: Final = frozenset({"BASCULE_SERVER", "BASCULE_PURE", "BASCULE_CONFIG"})
"""Variables of the CLI and the build, which are no keys of a node."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value as one source gave it, and how to name that place."""

    raw: object
    origin: str


Layer = Mapping[str, Value]
"""Dotted key -> value, from one source."""


def layer_from_toml(text: str, path: str) -> Layer:
    """The keys of a TOML file; `path` is only for error texts.

    Raises: ConfigError for text that is no TOML, an unknown section or an unknown key.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path} is not valid TOML: brackets nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    layer: dict[str, Value] = {}
    for name, item in document.items():
        if isinstance(item, dict):
            if name not in SECTIONS:
                raise _unknown(f"section [{name}]", path, name, tuple(SECTIONS), wrap="[{}]")
            for inner, value in item.items():
                key = f"{name}.{inner}"
                _require_known(key, path)
                layer[key] = Value(value, f"{key} in {path}")
        elif name in SECTIONS:
            raise ConfigError(f"{name} in {path} must be a section: write [{name}]")
        else:
            _require_known(name, path)
            layer[name] = Value(item, f"{name} in {path}")
    return layer


def layer_from_environment(environment: Mapping[str, str]) -> Layer:
    """The keys set by BASCULE_* variables; their text is read as the key's type.

    Raises: ConfigError for a BASCULE_ variable that is no key.
    """
    by_variable = {key.variable: key for key in KEYS.values()}
    layer: dict[str, Value] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in ENVIRONMENT_RESERVED:
            continue
        key = by_variable.get(variable)
        if key is None:
            known = (*by_variable, *sorted(ENVIRONMENT_RESERVED))
            raise _unknown(f"variable {variable}", "the environment", variable, known)
        layer[key.name] = Value(_from_text(key, text, variable), variable)
    return layer


def layer_from_flags(flags: Mapping[str, tuple[str, object]]) -> Layer:
    """The keys set on the command line: key -> (the flag as typed, its value or None if absent)."""
    return {key: Value(value, flag) for key, (flag, value) in flags.items() if value is not None}


def merge(*layers: Layer) -> Config:
    """One configuration; later layers win over earlier ones, which win over the defaults.

    Raises: ConfigError naming the field, where it was set, what was found and what is expected.
    """
    merged: dict[str, Value] = {}
    for layer in layers:
        merged.update(layer)
    values: dict[str, dict[str, Any]] = {section: {} for section in ["", *SECTIONS]}
    for name, value in merged.items():
        section, _, inner = name.rpartition(".")
        values[section][inner] = _checked(KEYS[name], value)
    sections = {section: cls(**values[section]) for section, cls in SECTIONS.items()}
    config = Config(
        **values[""], **sections, origins={name: value.origin for name, value in merged.items()}
    )
    _check_together(config)
    return config


def _check_together(config: Config) -> None:
    """Rules that span keys."""
    _check_stream_defaults(config)
    nats = config.nats
    methods = [
        named for named in (("user", "password"), ("token",), ("nkey",), ("nkey_seed",), ("creds",))
        if any(getattr(nats, key) for key in named)
    ]  # fmt: skip
    if len(methods) > 1:
        one, two = (_where(config, *(f"nats.{key}" for key in named)) for named in methods[:2])
        raise ConfigError(
            f"{one} and {two} are both set: authenticate in one way, with user and password, a "
            "token, an NKey or a credentials file"
        )
    if nats.password and not nats.user:
        raise ConfigError(f"{_where(config, 'nats.password')} is set, but nats.user is not")
    if bool(nats.tls_cert) != bool(nats.tls_key):
        given, missing = ("tls_cert", "tls_key") if nats.tls_cert else ("tls_key", "tls_cert")
        raise ConfigError(f"{_where(config, f'nats.{given}')} is set, but nats.{missing} is not")
    if nats.embedded:
        for key in (
            "user", "password", "token", "nkey", "nkey_seed", "creds",
            "tls", "tls_first", "tls_ca", "tls_cert", "tls_key",
        ):  # fmt: skip
            if getattr(nats, key):
                raise ConfigError(
                    f"{_where(config, f'nats.{key}')} is set, but nats.urls is not: the embedded "
                    "server takes connections of this machine without it"
                )


def _check_stream_defaults(config: Config) -> None:
    """What every stream would be refused for is refused before the first is created."""
    defaults = config.streams.config(subject=">")
    try:
        check_stream_values(defaults)
    except ConfigError as error:
        raise ConfigError(f"{_where(config, f'streams.{error.field}')}: {error}") from None
    for names, message in contradictions(defaults):
        set_by = [config.origins[key] for name in names if (key := f"streams.{name}") in
                  config.origins]  # fmt: skip
        raise ConfigError(f"[streams] cannot hold together: {message} (set by {', '.join(set_by)})")


def _where(config: Config, *keys: str) -> str:
    named = [config.origins[key] for key in keys if key in config.origins]
    return named[0] if named else keys[0]


def _require_known(key: str, source: str) -> None:
    if key not in KEYS:
        raise _unknown(f"key {key!r}", source, key, tuple(KEYS))


def _unknown(
    what: str, source: str, name: str, known: Sequence[str], *, wrap: str = "{}"
) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    if not near and "." in name:
        # A right name in a wrong section is nearer than a wrong name in the right one.
        last = name.rpartition(".")[2]
        near = [other for other in known if other.rpartition(".")[2] == last][:1]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {wrap.format(near[0])}?" if near else f"known are {', '.join(known)}"
    return ConfigError(f"unknown {what} in {source}; {hint}")


def _from_text(key: Key, text: str, origin: str) -> object:
    if key.type is bool:
        lowered = text.strip().lower()
        if lowered in {"1", "true", "yes", "on"}:
            return True
        if lowered in {"0", "false", "no", "off"}:
            return False
        raise ConfigError(f"{origin} must be true or false, got {text!r}")
    if key.type is int:
        try:
            return int(text.strip().replace("_", ""))
        except ValueError:
            raise ConfigError(f"{origin} must be a whole number, got {text!r}") from None
    if key.type is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


_TYPE_NAMES: Final = {
    bool: "true or false", int: "a whole number", str: "a string", tuple: "a list of strings",
}  # fmt: skip


def _checked(key: Key, value: Value) -> object:
    """The value as the key's type, within its limits."""
    raw, origin = value.raw, value.origin
    shown = "(hidden)" if key.secret else repr(raw)
    if key.type is tuple:
        parts = [raw] if isinstance(raw, str) else raw
        if not isinstance(parts, list | tuple) or not all(isinstance(p, str) for p in parts):
            raise ConfigError(f"{origin} must be {_TYPE_NAMES[tuple]}, got {shown}")
        if wrong := [part for part in parts if key.choices and part not in key.choices]:
            raise ConfigError(f"{origin} may hold {', '.join(key.choices)}, got {wrong[0]!r}")
        return tuple(parts)
    if type(raw) is not key.type:
        raise ConfigError(f"{origin} must be {_TYPE_NAMES[key.type]}, got {shown}")
    if isinstance(raw, int) and not isinstance(raw, bool):
        _check_range(key, raw, origin)
    if key.choices and raw not in key.choices:
        raise ConfigError(f"{origin} must be one of {', '.join(key.choices)}, got {shown}")
    return raw


def _check_range(key: Key, number: int, origin: str) -> None:
    if key.minimum is not None and key.maximum is not None:
        if not key.minimum <= number <= key.maximum:
            raise ConfigError(
                f"{origin} must be between {key.minimum} and {key.maximum}, got {number}"
            )
    elif key.minimum is not None and number < key.minimum:
        raise ConfigError(f"{origin} must be at least {key.minimum}, got {number}")
