"""What the answers of a node raise in its clients."""

from __future__ import annotations

import msgspec

from bascule.cli import exit_codes
from bascule.client.admin import error_of
from bascule.errors import RequestExpired
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
