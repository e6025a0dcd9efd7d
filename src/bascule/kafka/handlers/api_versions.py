"""ApiVersions: the supported versions; error 35 in version 0 for an unsupported version."""

from __future__ import annotations

from collections.abc import Mapping

from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from bascule.wire.schema import Versions


def handle_api_versions(version: int, served: Mapping[int, Versions]) -> ApiVersionsResponse:
    """The table of supported versions, with an error if `version` is not supported.

    A client that gets the error repeats the request in a supported version (KIP-511).
    """
    known = version in served[ApiVersionsResponse.API_KEY]
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(key, v.first, v.last) for key, v in sorted(served.items())],
    )
