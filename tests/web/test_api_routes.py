"""The API over HTTP: its documents are those that its OpenAPI document describes."""

import json
import re

import msgspec
import pytest

from headgate.views.subscriptions import BacklogInfo, SubscriptionInfo
from headgate.views.topics import TopicInfo
from web.actions import ACTIONS
from web.api.openapi import OPERATIONS, ROOT, openapi_document

pytestmark = pytest.mark.real_time

PATHS = {
    "cluster": "/cluster",
    "daemons": "/daemons",
    "daemon": "/daemon",
    "daemon_rows": "/daemon/rows",
    "topics": "/topics?limit=1&order=activity&contains=o",
    "topic": "/topics/orders",
    "subscriptions": "/subscriptions?topic=orders&contains=bill",
    "subscription": "/topics/orders/subscriptions/billing",
    "scale": "/scale/orders/billing",
}


async def document_at(harness, path):
    status, headers, text = await harness.get(f"{ROOT}{path}")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    return json.loads(text)


async def test_the_openapi_document_is_valid_and_served(harness):
    from openapi_spec_validator import validate  # noqa: PLC0415

    served = await document_at(harness, "/openapi.json")

    validate(served)
    assert served == json.loads(msgspec.json.encode(openapi_document("1.0", ACTIONS)))
    assert served["paths"].keys() == {each.path for each in OPERATIONS} | {f"/actions/{each}" for each in ACTIONS}


@pytest.mark.parametrize("name", [each.name for each in OPERATIONS if each.name in PATHS])
async def test_each_answer_has_the_form_that_the_openapi_document_promises(harness, name):
    from jsonschema import Draft202012Validator  # noqa: PLC0415

    described = openapi_document("1.0", ACTIONS)
    (operation,) = (each for each in OPERATIONS if each.name == name)
    schema = {"$ref": f"#/components/schemas/{operation.document.__name__}", "components": described["components"]}
    found = await document_at(harness, PATHS[name])

    assert [error.message for error in Draft202012Validator(schema).iter_errors(found)] == []
    required = set(described["components"]["schemas"][operation.document.__name__]["properties"])
    assert found.keys() == required, "every field is present, unknown ones as null"


@pytest.mark.parametrize(
    ("path", "field", "kind"),
    [
        ("/topics/orders", "topic", TopicInfo),
        ("/topics/orders/subscriptions/billing", "subscription", SubscriptionInfo),
        ("/topics/orders/subscriptions/billing", "backlog", BacklogInfo),
    ],
)
async def test_documents_contain_what_the_command_line_prints_as_json(harness, path, field, kind):
    found = (await document_at(harness, path))[field]
    value = msgspec.convert(found, kind, strict=False)

    assert json.loads(msgspec.json.encode(value)) == found


def test_units_are_the_last_part_of_a_name():
    units = {"ms", "seconds", "bytes", "records", "segments", "consumers", "second", "positions", "offset", "chunk"}
    schemas = openapi_document("1.0", ACTIONS)["components"]["schemas"]
    numbers = {
        (name, field)
        for name, schema in schemas.items()
        for field, value in schema.get("properties", {}).items()
        if re.search(r"(^|_)(ms|seconds|bytes)(_|$)", field)
    }
    assert numbers, "there are such fields"
    assert {field.rpartition("_")[2] for _, field in numbers} <= units


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/topics/nowhere", 404, "there is no topic 'nowhere'"),
        ("/topics/orders/subscriptions/x", 404, "topic 'orders' has no subscription 'x'"),
        ("/topics?limit=x", 400, "limit is 'x'; give a number from 1 to 1000"),
        ("/topics?limit=1&limits=2", 400, "there is no parameter 'limits' here"),
        ("/cluster?scope=daemon", 400, "there is no parameter 'scope' here; parameters: none"),
    ],
)
async def test_a_refusal_is_a_document_that_says_why(harness, path, status, message):
    found, headers, text = await harness.get(f"{ROOT}{path}")

    assert (found, headers["Content-Type"]) == (status, "application/json")
    assert json.loads(text)["error"].startswith(message)


async def test_a_leader_that_does_not_answer_is_a_503_to_be_repeated(harness):
    harness.source.problem = "daemon 'two' did not answer"
    status, headers, text = await harness.get(f"{ROOT}/cluster")

    assert (status, headers["Retry-After"], json.loads(text)) == (503, "2", {"error": "daemon 'two' did not answer"})
