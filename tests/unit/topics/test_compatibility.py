"""What is on the topics stays readable: for older versions what this one writes, and for this one what they wrote."""

import copy

import pytest

from tests.support import schemas
from tests.support.builders import usage, work
from topics import codec
from topics.outcomes import Outcome
from topics.records import Decision, Reply
from topics.telemetry import Telemetry

NOW = schemas.parts(codec.schemas())


def test_records_only_got_optional_fields():
    assert schemas.breaks(schemas.baseline(), NOW) == []


def test_what_is_written_now_is_to_be_readable_later():
    assert schemas.baseline() == NOW, "records changed; run: python -m tests.support.schemas"


USAGE = "usage.Usage"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda part: part["properties"].pop("template"), "lost template"),
        (lambda part: part["properties"].update(seconds=part["properties"].pop("service_s")), "lost service_s"),
        (lambda part: part["properties"].update(template={"type": "integer", "default": ""}), "template was"),
        (lambda part: part["properties"]["template"].update(default="-"), "template was"),
        (lambda part: part["required"].append("template"), "requires"),
        (lambda part: part["required"].remove("tenant"), "requires"),
        (lambda part: part.update(type="array"), "another kind"),
        (lambda part: part.update(additionalProperties=False), "another kind"),
    ],
)
def test_what_breaks_readers_is_noticed(change, why):
    later = copy.deepcopy(NOW)
    change(later[USAGE])
    (found,) = schemas.breaks(NOW, later)
    assert found.startswith(f"{USAGE}: ")
    assert why in found


def test_a_record_that_is_gone_and_words_that_changed_are_noticed():
    later = copy.deepcopy(NOW)
    del later["balances.Balances"]
    later["reply.Outcome"]["enum"].remove("expired")
    later["usage.Outcome"]["enum"].append("postponed")
    assert sorted(schemas.breaks(NOW, later)) == [
        "balances.Balances: is gone",
        "reply.Outcome: lost or got the words ['expired']",
        "usage.Outcome: lost or got the words ['postponed']",
    ]


def test_optional_fields_records_and_texts_may_be_added():
    later = copy.deepcopy(NOW)
    later[USAGE]["properties"]["later"] = {"type": "integer", "default": 0}
    later["later.Later"] = {"type": "object", "properties": {}, "required": []}
    assert schemas.breaks(NOW, later) == []
    described = {"$defs": {"A": {"type": "object", "description": "x", "properties": {"title": {"title": "T"}}}}}
    assert schemas.parts({"a": described}) == {"a.A": {"type": "object", "properties": {"title": {}}}}


@pytest.mark.parametrize(
    ("decode", "record"),
    [
        (codec.decode_work, work()),
        (codec.decode_usage, usage()),
        (codec.decode_answer, Reply(id="r1", outcome=Outcome.COMPLETED)),
        (codec.decode_decision, Decision(id="r1", stage="s", verdict="v", reason="r", at_s=1.0, by="w")),
        (codec.decode_telemetry, Telemetry(consumer="g", pool="p", state="ready", at_s=1.0)),
    ],
)
def test_a_reader_passes_over_what_a_later_version_adds(decode, record):
    written = codec.encode(record)
    assert codec.encode(decode(written.removesuffix(b"}") + b',"later":{"a":[1]}}')) == written
