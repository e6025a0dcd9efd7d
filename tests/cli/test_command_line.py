"""The command line without a node: usage, errors and their exit codes, what is printed."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import bascule
from bascule import __version__
from bascule.cli import exit_codes
from bascule.cli.demo import display
from bascule.cli.demo.command import command_line
from bascule.cli.demo.output_folder import MARK, fresh_folder
from bascule.cli.logs import set_up_logging
from bascule.cli.main import main
from bascule.cli.read import as_json, as_partition_text, as_text, parse_position
from bascule.cli.serve import listed, load_config, write_ready_file
from bascule.cli.units import bytes_text, duration_text
from bascule.client import Message
from bascule.client.admin import server_url
from bascule.cluster_version import NEWEST, OLDEST
from bascule.config import LoggingConfig
from bascule.errors import (
    BasculeError,
    ConfigError,
    PublishRejected,
    StreamConflict,
    UnknownStream,
)
from bascule.host.twins import loaded_twins
from bascule.model import NodeInfo

NODE = NodeInfo(
    node_id=1, cluster_id="c", version=__version__, twin="compiled", pid=7, data="/data",
    nats="nats://127.0.0.1:4222", nats_embedded=True, client="127.0.0.1:9092",
    http="http://127.0.0.1:9080", peer="127.0.0.1:9093",
)  # fmt: skip


def test_version_names_the_twin_of_each_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == exit_codes.OK
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"bascule {__version__} (")
    assert first.endswith(f"cluster versions {OLDEST} to {NEWEST}")
    assert [line.split() for line in lines] == [list(pair) for pair in loaded_twins().items()]


@pytest.mark.parametrize(
    "options", [["--header", "X: a\nb"], ["--header", "a b: c"], ["--key", "a\rb"]]
)
def test_publish_refuses_what_no_message_can_carry(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it asks a node."""
    assert main(["publish", "s.a", "hi", "--server", "http://127.0.0.1:1", *options]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("flag", ["--nats", "--peers", "--join"])
@pytest.mark.parametrize("text", ["", " ", ","])
def test_serve_refuses_an_empty_list(
    flag: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --join a node founds a cluster of its own, which nobody has asked for."""
    data = tmp_path / "data"
    asked = ["serve", "--data", str(data), "--new-cluster-id", "--http-port", "-1", flag, text]
    assert main(asked) == exit_codes.USAGE
    assert f"{flag} is empty" in capsys.readouterr().err
    assert not data.exists()


def test_a_list_may_have_blanks_and_a_comma_at_its_end() -> None:
    assert listed("--join", "a:1, b:2,") == ["a:1", "b:2"]
    assert listed("--join", None) is None


def test_help_lists_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == exit_codes.OK
    text = " ".join(capsys.readouterr().out.split())
    for word in ("serve", "stream", "publish", "read", "inspect", "demo", "130 interrupted"):
        assert word in text


@pytest.mark.parametrize("arguments", [["strem"], ["serve", "--client-port", "x"], ["read"]])
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == exit_codes.USAGE
    assert "Try 'bascule" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["strem"], "error: no such command 'strem'"),
        (["read"], "error: missing argument 'STREAM'"),
        (["read", "a", "--partition", "x"], "error: invalid value for '--partition'"),
        (["read", "a", "--order", "x"], "error: --order 'x' is not one of partition, timestamp"),
        (["stream", "create", "a"], "error: missing option '--subject'"),
        (["stream", "create", "a", "--subjct", "b"], "error: no such option: --subjct"),
        (["stream", "elect-leader", "a", "--node", "-1"], "error: invalid value for '--node'"),
        (["top", "--sort", "x"], "error: --sort 'x' is not one of"),
        (["serve", "--log-level", "loud"], "error: --log-level must be one of"),
        (["inspect", "/nowhere"], "error: invalid value for 'FILE'"),
        (["read", "a", "--from", "soon"], "error: --from 'soon' is not a position"),
    ],
)
def test_errors_of_usage_look_like_other_errors(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == exit_codes.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(says)
    assert not set("╭│╰\x1b") & set(printed.err)


@pytest.mark.parametrize("arguments", [[], ["stream"], ["group"]])
def test_a_group_without_a_command_prints_its_help_once(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == exit_codes.USAGE
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("Usage: bascule") == 1


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("http://127.0.0.1:99999", "Port out of range 0-65535"),
        ("127.0.0.1:99999", "Port out of range 0-65535"),
        ("http://127.0.0.1:http", "could not be cast"),
        ("http://127.0.0.1:0", "port 0 is no address"),
        ("ftp://127.0.0.1:9080", "it begins with ftp://"),
        ("http://", "it names no host"),
        ("http://a b:1", "it has a blank"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://127.0.0.1:9080?a=b", "it has a query"),
    ],
)
def test_a_server_that_is_no_address_is_told_in_a_line(
    server: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["stream", "list"], ["stream", "list", "--server", server]):
        if "--server" not in arguments:
            monkeypatch.setenv("BASCULE_SERVER", server)
        else:
            monkeypatch.delenv("BASCULE_SERVER")
        assert main(arguments) == exit_codes.USAGE
        (line,) = capsys.readouterr().err.splitlines()
        origin = "server" if "--server" in arguments else "BASCULE_SERVER"
        assert f"{origin} '{server}' is not an HTTP address such as http://127.0.0.1:9080" in line
        assert why in line


def test_the_variable_of_a_wrong_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASCULE_SERVER", "http://127.0.0.1:99999")
    with pytest.raises(ConfigError, match="BASCULE_SERVER 'http://127"):
        bascule.connect_sync()
    with pytest.raises(ConfigError, match="server '127"):
        bascule.connect_sync("127.0.0.1:99999")


def test_wrong_configuration_is_2_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "b.toml"
    file.write_text("[client]\nprot = 1\n")
    assert main(["serve", "--config", str(file)]) == exit_codes.USAGE
    error = capsys.readouterr().err
    assert "unknown key 'client.prot'" in error
    assert "did you mean client.port?" in error
    assert main(["serve", "--http-port", "70000"]) == exit_codes.USAGE
    assert "--http-port must be between 0 and 65535" in capsys.readouterr().err


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text("[http]\nport = 7\n[client]\nport = 7\n")
    flags = {"client.port": ("--client-port", 8)}
    config = load_config(None, {"BASCULE_CONFIG": str(file)}, flags)
    assert (config.http.port, config.client.port) == (7, 8)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml", {}, {})


def test_assertions_are_not_optional(tmp_path: Path) -> None:
    command = [sys.executable, "-O", "-m", "bascule.cli.main", "serve", "--data", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == exit_codes.USAGE
    assert "python -O" in ended.stderr


def test_a_node_loads_neither_arrow_nor_spark() -> None:
    """What an idle node imports decides what it weighs."""
    code = (
        "import sys, bascule.cli.main, bascule.node.node; "
        "print([m for m in ('pyarrow', 'numpy', 'pandas', 'pyspark', 'httpx', 'matplotlib') "
        "if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_exit_codes_by_error() -> None:
    assert exit_codes.explain(UnknownStream("a"))[0] == exit_codes.UNKNOWN
    assert exit_codes.explain(StreamConflict("a", {}))[0] == exit_codes.CONFLICT
    assert exit_codes.explain(PublishRejected(503, 1, "full"))[0] == exit_codes.REJECTED
    assert exit_codes.explain(BasculeError("x")) == (exit_codes.FAILED, "")
    assert {code for code, _ in exit_codes.EXPLAINED} >= {
        code for name, code in vars(exit_codes).items() if name.isupper() and isinstance(code, int)
    }


def test_the_ready_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_ready_file(path, NODE)
    assert json.loads(path.read_text()) == {
        "pid": 7,
        "nats": "nats://127.0.0.1:4222",
        "client": "127.0.0.1:9092",
        "http": "http://127.0.0.1:9080",
        "peer": "127.0.0.1:9093",
    }
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def quiet_root() -> logging.Logger:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield root
    root.handlers[:], _ = before
    root.setLevel(before[1])


def test_text_logs(quiet_root: logging.Logger) -> None:
    stream = io.StringIO()
    set_up_logging(LoggingConfig(level="info", format="text"), stream)
    log = logging.getLogger("bascule.test")
    log.info("opened stream", extra={"stream": "flights", "why": "it was asked for", "ms": 3})
    log.debug("not shown")
    line = stream.getvalue()
    assert line.endswith(
        'Z info    bascule.test opened stream stream=flights why="it was asked for" ms=3\n'
    )


def test_json_logs_hold_fields_and_exceptions(quiet_root: logging.Logger) -> None:
    stream = io.StringIO()
    set_up_logging(LoggingConfig(format="json"), stream)
    try:
        raise OSError("disk full")
    except OSError:
        logging.getLogger("bascule.test").exception("failed", extra={"event": 1, "path": Path("a")})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["event"], line["event_"]) == ("error", "failed", 1)
    assert line["path"] == "a"
    assert "disk full" in line["exception"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("earliest", "earliest"), ("latest", "latest"), ("42", 42), ("0", 0)],
)
def test_places_to_read_from(text: str, expected: object) -> None:
    assert parse_position(text) == expected


def test_times_to_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = parse_position("2026-01-31T12:00:00Z")
    assert not isinstance(moment, int | str)
    assert moment.timestamp() == 1_769_860_800
    local = parse_position("2026-01-31T12:00:00")
    assert not isinstance(local, int | str)
    assert local.tzinfo is not None
    monkeypatch.setattr(time, "time_ns", lambda: 1_769_860_800 * 10**9)
    ago = parse_position("1h30m")
    assert not isinstance(ago, int | str)
    assert ago.timestamp() == 1_769_860_800 - 5_400
    for wrong in ("yesterday", "-1", "1.5", "", "2 hours ago", "٣"):
        with pytest.raises(ConfigError, match="expected earliest, latest"):
            parse_position(wrong)


MESSAGE = Message(
    offset=7, partition=0, timestamp_ms=1_769_860_800_123, key=b"\xff", value=b"a\tb\x1b[2J",
    subject="s.t", reply=None, headers=(("A", b"1"), ("B", None)),
)  # fmt: skip


def test_messages_as_text_are_harmless_to_a_terminal() -> None:
    assert as_text(MESSAGE) == (b"       7 2026-01-31T12:00:00.123Z s.t [\\xff] a\\tb\\x1b[2J\n")


def test_messages_of_several_partitions_name_theirs() -> None:
    text = as_partition_text(MESSAGE._replace(partition=3))
    assert text.startswith(b"3/7        2026-01-31T12:00:00.123Z s.t ")


def test_messages_as_json() -> None:
    assert json.loads(as_json(MESSAGE)) == {
        "partition": 0,
        "offset": 7,
        "timestamp_ms": 1_769_860_800_123,
        "subject": "s.t",
        "reply": None,
        "key": {"base64": "/w=="},
        "value": "a\tb\x1b[2J",
        "headers": [["A", "1"], ["B", None]],
    }


def test_sizes_and_durations() -> None:
    assert [bytes_text(n) for n in (0, 1_023, 1_536, 256 << 20, 3 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "256.0 MiB", "3.0 TiB",
    ]  # fmt: skip
    assert [duration_text(n) for n in (250, 90_000, 60_000, 604_800_000)] == [
        "250 ms", "90 s", "1 min", "7 d",
    ]  # fmt: skip


def test_a_demo_empties_only_what_a_demo_left(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with fresh_folder(folder) as path:
        (path / "data").mkdir()
        (path / "data" / "x").write_text("x")
        with pytest.raises(ConfigError, match="another demo is running"), fresh_folder(folder):
            pass
    with fresh_folder(folder) as path:
        assert [entry.name for entry in path.iterdir()] == [MARK]
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="was not made by a demo"), fresh_folder(tmp_path):
        pass
    assert (tmp_path / "mine.txt").exists()


def test_the_demo_names_a_command_that_works_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = tmp_path / "my venv" / "bin"
    scripts.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_line() == (f"'{scripts / 'python'}' -m bascule.cli.main", "")
    (scripts / "bascule").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    command, hint = command_line()
    assert command == "'my venv/bin/bascule'"
    assert hint.startswith(". 'my venv/bin/activate' ")
    # As pipx and `uv tool` do it: a link on the PATH to the script.
    (tmp_path / "bascule").symlink_to(scripts / "bascule")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_line() == ("bascule", "")


def test_stages_of_a_piped_demo_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "SECONDS_BETWEEN_LINES", 0.001)
    text = io.StringIO()
    with (
        display.LineDisplay(Console(file=text)) as lines,
        lines.stage("publish, acked", 1_000) as set_done,
    ):
        set_done(500)
        while "  publish, acked 500 of 1,000, " not in text.getvalue():
            pass
    first, *_, last = text.getvalue().splitlines()
    assert first == "publish, acked ..."
    assert last.startswith("publish, acked 1,000: done in ")


def test_a_command_loads_what_it_needs() -> None:
    """Everything that a command imports delays its start."""
    code = (
        "import sys; from bascule.cli.main import main; main(['stream', '--help']); "
        "import bascule.client; print([m for m in ('bascule.cli.inspect', 'bascule.cli.tables', "
        "'bascule.controller', 'bascule.wire.messages.registry') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_a_command_that_reads_nothing_loads_no_arrow() -> None:
    """numpy and pyarrow would be a quarter of the start of `bascule stream list` or `publish`."""
    code = (
        "import sys, bascule.cli.main, bascule.client; "
        "print([m for m in ('pyarrow', 'numpy', 'pandas') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_a_place_without_a_backup_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "none")
    assert main(["backup", place, "--list"]) == exit_codes.OK
    assert "has no backup" in " ".join(capsys.readouterr().out.split())
    assert main(["backup", place, "--at", "2020"]) == exit_codes.USAGE
    assert "--verify" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("localhost", "http://localhost:9080"),
        ("a:1,b", "http://a:1,http://b:9080"),
        ("[::1]", "http://[::1]:9080"),
        ("http://a", "http://a"),
    ],
)
def test_a_server_without_a_port_has_the_default_one(server: str, url: str) -> None:
    assert server_url(server) == url


def test_a_file_that_is_not_there_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", "none.toml"]) == exit_codes.USAGE
    error = "error: configuration file none.toml cannot be read: no such file or directory\n"
    assert capsys.readouterr().err == error
    assert main(["pipeline", "check", "none.toml"]) == exit_codes.USAGE
    error = "error: none.toml cannot be read: no such file or directory\n"
    assert capsys.readouterr().err == error


def test_the_package_is_the_command_line() -> None:
    asked = [sys.executable, "-m", "bascule", "--version"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.startswith(f"bascule {__version__} (")
