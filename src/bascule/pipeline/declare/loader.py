"""Loads a declaration from a file: TOML, settings, environment, keys, types. Pure except for
`load`."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec

from bascule.errors import ConfigError
from bascule.pipeline.declare.dispatch import spec_of
from bascule.pipeline.declare.sections import NAME_PATTERN, Declaration
from bascule.pipeline.declare.validation import check

VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""`${NAME}`, `${NAME:-default}`, and `$${` for a literal `${`."""
_AT: Final = re.compile(r"^(.*) - at `(?:key in )?\$\.?(.*)`$", re.DOTALL)
"""Form of msgspec's errors: `Expected ..., got ... - at `$.table.format``."""
PATH_KEYS: Final = (
    "pipeline.checkpoint",
    "pipeline.report",
    "value.schema_file",
    "value.descriptor_file",
)

Document = dict[str, Any]


def load(
    path: Path, *, environment: Mapping[str, str], settings: Iterable[str] = ()
) -> Declaration:
    """Load and check the declaration in a file. No node and no Spark is needed.

    `settings` are `key=value` with dotted keys. They take precedence over the file.

    Raises: ConfigError with the file and the key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    declaration = parse(text, str(path), environment=environment, settings=settings)
    check(declaration, str(path))
    spec_of(declaration, str(path))
    return declaration


def parse(
    text: str, origin: str, *, environment: Mapping[str, str], settings: Iterable[str] = ()
) -> Declaration:
    """Parse the declaration in `text`. Paths are relative to the folder of the file `origin`.

    Raises: ConfigError.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{origin} is not valid TOML: brackets nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin} is not valid TOML: {error}") from error
    for setting in settings:
        apply_setting(document, setting)
    expanded = expand(document, environment, origin)
    require_known(expanded, Declaration, origin, "")
    resolve_paths(expanded, Path(origin).parent)
    try:
        return msgspec.convert(expanded, Declaration, str_keys=True)
    except msgspec.ValidationError as error:
        raise ConfigError(_plain(str(error), origin)) from None


def apply_setting(document: Document, setting: str) -> None:
    """Apply one setting such as `table.format=delta`. The value is parsed as TOML; if that fails,
    it is text.

    Raises: ConfigError for a malformed setting or one below a plain value.
    """
    key, equals, text = setting.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set {setting!r}: expected key=value, such as table.format=delta")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    inner = document
    for name in names[:-1]:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {setting!r}: {name} is a value, not a section")
    inner[names[-1]] = value


def expand(value: Any, environment: Mapping[str, str], origin: str, key: str = "") -> Any:
    """Replace every `${NAME}` in the strings of `value`.

    Raises: ConfigError with the key, never with a value, if a variable is not set.
    """
    if isinstance(value, dict):
        return {
            name: expand(inner, environment, origin, f"{key}.{name}" if key else name)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [expand(inner, environment, origin, key) for inner in value]
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name is None:
            return "${"
        if name not in environment and default is None:
            raise ConfigError(f"{origin}:{key} names ${{{name}}}, which is not set")
        return environment.get(name) or default or ""

    return VARIABLE.sub(variable, value)


def require_known(value: Any, section: type[msgspec.Struct], origin: str, key: str) -> None:
    """Raises: ConfigError for an unknown key, with the nearest known one."""
    if not isinstance(value, dict):
        return
    kinds = get_type_hints(section)
    for name, inner in value.items():
        full = f"{key}.{name}" if key else name
        if name not in kinds:
            raise ConfigError(f"{origin}:{full} is unknown; {_near(name, section, key)}")
        for kind in (kinds[name], *get_args(kinds[name])):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                require_known(inner, kind, origin, full)


def _near(name: str, section: type[msgspec.Struct], key: str) -> str:
    """Suggest the most likely key, including a known key that was put in a wrong section."""
    here = section.__struct_fields__
    prefix = f"{key}." if key else ""
    near = [prefix + field for field in difflib.get_close_matches(name, here, n=1, cutoff=0.7)]
    near = near or [other for other in all_keys() if other.rpartition(".")[2] == name]
    near = near or [prefix + field for field in difflib.get_close_matches(name, here, n=1)]
    if near:
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(prefix + field for field in here)}"


def all_keys(section: type[msgspec.Struct] = Declaration, key: str = "") -> list[str]:
    """The dotted names of all keys. A section that takes any key is one entry."""
    found = []
    for name, kind in get_type_hints(section).items():
        full = f"{key}.{name}" if key else name
        inner = [
            part
            for part in (kind, *get_args(kind))
            if isinstance(part, type) and issubclass(part, msgspec.Struct)
        ]
        found += all_keys(inner[0], full) if inner else [full]
    return found


def resolve_paths(document: Document, folder: Path) -> None:
    """Make relative paths absolute, starting from the file's folder. URIs stay unchanged."""
    for key in PATH_KEYS:
        section, _, name = key.partition(".")
        _resolve(document.get(section), name, folder)
    _resolve(document.get("table"), "location", folder)
    compaction = document.get("compact_lake")
    if isinstance(compaction, dict):
        _resolve(compaction.get("into"), "location", folder)


def _resolve(section: Any, name: str, folder: Path) -> None:
    if isinstance(section, dict):
        path = section.get(name)
        if isinstance(path, str) and path and "://" not in path:
            section[name] = str((folder / path).absolute())


def _plain(text: str, origin: str) -> str:
    """Convert msgspec's text to `FILE:table.format is wrong: expected ...`."""
    matched = _AT.match(text)
    what, key = (matched[1], matched[2]) if matched else (text, "")
    missing = re.match(r"Object missing required field `(.+)`", what)
    if missing:
        full = f"{key}.{missing[1]}" if key else missing[1]
        return f"{origin}:{full} is missing"
    kind = kind_of(key)
    if "enum value" in what and kind is not None:
        what += f"; expected one of {', '.join(get_args(kind))}"
    what = what.replace(f"matching regex {NAME_PATTERN!r}", "of letters, digits, dot, _ and -")
    return f"{origin}:{key} is wrong: {what[:1].lower()}{what[1:].replace('`', '')}"


def kind_of(key: str) -> Any:
    """The type of a dotted key; None for an unknown key."""
    kind: Any = Declaration
    for name in key.split("."):
        sections = [
            part
            for part in (kind, *get_args(kind))
            if isinstance(part, type) and issubclass(part, msgspec.Struct)
        ]
        if not sections:
            return None
        kind = get_type_hints(sections[0]).get(name)
    return kind
