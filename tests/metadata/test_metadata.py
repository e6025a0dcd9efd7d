"""Decisions on streams, the application of commands, and the image file."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import (
    ConfigError,
    CorruptData,
    InvalidName,
    StreamConflict,
    UnknownStream,
    UnsupportedFormat,
)
from bascule.metadata import codec
from bascule.metadata.apply import apply
from bascule.metadata.codec import decode_image
from bascule.metadata.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    PauseStream,
    ResumeStream,
)
from bascule.metadata.controller import (
    RECORD_HEADERS_BEFORE,
    Existing,
    check_config,
    check_stream_name,
    create_stream,
    delete_stream,
)
from bascule.metadata.image import Image
from bascule.model import (
    AckPolicy,
    Cleanup,
    Compression,
    Discard,
    KeyFrom,
    PartitionBy,
    RecordHeader,
    StreamConfig,
    StreamDefinition,
    SyncPolicy,
)
from support.earlier_images import encode_image

FLIGHTS = StreamConfig(subject="flights.>")
EMPTY = Image()


def created(image: Image, name: str, config: StreamConfig = FLIGHTS, *, number: int = 1) -> Image:
    command = create_stream(image, name, config, id=bytes([number]) * 16, now_ms=1_000)
    assert isinstance(command, CreateStream)
    return apply(image, command)


def test_a_stream_is_created_as_requested() -> None:
    command = create_stream(EMPTY, "flights", FLIGHTS, id=b"i" * 16, now_ms=5)
    definition = StreamDefinition(name="flights", id=b"i" * 16, created_ms=5, config=FLIGHTS)
    assert command == CreateStream(definition)
    assert dict(apply(EMPTY, command).streams) == {"flights": definition}
    assert not EMPTY.streams


def test_a_repeated_creation_returns_the_existing_stream() -> None:
    image = created(EMPTY, "flights")
    again = create_stream(image, "flights", FLIGHTS, id=b"j" * 16, now_ms=9)
    assert again == Existing(image.streams["flights"])


def test_another_configuration_is_refused_with_the_differences() -> None:
    image = created(EMPTY, "flights")
    asked = replace(FLIGHTS, subject="other.>", sync=SyncPolicy.NEVER)
    with pytest.raises(StreamConflict) as caught:
        create_stream(image, "flights", asked, id=b"j" * 16, now_ms=9)
    assert caught.value.differences == {
        "subject": ("flights.>", "other.>"),
        "sync": ("always", "never"),
    }
    assert "'flights.>', asked for 'other.>'" in str(caught.value)


def test_a_recreated_stream_has_another_id() -> None:
    image = created(EMPTY, "flights", number=1)
    late = delete_stream(image, "flights")
    image = created(apply(image, late), "flights", number=2)
    assert apply(image, late) is image, "a late deletion must not hit the successor"
    with pytest.raises(UnknownStream):
        delete_stream(image, "nobody")


@pytest.mark.parametrize(
    "name", ["a", "flights", "a.b-c_d.9", "9", "x" * 249, "_", "_schemas", "__x", "_offset"]
)
def test_valid_names(name: str) -> None:
    check_stream_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".a",
        "-a",
        "_offsets",
        "_bascule",
        "_bascule.x",
        "a/b",
        "../a",
        "a b",
        "a\0",
        "ä",
        "a\n",
        "x" * 250,
        "a*",
        ">",
    ],
)
def test_invalid_names(name: str) -> None:
    with pytest.raises(InvalidName):
        check_stream_name(name)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"segment_bytes_max": 0}, "segment_bytes_max must be between 1024 and 2147483647, got 0"),
        ({"sync_interval_ms": 0}, "sync_interval_ms must be between 1 and 3600000, got 0"),
        ({"segment_age_ms_max": 0}, "segment_age_ms_max must be at least 1, got 0"),
    ],
)
def test_values_out_of_range(change: dict[str, int], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_stream(EMPTY, "a", replace(FLIGHTS, **change), id=b"i" * 16, now_ms=0)
    assert str(caught.value) == expected


def test_a_mapped_stream_needs_a_place_for_the_partition() -> None:
    mapped = StreamConfig(subject="s.*.*", partitions=3, partition_by=PartitionBy.MAPPING)
    created = create_stream(Image(), "s", mapped, id=bytes(16), now_ms=0)
    assert isinstance(created, CreateStream)
    assert created.definition.partition_subject(2) == "s.2.*"
    for subject in ("s", "s.>"):
        with pytest.raises(ConfigError, match=r"takes the partition from the first \*"):
            config = replace(mapped, subject=subject)
            create_stream(Image(), "s", config, id=bytes(16), now_ms=0)


def test_invalid_subjects_and_groups_are_refused() -> None:
    for config in (StreamConfig(subject="a..b"), StreamConfig(subject="a", group="two words")):
        with pytest.raises(InvalidName):
            create_stream(EMPTY, "a", config, id=b"i" * 16, now_ms=0)


FIELDS = [item.name for item in fields(StreamConfig)]
configs = st.builds(
    StreamConfig,
    subject=st.sampled_from(["a", "a.*", "a.>", "räume.>"]),
    group=st.none() | st.just("workers"),
    sync=st.sampled_from(SyncPolicy),
    sync_interval_ms=st.integers(1, 3_600_000),
    segment_bytes_max=st.integers(1 << 10, 2**31 - 1),
    partitions=st.integers(1, 1024),
    partition_by=st.sampled_from(PartitionBy),
    key_from=st.sampled_from(KeyFrom),
    compression=st.sampled_from(Compression),
    cleanup=st.sampled_from(
        [(Cleanup.DELETE,), (Cleanup.COMPACT,), (Cleanup.DELETE, Cleanup.COMPACT)]
    ),
    retention_ms_max=st.just(0) | st.integers(0, 2**53 - 1),
    retention_bytes_max=st.just(0) | st.integers(0, 2**53 - 1),
    retention_messages_max=st.just(0) | st.integers(0, 2**53 - 1),
    retention_after=st.sampled_from(["", "lake"]),
    discard=st.sampled_from(Discard),
    min_compaction_lag_ms=st.integers(0, 100),
    max_compaction_lag_ms=st.integers(0, 100),
    dirty_percent_min=st.integers(0, 100),
    dedupe_window_ms=st.integers(0, 1 << 40),
    rate_messages_max=st.integers(0, 1 << 40),
    read_only=st.booleans(),
    unclean_election=st.booleans(),
    acks=st.booleans(),
    ack_policy=st.sampled_from(AckPolicy),
    shared=st.booleans(),
)


def is_sound(config: StreamConfig) -> bool:
    try:
        check_config(config)
    except ConfigError:
        return False
    return True


sound_configs = configs.filter(is_sound)
definitions = st.builds(
    StreamDefinition,
    name=st.from_regex(r"\A[a-z0-9_][A-Za-z0-9._-]{0,20}\Z"),
    id=st.binary(min_size=16, max_size=16),
    created_ms=st.integers(0, 2**53),
    config=sound_configs,
    paused=st.booleans(),
)
commands = st.lists(definitions, max_size=4).flatmap(
    lambda known: st.lists(
        st.builds(CreateStream, definitions)
        if not known
        else st.builds(CreateStream, st.sampled_from(known))
        | st.builds(
            lambda kind, d: kind(name=d.name, id=d.id),
            st.sampled_from([DeleteStream, PauseStream, ResumeStream]),
            st.sampled_from(known),
        )
        | st.builds(
            lambda d, c: AlterStream(name=d.name, id=d.id, config=c),
            st.sampled_from(known),
            sound_configs,
        ),
        max_size=12,
    )
)


@given(commands)
def test_an_image_is_decoded_as_encoded(history: list[Command]) -> None:
    image = EMPTY
    for command in history:
        image = apply(apply(image, command), command)
    data = encode_image(image)
    assert decode_image(data, "m.json") == image
    assert encode_image(decode_image(data, "m.json")) == data


@given(commands)
def test_apply_agrees_with_a_model(history: list[Command]) -> None:
    image, plain = EMPTY, {}
    for command in history:
        image = apply(image, command)
        if isinstance(command, CreateStream):
            plain.setdefault(command.definition.name, command.definition)
        elif command.name not in plain or plain[command.name].id != command.id:
            continue
        elif isinstance(command, DeleteStream):
            plain.pop(command.name)
        elif isinstance(command, AlterStream):
            plain[command.name] = replace(plain[command.name], config=command.config)
        else:
            paused = isinstance(command, PauseStream)
            plain[command.name] = replace(plain[command.name], paused=paused)
    assert dict(image.streams) == plain


def test_every_flipped_bit_is_found() -> None:
    image = created(EMPTY, "flights")
    data = encode_image(image)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x01
        try:
            decoded = decode_image(bytes(damaged), "m.json")
        except (CorruptData, UnsupportedFormat):
            continue
        assert decoded == image, f"byte {position} changed the image unseen"


def test_errors_of_the_file() -> None:
    with pytest.raises(CorruptData, match=r"m.json is corrupt at byte 0: expected JSON, found the"):
        decode_image(b"", "m.json")
    with pytest.raises(CorruptData, match="expected a JSON object of format"):
        decode_image(b"[]", "m.json")
    newer = json.loads(encode_image(EMPTY)) | {"version": 2}
    with pytest.raises(UnsupportedFormat, match="version 2, this Bascule reads up to 1"):
        decode_image(json.dumps(newer).encode(), "m.json")


def test_missing_newer_settings_get_their_defaults() -> None:
    image = created(EMPTY, "flights")
    document = json.loads(encode_image(image))
    stream = document["image"]["streams"][0]
    del stream["paused"]
    for name in FIELDS[7:]:
        del stream["config"][name]
    canonical = json.dumps(document["image"], sort_keys=True, separators=(",", ":")).encode()
    document["crc32c"] = f"{crc32c(canonical):08x}"
    (decoded,) = decode_image(json.dumps(document).encode(), "m.json").streams.values()
    (made,) = image.streams.values()
    # An older stream keeps the record headers that it had.
    assert decoded == replace(
        made, config=replace(made.config, record_headers=("subject", "reply"))
    )


def test_a_stream_from_before_record_headers_was_a_setting_is_equal_to_a_new_one() -> None:
    config = StreamConfig(subject="flights")
    before = replace(config, record_headers=RECORD_HEADERS_BEFORE)
    image = apply(EMPTY, create_stream(EMPTY, "flights", before, id=b"i" * 16, now_ms=1))
    found = create_stream(image, "flights", config, id=b"j" * 16, now_ms=2)
    assert found == Existing(image.streams["flights"])
    reply = replace(config, record_headers=(RecordHeader.REPLY,))
    with pytest.raises(StreamConflict) as refused:
        create_stream(image, "flights", reply, id=b"j" * 16, now_ms=2)
    assert refused.value.differences == {"record_headers": (("subject", "reply"), ("reply",))}
    image = apply(EMPTY, create_stream(EMPTY, "flights", reply, id=b"i" * 16, now_ms=1))
    with pytest.raises(StreamConflict):
        create_stream(image, "flights", config, id=b"j" * 16, now_ms=2)


def test_a_cluster_id_is_decoded_or_refused() -> None:
    data = codec.encode_cluster_id("5f" * 12)
    assert codec.decode_cluster_id(data, "/d/node.json") == "5f" * 12
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            try:
                assert codec.decode_cluster_id(flipped, "/d/node.json") == "5f" * 12
            except CorruptData as damage:
                assert damage.file == "/d/node.json"
                assert "restore the file from a copy" in str(damage)
        if at < len(data) - 1:
            with pytest.raises(CorruptData):
                codec.decode_cluster_id(data[:at], "/d/node.json")


@pytest.mark.parametrize(("setting", "default"), [("acks", True), ("shared", False)])
def test_an_image_from_before_a_setting_existed_has_its_default(
    setting: str, default: bool
) -> None:
    other = StreamConfig("s", **{setting: not default})  # type: ignore[arg-type]
    definition = StreamDefinition("s", b"i" * 16, 0, other)
    document = json.loads(encode_image(Image.of(streams={"s": definition})))
    del document["image"]["streams"][0]["config"][setting]
    canonical = json.dumps(document["image"], sort_keys=True, separators=(",", ":"))
    document["crc32c"] = f"{crc32c(canonical.encode()):08x}"
    loaded = decode_image(json.dumps(document).encode(), "metadata.json")
    assert getattr(loaded.streams["s"].config, setting) is default


@pytest.mark.parametrize("ttl_ms", [-1, -5, 1, 999, 3_155_760_000_000, 1 << 60])
def test_a_time_to_live_that_no_table_can_have_is_refused(ttl_ms: int) -> None:
    config = StreamConfig(
        subject="$KV.t.>",
        table=True,
        key_from=KeyFrom.SUBJECT,
        cleanup=(Cleanup.COMPACT,),
        table_ttl_ms=ttl_ms,
    )
    with pytest.raises(ConfigError, match=f"table_ttl_ms must be .*, got {ttl_ms}") as refused:
        check_config(config)
    assert refused.value.field == "table_ttl_ms"
