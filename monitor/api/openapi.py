"""The OpenAPI 3.1 document, drawn from the same tables as the parser and the server. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

import monitor
from monitor.api.captures import CAPTURE_PATH, CaptureAnswer, CaptureRequest
from monitor.api.parameters import Parameter
from monitor.api.probes import PROBES
from monitor.api.retries import RETRY_PATH, RetryAnswer, RetryRequest
from monitor.api.routes import ROUTES, WATCH_PARAMETERS, Route
from monitor.api.schema import DroppedEvent, ErrorAnswer, ProfileAnswer

ERRORS = {
    "400": "A parameter is wrong; `parameter` names it.",
    "401": "Over TCP: a user and password, or a token, is needed.",
    "403": "This user, or this certificate, may not ask.",
    "404": "A job, node or framework without profiles, or no such route.",
    "413": "The request is too large.",
    "503": "Too busy, too slow or stopping; try again.",
}


def openapi_document() -> dict[str, Any]:
    """Return the document, ready for JSON."""
    structs = [kind for route in ROUTES for kind in (route.answer, *route.more) if kind is not None]
    kinds = [
        *dict.fromkeys(
            [
                *structs,
                ErrorAnswer,
                ProfileAnswer,
                DroppedEvent,
                CaptureRequest,
                CaptureAnswer,
                RetryRequest,
                RetryAnswer,
            ]
        )
    ]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    by_struct = dict(zip(kinds, schemas, strict=True))
    error = {"application/json": {"schema": by_struct[ErrorAnswer]}}
    paths = {route.path: {"get": operation(route, by_struct, error)} for route in ROUTES}
    paths["/v1/watch"] = {
        "get": {
            "summary": "New spans as server-sent events: `span` holds a ProfileAnswer, `dropped` a DroppedEvent.",
            "operationId": "watch",
            "parameters": [describe(parameter) for parameter in WATCH_PARAMETERS],
            "responses": {"200": {"description": "Events.", "content": {"text/event-stream": {}}}} | errors(error),
        }
    }
    for path, text in PROBES.items():
        paths[path] = {"get": probe_operation(path, text, error)}
    paths[RETRY_PATH] = {"post": retry_operation(by_struct, error)}
    paths[CAPTURE_PATH] = {"post": capture_operation(by_struct, error)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "phasewatch", "version": monitor.__version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def operation(route: Route, by_struct: dict[Any, Any], error: dict[str, Any]) -> dict[str, Any]:
    """Describe one route."""
    kinds = [by_struct[kind] for kind in (route.answer, *route.more) if kind is not None]
    schema = {"anyOf": kinds} if len(kinds) > 1 else kinds[0] if kinds else {"type": "object"}
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if route.path == "/v1/profile":
        content = {"application/octet-stream": {}}
    if any(parameter.name == "format" for parameter in route.parameters):
        content |= {"text/csv": {}, "application/octet-stream": {}, "text/plain": {}, "text/html": {}}
    return {
        "summary": route.summary,
        "operationId": route.path.removeprefix("/v1/").replace("/", "_").replace("-", "_"),
        "parameters": [describe(parameter) for parameter in route.parameters],
        "responses": {"200": {"description": route.summary, "content": content}} | errors(error),
    }


def capture_operation(by_struct: dict[Any, Any], error: dict[str, Any]) -> dict[str, Any]:
    """Describe the one route that asks something of jobs."""
    answer = {"application/json": {"schema": by_struct[CaptureAnswer]}}
    return {
        "summary": "Ask running jobs to profile their next steps; on the unix socket only.",
        "operationId": "capture",
        "requestBody": {"required": True, "content": {"application/json": {"schema": by_struct[CaptureRequest]}}},
        "responses": {
            "200": {"description": "Where the request was left.", "content": answer},
            **errors(error),
            "403": {"description": "The base folder is not the daemon's, or this user may not ask.", "content": error},
            "408": {"description": "The body took too long to arrive.", "content": error},
        },
    }


def retry_operation(by_struct: dict[Any, Any], error: dict[str, Any]) -> dict[str, Any]:
    """Describe the route that has files read again."""
    return {
        "summary": "Read files again that were set aside; on the unix socket only.",
        "operationId": "retry",
        "requestBody": {"content": {"application/json": {"schema": by_struct[RetryRequest]}}},
        "responses": {
            "200": {
                "description": "How many are read again.",
                "content": {"application/json": {"schema": by_struct[RetryAnswer]}},
            },
            **errors(error),
            "408": {"description": "The body took too long to arrive.", "content": error},
        },
    }


def probe_operation(path: str, text: str, error: dict[str, Any]) -> dict[str, Any]:
    """Describe one probe."""
    schema = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}
    return {
        "summary": text,
        "operationId": path[1:],
        "parameters": [],
        "responses": {
            "200": {"description": "It is.", "content": {"application/json": {"schema": schema}}},
            "503": {"description": "It is not; the message says why.", "content": error},
        },
    }


def errors(content: dict[str, Any]) -> dict[str, Any]:
    """Describe the error answers."""
    return {status: {"description": text, "content": content} for status, text in ERRORS.items()}


def describe(parameter: Parameter) -> dict[str, Any]:
    """Describe one parameter."""
    schema: Any = {"type": "array", "items": parameter.schema} if parameter.repeated else parameter.schema
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.help,
        "schema": schema,
    }
