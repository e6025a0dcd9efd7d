"""What a node and a command say that cannot start: which setting, why, and the way out."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support import commands


def refused(*arguments: str, code: int = 2, environment: dict[str, str] | None = None) -> list[str]:
    """The lines that `bascule` prints to standard error."""
    ended = commands.run(*arguments, env=environment)
    text = ended.stderr.decode()
    assert ended.returncode == code, text
    assert "Traceback" not in text
    return [line for line in text.splitlines() if line.startswith("error:")]


def serve(data: Path, *options: str, environment: dict[str, str] | None = None) -> str:
    ports: Sequence[str] = (
        "--client-port",
        "0",
        "--http-port",
        "0",
        "--nats-port",
        "0",
        "--peer-port",
        "0",
    )
    (line,) = refused("serve", "--data", str(data), *ports, *options, environment=environment)
    return line


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("section", "listener"),
    [("nats", "embedded nats-server"), ("client", "client listener"), ("http", "HTTP listener")],
)
def test_a_port_that_is_taken_names_the_option(
    tmp_path: Path, taken: int, section: str, listener: str
) -> None:
    line = serve(tmp_path / "data", f"--{section}-port", str(taken))
    assert f"the {listener} cannot listen on 127.0.0.1 port {taken}: address already in use" in line
    assert f"--{section}-port N (BASCULE_{section.upper()}_PORT), 0 for a free one" in line
    assert ("--nats URL" in line) == (section == "nats")


@pytest.mark.parametrize("section", ["nats", "client", "http"])
def test_an_address_of_another_machine_names_the_key(tmp_path: Path, section: str) -> None:
    variable = f"BASCULE_{section.upper()}_HOST"
    line = serve(tmp_path / "data", environment={variable: "192.0.2.1"})
    assert "192.0.2.1 port 0: cannot assign requested address; set another address" in line
    assert f"{section}.host ({variable})" in line


@pytest.mark.parametrize("section", ["nats", "client", "http"])
def test_a_port_out_of_range_names_the_variable(tmp_path: Path, section: str) -> None:
    variable = f"BASCULE_{section.upper()}_PORT"
    lines = refused("serve", "--data", str(tmp_path), environment={variable: "99999"})
    assert lines == [f"error: {variable} must be between 0 and 65535, got 99999"]


@pytest.mark.parametrize("advertised", ["host", "host:99999", "host:0", ":9092"])
def test_an_advertised_address_is_checked(tmp_path: Path, advertised: str) -> None:
    line = serve(tmp_path, environment={"BASCULE_CLIENT_ADVERTISED": advertised})
    assert f"client.advertised is '{advertised}', expected host:port" in line


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for data in (file, file / "below"):
        line = serve(data)
        assert f"data directory {data} (--data) cannot be used" in line
        assert "is a file" in line
        assert "with --data DIR" in line
    assert file.read_text() == "mine"


def test_a_data_directory_that_cannot_be_made_or_written(tmp_path: Path) -> None:
    line = serve(Path("/proc/nowhere/data"))
    assert "data directory /proc/nowhere/data (--data) cannot be used: no such file" in line
    ports = ("--client-port", "0", "--http-port", "0", "--nats-port", "0", "--peer-port", "0")
    (line,) = refused("serve", *ports, environment={"BASCULE_DATA": "/proc"})
    assert "data directory /proc (BASCULE_DATA) cannot be used" in line
    assert "that this user may write to with --data DIR" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_data_directory_of_another_user(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o500)
    assert "cannot be used: permission denied" in serve(data)


def test_an_empty_data_directory_is_refused() -> None:
    ports = ("--client-port", "0", "--http-port", "0", "--nats-port", "0", "--peer-port", "0")
    assert refused("serve", "--data", "", *ports) == [
        "error: --data is empty: name a directory, such as ./bascule-data"
    ]


@pytest.mark.parametrize("name", ["none/ready.json", "."])
def test_a_ready_file_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    line = serve(tmp_path / "data", "--ready-file", str(tmp_path / name))
    assert "ready file" in line
    assert "--ready-file FILE" in line
    assert not (tmp_path / "data").exists(), "it is checked first"


@pytest.mark.parametrize("url", ["nats://127.0.0.1:99999", "http://127.0.0.1", "nats://"])
def test_nats_servers_that_are_no_address(tmp_path: Path, url: str) -> None:
    assert "NATS server" in serve(tmp_path / "data", "--nats", url)
