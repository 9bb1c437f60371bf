"""docs/asyncapi.yaml is AsyncAPI 3, and says what the catalogue and the records say."""

import copy
import itertools
import json

import jsonschema
import pytest
import yaml

from tests.support import asyncapi
from tests.support.builders import body, usage, work
from topics import catalog, codec
from topics.outcomes import Outcome
from topics.records import Decision, Reply
from topics.settings import Settings

DOCUMENT = asyncapi.document()

REF = {
    "type": "object",
    "required": ["$ref"],
    "properties": {"$ref": {"type": "string"}},
    "additionalProperties": False,
}
TAGS = {"type": "array", "items": {"type": "object", "required": ["name"]}}


def closed(required, **properties):
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def each(schema):
    return {"type": "object", "additionalProperties": schema, "minProperties": 1}


TEXT, ANY = {"type": "string"}, {"type": "object"}
WORDS = {"type": "array", "items": TEXT, "minItems": 1}
KAFKA_CHANNEL = closed(
    ["bindingVersion"],
    partitions={"type": "integer", "minimum": 1},
    topicConfiguration=ANY,
    bindingVersion={"const": "0.5.0"},
)
SHAPE = closed(
    ["asyncapi", "info", "channels", "operations", "components"],
    asyncapi={"const": "3.0.0"},
    info=closed(["title", "version"], title=TEXT, version=TEXT, description=TEXT, license=closed(["name"], name=TEXT)),
    defaultContentType={"const": "application/json"},
    servers=each(closed(["host", "protocol"], host=TEXT, protocol={"const": "kafka"})),
    channels=each(
        closed(
            ["address", "messages"],
            address={"type": ["string", "null"]},
            description=TEXT,
            tags=TAGS,
            messages=each(REF),
            parameters=each(closed(["enum"], enum=WORDS, description=TEXT)),
            bindings=closed(["kafka"], kafka=KAFKA_CHANNEL),
        )
    ),
    operations=each(
        closed(
            ["action", "channel"],
            action={"enum": ["send", "receive"]},
            channel=REF,
            summary=TEXT,
            tags=TAGS,
            messages={"type": "array", "items": REF, "minItems": 1},
            reply=closed(
                ["channel"],
                address=closed(["location"], location={"type": "string", "pattern": r"^\$message\.(header|payload)#/"}),
                channel=REF,
                messages={"type": "array", "items": REF},
            ),
        )
    ),
    components=closed(
        [],
        messages=each(
            closed(
                ["payload"],
                name=TEXT,
                contentType=TEXT,
                payload=ANY,
                headers={"type": "object", "required": ["type"], "properties": {"type": {"const": "object"}}},
                correlationId=closed(["location"], location={"type": "string", "pattern": r"^\$message\.header#/"}),
                bindings=closed(["kafka"], kafka=closed(["key", "bindingVersion"], key=ANY, bindingVersion=TEXT)),
            )
        ),
        schemas=each(ANY),
    ),
)
"""What AsyncAPI 3.0.0 wants of the parts that are used here, and no other part."""


def problems(document):
    """All that is wrong with it, a line each."""
    found = [error.message for error in jsonschema.Draft202012Validator(SHAPE).iter_errors(document)]
    found += [f"{one} leads nowhere" for one in references(document) if at(document, one) is None]
    for name, operation in document["operations"].items():
        for part in filter(None, (operation, operation.get("reply"))):
            root = f"{part['channel']['$ref']}/messages/"
            found += [f"{name} has a message of another channel" for one in part.get("messages", ())
                      if not one["$ref"].startswith(root)]  # fmt: skip
        reply = operation.get("reply", {})
        # So the standard: what comes from the message cannot be fixed too.
        if "address" in reply and (at(document, reply["channel"]["$ref"]) or {}).get("address") is not None:
            found.append(f"{name} is answered at two addresses")
    for name, channel in document["channels"].items():
        open_words = {part[1:-1] for part in (channel["address"] or "").split(".") if part.startswith("{")}
        if open_words != channel.get("parameters", {}).keys():
            found.append(f"{name} does not say what {open_words} may be")
    return found


def references(value):
    if isinstance(value, dict):
        yield from [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from references(one)


def at(document, reference):
    found = document
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def test_the_file_is_what_the_code_says():
    assert asyncapi.PAGE.read_text() == asyncapi.text(), "run `python -m tests.support.asyncapi`"
    assert yaml.safe_load(asyncapi.PAGE.read_text()) == DOCUMENT


def test_it_is_asyncapi_and_every_reference_leads_somewhere():
    assert problems(DOCUMENT) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("asyncapi"),
        lambda d: d["operations"]["receive.requests"].update(action="publish"),
        lambda d: d["channels"]["replies"]["messages"]["Reply"].update({"$ref": "#/components/messages/Answer"}),
        lambda d: d["channels"]["requests"].pop("parameters"),
        lambda d: d["channels"]["answers"].update(address="replies"),
        lambda d: d["components"]["schemas"].pop("Tokens"),
        lambda d: d["components"]["messages"]["Work"].pop("payload"),
        lambda d: d["operations"]["send.usage"]["messages"].append({"$ref": "#/channels/replies/messages/Reply"}),
    ],
)
def test_what_would_be_wrong_is_noticed(spoil):
    document = copy.deepcopy(DOCUMENT)
    spoil(document)
    assert problems(document)


def addresses(channel):
    """All that its parameters allow; one empty for a channel without a fixed address."""
    words = {name: said["enum"] for name, said in channel.get("parameters", {}).items()}
    for chosen in itertools.product(*words.values()):
        yield (channel["address"] or "").format(**dict(zip(words, chosen, strict=True)))


def test_every_topic_is_in_one_channel():
    found = [address for channel in DOCUMENT["channels"].values() for address in addresses(channel)]
    theirs = [topic.name for topic in catalog.topics(Settings()) if topic.record != asyncapi.WITHOUT_RECORD]
    assert sorted(found) == sorted([*theirs, ""]), "the empty one is where answers go that a request names"


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("Request", body()),
        ("Request", b'{"id": "r1", "deadline_s": 4102444800.0, "body": {"messages": []}}'),
        ("Work", codec.encode(work())),
        ("Usage", codec.encode(usage())),
        ("Reply", codec.encode(Reply(id="r1", outcome=Outcome.COMPLETED))),
        ("Decision", codec.encode(Decision(id="r1", stage="s", verdict="v", reason="r", at_s=1.0, by="w"))),
    ],
)
def test_what_is_written_is_what_the_document_says(message, value):
    payload = DOCUMENT["components"]["messages"][message]["payload"]
    jsonschema.validate(json.loads(value), {**payload, "components": DOCUMENT["components"]})


def test_every_header_that_is_said_is_read():
    said = DOCUMENT["components"]["messages"]["Request"]["headers"]["properties"]
    traced = {"traceparent": b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": b"a=1"}
    for name in said:
        claims = codec.read_headers([(name, traced.get(name, b"2"))])
        assert claims != codec.Claims(), name
        assert claims.problem is None
