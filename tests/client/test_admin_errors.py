"""What the answers of a node raise in its clients."""

from __future__ import annotations

import inspect

import msgspec

from bascule.cli import exit_codes
from bascule.client import connect
from bascule.client.admin import error_of
from bascule.controller.cluster.tables.reads import READ_SECONDS_MAX
from bascule.errors import Indeterminate, RequestExpired
from bascule.http.responses import error_response


def test_a_request_that_came_too_late_is_not_retriable() -> None:
    response = error_response(RequestExpired(20_000, 20_400))
    assert response.status_code == 409
    found = error_of(msgspec.json.decode(bytes(response.body)), what="PATCH", name="flights")
    assert isinstance(found, RequestExpired)
    assert not found.retriable
    assert "up to index 20000 of the metadata log, which is at 20400" in str(found)
    code, hint = exit_codes.explain(found)
    assert code == exit_codes.CONFLICT
    assert "bascule stream info" in hint


def test_a_read_that_waited_too_long_for_a_position_is_retriable() -> None:
    response = error_response(Indeterminate("the table t is at offset 3, not 7, after 5.0 s"))
    assert response.status_code == 503
    found = error_of(msgspec.json.decode(bytes(response.body)), what="GET", name="t")
    assert isinstance(found, Indeterminate)
    assert found.retriable
    assert "at offset 3, not 7" in str(found)


def test_a_node_answers_a_read_before_its_client_gives_up() -> None:
    assert inspect.signature(connect).parameters["timeout"].default > READ_SECONDS_MAX
