"""The options for a stream's settings: one table for `create`, `alter` and `info`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_type_hints

import typer

from bascule.cli.completion import consumer_names
from bascule.cli.units import (
    NO_LIMIT,
    bytes_text,
    duration_text,
    parse_count,
    parse_duration,
    parse_size,
)
from bascule.config import KEYS
from bascule.model import StreamConfig

Kind = Literal["size", "time", "number", "word", "words", "name", "switch"]

ACKS: Final = "Acks and storage"
PARTITIONS: Final = "Partitions and keys"
RETENTION: Final = "Retention"
COMPACTION: Final = "Key compaction"
PUBLISHERS: Final = "Publishers"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a stream on the command line."""

    field: str
    """Name in `StreamConfig`. The key `streams.<field>` documents it."""
    flag: str
    kind: Kind
    panel: str
    alterable: bool = True

    @property
    def about(self) -> str:
        return KEYS[f"streams.{self.field}"].about

    @property
    def metavar(self) -> str:
        choices = KEYS[f"streams.{self.field}"].choices
        if self.kind == "words":
            return ",".join(choices) + ("|none" if self._may_be_empty else "")
        return "|".join(choices) if choices else self.kind.upper()

    @property
    def _may_be_empty(self) -> bool:
        return bool(KEYS[f"streams.{self.field}"].default == ())

    def parse(self, text: str) -> Any:
        """Parse the text of the option. Raises: typer.BadParameter."""
        if self.kind == "size":
            return parse_size(text)
        if self.kind == "time":
            return parse_duration(text)
        if self.kind == "number":
            return parse_count(text)
        choices = KEYS[f"streams.{self.field}"].choices
        if self.kind == "words":
            if self._may_be_empty and text.lower() in NO_LIMIT:
                return ()
            words = tuple(word.strip() for word in text.split(",") if word.strip())
            for word in words:
                self._check_choice(word, choices)
            return words
        if self.kind == "name":
            return "" if text.lower() in NO_LIMIT else text
        return self._check_choice(text, choices)

    def _check_choice(self, word: str, choices: tuple[str, ...]) -> str:
        if word not in choices:
            raise typer.BadParameter(f"{word!r} is not one of {', '.join(choices)}")
        return word

    def text(self, config: StreamConfig) -> str:
        """Format the value in `config`. 0 means no limit, no window or no wait."""
        value = getattr(config, self.field)
        if self.kind == "switch":
            return "yes" if value else "no"
        if self.kind == "words":
            return ", ".join(value) or "none"
        if isinstance(value, str):
            return str(value) or "none"
        if value == 0 and self.field != "dirty_percent_min":
            return "none"
        if self.kind == "size":
            return bytes_text(value)
        return duration_text(value) if self.kind == "time" else f"{value:,}"


SETTINGS: Final = (
    Setting("sync", "--sync", "word", ACKS),
    Setting("sync_interval_ms", "--sync-interval", "time", ACKS),
    Setting("compression", "--compression", "word", ACKS),
    Setting("segment_bytes_max", "--segment-bytes", "size", ACKS),
    Setting("segment_age_ms_max", "--segment-age", "time", ACKS),
    Setting("partitions", "--partitions", "number", PARTITIONS),
    Setting("replicas", "--replicas", "number", PARTITIONS),
    Setting("min_isr", "--min-isr", "number", PARTITIONS),
    Setting("unclean_election", "--unclean-election/--no-unclean-election", "switch", PARTITIONS),
    Setting("partition_by", "--partition-by", "word", PARTITIONS, alterable=False),
    Setting("key_from", "--key-from", "word", PARTITIONS, alterable=False),
    Setting("cleanup", "--cleanup", "words", RETENTION),
    Setting("table", "--table/--no-table", "switch", RETENTION),
    Setting("table_ttl_ms", "--ttl", "time", RETENTION),
    Setting("retention_ms_max", "--retention", "time", RETENTION),
    Setting("retention_bytes_max", "--retention-bytes", "size", RETENTION),
    Setting("retention_messages_max", "--retention-messages", "number", RETENTION),
    Setting("retention_after", "--retention-after", "name", RETENTION),
    Setting("discard", "--discard", "word", RETENTION),
    Setting("tombstone_retention_ms", "--tombstone-retention", "time", COMPACTION),
    Setting("min_compaction_lag_ms", "--min-compaction-lag", "time", COMPACTION),
    Setting("max_compaction_lag_ms", "--max-compaction-lag", "time", COMPACTION),
    Setting("dirty_percent_min", "--dirty-percent", "number", COMPACTION),
    Setting("message_bytes_max", "--message-bytes", "size", PUBLISHERS),
    Setting("dedupe_window_ms", "--dedupe-window", "time", PUBLISHERS),
    Setting("dedupe_messages_max", "--dedupe-messages", "number", PUBLISHERS),
    Setting("rate_messages_max", "--rate-messages", "number", PUBLISHERS),
    Setting("rate_bytes_max", "--rate-bytes", "size", PUBLISHERS),
    Setting("read_only", "--read-only/--no-read-only", "switch", PUBLISHERS),
    Setting("acks", "--acks/--no-acks", "switch", PUBLISHERS),
    Setting("ack_policy", "--ack-policy", "word", PUBLISHERS),
    Setting("shared", "--shared/--no-shared", "switch", PUBLISHERS),
    Setting("record_headers", "--record-headers", "words", PUBLISHERS),
)
"""All settings, in the order and under the headings of the help."""


def with_settings(
    *, alterable_only: bool, without: Collection[str] = (), named: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option for each setting to a command, except for the fields `without`. It receives the
    given values as `settings`. Fields in `named` have that flag before their own."""
    names = named or {}

    def give(command: Callable[..., None]) -> Callable[..., None]:
        offered = [
            item
            for item in SETTINGS
            if (item.alterable or not alterable_only) and item.field not in without
        ]

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            typed = {item.field: arguments.pop(item.field) for item in offered}
            chosen = {name: value for name, value in typed.items() if value is not None}
            command(settings=chosen, **arguments)

        hints = get_type_hints(command, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "settings"
        ]
        added = [_parameter(item, names.get(item.field)) for item in offered]
        given = [item for item in parameters if item.name not in ("yes", "server", "json")]
        every = given + added + [item for item in parameters if item not in given]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in every]
        )
        run.__annotations__ = {item.name: item.annotation for item in every}
        return run

    return give


def _parameter(setting: Setting, name: str | None = None) -> inspect.Parameter:
    flags = [setting.flag] if name is None else [name, setting.flag]
    if setting.kind == "switch":
        option = typer.Option(
            *flags, help=setting.about, rich_help_panel=setting.panel, show_default=False
        )
        annotation: Any = Annotated[bool | None, option]
    else:
        option = typer.Option(
            *flags,
            metavar=setting.metavar,
            help=setting.about,
            rich_help_panel=setting.panel,
            parser=setting.parse,
            show_default=False,
            autocompletion=consumer_names if setting.field == "retention_after" else None,
        )
        annotation = Annotated[Any, option]
    return inspect.Parameter(
        setting.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
