"""ApiVersions: what is served. Answered in version 0 with error 35 where the asked one is not."""

from __future__ import annotations

from collections.abc import Mapping

from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from bascule.wire.schema import Versions


def handle_api_versions(version: int, served: Mapping[int, Versions]) -> ApiVersionsResponse:
    """The table of served versions; a client that sent an unserved version steps down (KIP-511)."""
    known = version in served[ApiVersionsResponse.API_KEY]
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(key, v.first, v.last) for key, v in sorted(served.items())],
    )
