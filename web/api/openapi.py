"""The OpenAPI document of the HTTP API, made from the table of its operations and the types of its documents. Pure.

It follows OpenAPI 3.1, whose schemas are JSON Schema 2020-12, as msgspec writes them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headgate.views.cluster import EventList
from web.api import documents
from web.api.query import PARAMETERS

ROOT: Final = "/api/v1"
_REF: Final = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One path of the API. ``query`` names its `PARAMETERS`; ``document`` None: the OpenAPI document."""

    name: str
    path: str
    summary: str
    document: type | None
    query: tuple[str, ...] = ()


OPERATIONS: Final = (
    Operation("cluster", "/cluster", "Totals, and what is degraded.", documents.ClusterDocument),
    Operation("daemons", "/daemons", "All live daemons.", documents.Daemons),
    Operation("daemon", "/daemon", "The daemon that answers.", documents.DaemonDocument),
    Operation("daemon_rows", "/daemon/rows", "The daemon that answers, and what it leads.", documents.DaemonPart),
    Operation(
        "topics", "/topics", "Topics in a line each.", documents.TopicPage, ("limit", "after", "contains", "order")
    ),
    Operation(
        "topic",
        "/topics/{topic}",
        "One topic with its segments and subscriptions.",
        documents.TopicDocument,
        ("scope",),
    ),
    Operation(
        "records",
        "/topics/{topic}/records",
        "The newest stored records of a topic. Needs a token whose user may consume the topic.",
        documents.RecordsDocument,
        ("segment", "key", "key_encoding", "last"),
    ),
    Operation("events", "/events", "The newest events.", EventList, ("topic", "since_ms", "before_ms", "limit")),
    Operation(
        "subscriptions",
        "/subscriptions",
        "Subscriptions in a line each.",
        documents.SubscriptionPage,
        ("limit", "after", "topic", "contains"),
    ),
    Operation(
        "subscription",
        "/topics/{topic}/subscriptions/{subscription}",
        "One subscription with its segments, consumers and backlog.",
        documents.SubscriptionDocument,
        ("scope",),
    ),
    Operation(
        "dead_letters",
        "/topics/{topic}/subscriptions/{subscription}/dead-letters",
        "The newest open dead letters. Needs a token whose user may consume the dead-letter topic.",
        documents.DeadLettersDocument,
        ("last",),
    ),
    Operation("scale", "/scale/{topic}/{subscription}", "How many consumers it can use now.", documents.ScaleDocument),
    Operation("openapi", "/openapi.json", "This document.", None),
)


def openapi_document(version: str, actions: Mapping[str, Any]) -> dict[str, Any]:
    own = [each.document for each in OPERATIONS if each.document is not None]
    _, components = msgspec.json.schema_components(
        [*own, documents.ActionDocument, documents.ErrorDocument], ref_template=_REF
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headgate status",
            "version": version,
            "summary": "Names are stable; a later version of headgate may add fields to version 1.",
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": ROOT}],
        "security": [{"token": []}, {"password": []}],
        "paths": {each.path: {"get": _operation(each)} for each in OPERATIONS}
        | {f"/actions/{name}": {"post": _action(name, each)} for name, each in actions.items()},
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic", "description": "The token as the password."},
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    in_path = re.findall(r"{(\w+)}", operation.path)
    refused = {"400": "A parameter is not valid.", "401": "A token is required."}
    if in_path:
        refused |= {"404": "There is no such topic or subscription."}
    if operation.document is not None:
        refused |= {"503": "The daemon that leads the shard does not answer; repeat the request."}
    if operation.document in (documents.RecordsDocument, documents.DeadLettersDocument, documents.ActionDocument):
        refused |= {"403": "The holder of the token may not do this, or there is no access file."}
    schema = (
        {"type": "object"} if operation.document is None else {"$ref": _REF.format(name=operation.document.__name__)}
    )
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in in_path),
            *({"name": name, "in": "query", "schema": PARAMETERS[name]} for name in operation.query),
        ],
        "responses": {
            "200": {"description": operation.summary, "content": {"application/json": {"schema": schema}}},
            **{status: _refusal(status, text) for status, text in refused.items()},
        },
    }


def _action(name: str, action: Any) -> dict[str, Any]:
    operation = Operation(name, f"/actions/{name}", action.summary, documents.ActionDocument, ("dry_run",))
    schema = msgspec.json.schema(action.struct)["$defs"]["Fields"]
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return _operation(operation) | {"requestBody": body}


def _refusal(status: str, text: str) -> dict[str, Any]:
    media = "text/plain" if status == "401" else "application/json"
    schema = {"type": "string"} if status == "401" else {"$ref": _REF.format(name="ErrorDocument")}
    return {"description": text, "content": {media: {"schema": schema}}}
