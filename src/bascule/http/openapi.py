"""The OpenAPI 3.1 document and the page /docs, both generated from the route table."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from bascule.config import KEYS
from bascule.http.schemas import ErrorBody

OPENAPI_VERSION: Final = "3.1.0"


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One row of the route table."""

    method: str
    path: str
    """Path parameters stand in braces, as in `/v1/streams/{name}`."""
    summary: str
    responses: dict[int, tuple[str, type | None]]
    """Status -> (description, type of the body or None), without errors."""
    request: type | None = None
    errors: Sequence[tuple[int, str]] = field(default_factory=tuple)
    """(status, error code) of each error response; their body is `ErrorBody`."""
    example: str = ""
    """A curl command; `$SERVER` stands for the server's address."""
    media_type: str = "application/json"
    request_media_type: str = ""
    """Of a body that is any bytes; empty: there is no such body."""
    query: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """(name, description) of each query parameter."""


def openapi_document(operations: Sequence[ApiOperation], *, version: str) -> dict[str, Any]:
    """The OpenAPI document of `operations`; `version` is Bascule's."""
    types: list[type] = [ErrorBody]
    for operation in operations:
        types += [body for _, body in operation.responses.values() if body is not None]
        if operation.request is not None:
            types.append(operation.request)
    unique = list(dict.fromkeys(types))
    references, components = msgspec.json.schema_components(
        unique, ref_template="#/components/schemas/{name}"
    )
    _describe_settings(components)
    schemas = dict(zip(unique, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        item = paths.setdefault(operation.path, {})
        item[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "Bascule HTTP API",
            "version": version,
            "summary": "Administer streams and watch a node",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _describe_settings(components: dict[str, Any]) -> None:
    """Add to each stream setting its description, and in requests its limits."""
    for name, schema in components.items():
        for field_name, described in schema.get("properties", {}).items():
            key = KEYS.get(f"streams.{field_name}")
            if key is None or "Stream" not in name or name == "StreamBody":
                continue
            described.setdefault("description", key.about)
            if described.get("type") == "integer" and name.endswith("Request"):
                limits = {"minimum": key.minimum, "maximum": key.maximum}
                described.update({word: at for word, at in limits.items() if at is not None})


def _operation(operation: ApiOperation, schemas: dict[type, dict[str, Any]]) -> dict[str, Any]:
    def content(body: type) -> dict[str, Any]:
        return {"application/json": {"schema": schemas[body]}}

    responses: dict[str, Any] = {}
    for status, (description, body) in operation.responses.items():
        responses[str(status)] = {"description": description}
        if body is not None:
            responses[str(status)]["content"] = content(body)
        elif operation.media_type != "application/json":
            responses[str(status)]["content"] = {operation.media_type: {}}
    by_status: dict[int, list[str]] = {}
    # Every operation refuses unknown query parameters.
    for status, code in dict.fromkeys([(400, "malformed_request"), *operation.errors]):
        by_status.setdefault(status, []).append(code)
    for status, codes in by_status.items():
        responses[str(status)] = {
            "description": "Error: " + " or ".join(f"`{code}`" for code in codes),
            "content": content(ErrorBody),
        }
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "responses": responses,
    }
    if operation.request is not None:
        described["requestBody"] = {"required": True, "content": content(operation.request)}
    elif operation.request_media_type:
        described["requestBody"] = {"content": {operation.request_media_type: {}}}
    parameters: list[dict[str, Any]] = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in operation.path.split("/")
        if part.startswith("{")
    ]
    parameters += [
        {"name": name, "in": "query", "description": what, "schema": {"type": "string"}}
        for name, what in operation.query
    ]
    if parameters:
        described["parameters"] = parameters
    return described


def _operation_id(operation: ApiOperation) -> str:
    words = [part.strip("{}").replace(".", "_") for part in operation.path.split("/") if part]
    return "_".join([operation.method.lower(), *(word for word in words if word != "v1")])


_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #0b7285; }
@media (prefers-color-scheme: dark) { :root { --accent: #66d9e8; } }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 54rem; margin: 3rem auto; padding: 0 1rem }
h1 { font-size: 1.7rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin: 0 }
section { border: 1px solid var(--line); border-radius: 8px; margin: 1.2rem 0; overflow: hidden }
section > header { background: var(--soft); padding: .6rem 1rem; display: flex; gap: .8rem;
  align-items: baseline; flex-wrap: wrap }
section > div { padding: .4rem 1rem 1rem }
.method { font: 700 .8rem ui-monospace, monospace; color: var(--accent); min-width: 3.5rem }
code, pre { font: .86rem/1.5 ui-monospace, monospace } pre { background: var(--soft);
  padding: .7rem 1rem; border-radius: 6px; overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .92rem } th { font-weight: 600 }
td:first-child { width: 1%; white-space: nowrap }
td, th { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top }
a { color: var(--accent) }
"""


def docs_page(operations: Sequence[ApiOperation], *, version: str, server: str) -> str:
    """The API as one self-contained HTML page; `server` replaces `$SERVER` in the examples."""
    document = openapi_document(operations, version=version)
    sections = "".join(_section(operation, document, server) for operation in operations)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Bascule HTTP API</title><style>{_STYLE}</style></head><body>"
        f"<h1>Bascule HTTP API</h1><p>Version {html.escape(version)}. Specification: "
        '<a href="/v1/openapi.json">/v1/openapi.json</a> (OpenAPI 3.1). Bodies are JSON; a '
        "request with a body needs <code>Content-Type: application/json</code>. Every error is "
        '<code>{"error": {"code": …, "message": …}}</code>. Unknown fields and query parameters '
        "are refused.</p>"
        f"{sections}</body></html>\n"
    )


def _section(operation: ApiOperation, document: dict[str, Any], server: str) -> str:
    method = operation.method.lower()
    described = document["paths"][operation.path][method]
    rows = "".join(
        f"<tr><td><code>{status}</code></td><td>{_inline(response['description'])}</td></tr>"
        for status, response in described["responses"].items()
    )
    parts = [f"<table>{rows}</table>"]
    if operation.request is not None:
        parts.insert(0, _fields(operation.request.__name__, document))
    if operation.example:
        parts.append(f"<pre>{html.escape(operation.example.replace('$SERVER', server))}</pre>")
    return (
        f'<section id="{described["operationId"]}"><header>'
        f'<span class="method">{operation.method}</span>'
        f"<h2><code>{html.escape(operation.path)}</code></h2>"
        f"<span>{_inline(operation.summary)}</span></header><div>{''.join(parts)}</div></section>"
    )


def _fields(name: str, document: dict[str, Any]) -> str:
    schema = document["components"]["schemas"][name]
    rows = []
    for field_name, described in schema["properties"].items():
        kind = described.get("type") or described.get("enum")
        if kind is None:
            kind = [word for part in described.get("anyOf", ())
                    for word in part.get("enum") or [part["type"]]]  # fmt: skip
        shown = kind if isinstance(kind, str) else " or ".join(json.dumps(item) for item in kind)
        needed = "required" if field_name in schema["required"] else ""
        rows.append(
            f"<tr><td><code>{field_name}</code></td><td>{html.escape(shown)}</td><td>{needed}</td>"
            f"<td>{_inline(described.get('description', ''))}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _inline(text: str) -> str:
    """`text` escaped for HTML, with words in back quotes as <code>."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))
