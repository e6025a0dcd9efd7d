"""What handlers take from paths and lengths, however a client writes them."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from bascule.http.cluster import ElectLeaderRequest, _node_number
from bascule.http.payloads.writes import _opening
from bascule.http.requests import NUMBER_MAX, MalformedRequest, decode_body
from bascule.http.tables.requests import key_of


def request(method: str, path: bytes, **headers: str) -> Request:
    return Request(
        {
            "type": "http",
            "method": method,
            "path": path.decode(),
            "raw_path": path,
            "query_string": b"",
            "path_params": {"name": "models"},
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
        }
    )


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (b"/v1/tables/sessions/keys/user.7", b"user.7"),
        (b"/v1/tables/keys/keys/user.7", b"user.7"),
        (b"/v1/tables/keys/keys/keys/a", b"keys/a"),
        (b"/v1/tables/sessions/keys/a/keys/b", b"a/keys/b"),
        (b"/v1/tables/sessions/keys/%ff%2f%3f", b"\xff/?"),
        (b"/v1/tables/sessions/keys%2Fa", b"a"),
        (b"/v1/tables/sessions/k%65ys/a", b"a"),
        (b"/v1/tables/sessions/keys/", b""),
    ],
)
def test_the_key_is_what_follows_the_name_of_the_table(path: bytes, key: bytes) -> None:
    assert key_of(request("GET", path)) == key


@pytest.mark.parametrize("end", [b"/increment", b"/incr%65ment", b"%2Fincrement"])
def test_an_increment_is_of_the_key_before_it(end: bytes) -> None:
    assert key_of(request("POST", b"/v1/tables/keys/keys/visits" + end)) == b"visits"


@pytest.mark.parametrize("number", ["9" * 5_000, "x", "-1", "1.0", ""])
def test_a_number_of_a_node_is_refused_that_is_none(number: str) -> None:
    asked = request("GET", b"/v1/nodes/1/drain")
    asked.path_params["number"] = number
    with pytest.raises(MalformedRequest, match="not the number of a node"):
        _node_number(asked)


@pytest.mark.parametrize("node", [-1, 0])
def test_a_leader_is_a_node_from_1_on(node: int) -> None:
    with pytest.raises(MalformedRequest, match=r"^node: .* >= 1"):
        decode_body(b'{"node": %d}' % node, ElectLeaderRequest)
    assert decode_body(b'{"node": 1}', ElectLeaderRequest).node == 1
    assert decode_body(b'{"node": null}', ElectLeaderRequest).node is None


def test_a_payload_has_a_length_of_64_bits() -> None:
    path = b"/v1/streams/models/payloads"
    assert _opening(request("POST", path), "0" * 32).size == -1
    assert _opening(request("POST", path, content_length="7"), "0" * 32).size == 7
    with pytest.raises(MalformedRequest, match="at most"):
        _opening(request("POST", path, content_length=str(NUMBER_MAX + 1)), "0" * 32)
