"""All topics as an AsyncAPI 3 document, docs/asyncapi.yaml, which `python -m tests.support.asyncapi` writes."""

import json
import re
import tomllib
from pathlib import Path

import yaml

from topics import catalog, codec
from topics.settings import LOCAL_SERVERS, Settings

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "asyncapi.yaml"
BODY = "OpenAI body or envelope"
WITHOUT_RECORD = "Faust"
"""What a library writes for itself: nobody else reads it."""
FAMILIES = (
    (re.compile(r"requests\.(?P<priority>\w+)\.(?P<length>\w+)"), "requests"),
    (re.compile(r"lanes\.(?P<pool>[\w-]+)\.(?P<tier>\w+)\.(?P<length>\w+)"), "lanes.{pool}"),
    (re.compile(r"deferred\.(?P<delay>\w+)"), "deferred"),
    (re.compile(r"retries\.(?P<delay>\w+)"), "retries"),
)
"""Names of topics that differ in words, and the name of each family; a pool is one of its own."""
MEANING = {
    "priority": "The class that is claimed; admission corrects it.",
    "length": "The length class by predicted engine time; on `requests` a claim, which admission corrects.",
    "tier": "The priority, or `aged` for the copy of a request that has waited too long.",
    "delay": "After how long a record is looked at again.",
}
SAYS = {
    "id": "The request's id: the same id is answered once.",
    "tenant": "Who pays.",
    "user_tier": "By which rules may lower the class.",
    "source": "By which rules may lower the class.",
    "interface": "The way it came, `topic` or `http`; it is only counted.",
    "path": "Set by a gateway; by which rules may lower the class.",
    "token": "A JWT that proves what the record claims (`identity.mode` signed).",
    "priority": "The class that is asked for.",
    "deadline_s": "Unix seconds, after which the answer is of no use.",
    "reply_topic": "Where the answer goes; one that the settings allow.",
    "traceparent": "W3C trace context; comes back with the answer, continued where spans are made.",
    "tracestate": "W3C trace context; comes back with the answer.",
}
CORRELATION = "Any bytes; they come back unchanged under the same name."
PARTITION = "Partition of the reply topic, as digits or four bytes, big endian."


def document():
    """The whole, for the default settings."""
    settings = Settings()
    families = _families(settings)
    replies = settings.topic(catalog.default_reply_name(settings))
    return {
        "asyncapi": "3.0.0",
        "info": _info(),
        "defaultContentType": "application/json",
        "servers": {"local": {"host": LOCAL_SERVERS, "protocol": "kafka"}},
        "channels": {name: _channel(name, same) for name, same in families.items()} | {"answers": _answers(replies)},
        "operations": {
            f"{action}.{name}": _operation(action, name, same[0], processes)
            for name, same in families.items()
            for action, processes in (("receive", same[0].readers), ("send", same[0].writers))
            if _ours(processes)
        },
        "components": {"messages": _messages(families), "schemas": _schemas()},
    }  # fmt: skip


def text():
    """The same as YAML."""
    head = "# Made by `python -m tests.support.asyncapi` from topics/catalog.py and topics/records.py.\n"
    return head + yaml.safe_dump(document(), sort_keys=False, width=120, allow_unicode=True)


def _info():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "title": "Rampmeter",
        "version": project["version"],
        "description": f"{project['description']}. Topics of the default settings; all names take the prefix of the"
        " settings. Upstream writes to the channels tagged `public` that are received, and reads those that are sent.",
        "license": {"name": project["license"]},
    }


def _families(settings):
    """Alike topics of the catalogue together, by the name of their channel."""
    found = {}
    for topic in catalog.topics(settings):
        if topic.record != WITHOUT_RECORD:
            found.setdefault(_family(topic.name), []).append(topic)
    return found


def _family(name):
    for pattern, family in FAMILIES:
        if match := pattern.fullmatch(name):
            return family.format(**match.groupdict())
    return name


def _words(name, same):
    """The address of alike topics and the words that it leaves open."""
    for pattern, family in FAMILIES:
        if not all(pattern.fullmatch(topic.name) for topic in same):
            continue
        found = [pattern.fullmatch(topic.name).groupdict() for topic in same]
        words = {
            word: list(dict.fromkeys(one[word] for one in found)) for word in found[0] if f"{{{word}}}" not in family
        }
        return ".".join([name, *(f"{{{word}}}" for word in words)]), words
    return name, {}


def _channel(name, same):
    first = same[0]
    address, words = _words(name, same)
    made = {"address": address, "tags": _tags(first), "messages": {one: _ref("messages", one) for one in _named(first)}}
    if words:
        made["parameters"] = {word: {"enum": values, "description": MEANING[word]} for word, values in words.items()}
    kept = _kept(first)
    binding = {
        "partitions": first.partitions,
        **({"topicConfiguration": kept} if kept else {}),
        "bindingVersion": "0.5.0",
    }
    return {**made, "bindings": {"kafka": binding}}


def _kept(topic):
    """What the broker is told of a topic, as far as the binding has words for it."""
    kept = {"cleanup.policy": topic.config["cleanup.policy"].split(",")} if "cleanup.policy" in topic.config else {}
    numbers = {key: int(topic.config[key]) for key in ("retention.ms", "max.message.bytes") if key in topic.config}
    return {**kept, **numbers}


def _answers(replies):
    return {
        "address": None,
        "description": f"The topic that the request names, `{replies}` if it names none.",
        "tags": [{"name": "public"}],
        "messages": {one: _ref("messages", one) for one in ("Chunk", "Reply")},
    }


def _operation(action, name, topic, processes):
    made = {
        "action": action,
        "channel": {"$ref": f"#/channels/{name}"},
        "summary": f"{', '.join(_ours(processes))} {'reads' if action == 'receive' else 'writes'} it.",
        "tags": [{"name": one} for one in _ours(processes)],
        "messages": [{"$ref": f"#/channels/{name}/messages/{one}"} for one in _named(topic)],
    }
    if topic.record == BODY and action == "receive":
        made["reply"] = {
            "address": {"location": "$message.header#/rampmeter_reply_topic"},
            "channel": {"$ref": "#/channels/answers"},
            "messages": [{"$ref": f"#/channels/answers/messages/{one}"} for one in ("Chunk", "Reply")],
        }
    return made


def _ours(processes):
    return [one for one in processes if one != "upstream"]


def _tags(topic):
    return [{"name": "public" if "upstream" in (*topic.writers, *topic.readers) else "internal"}]


def _named(topic):
    return ["Request"] if topic.record == BODY else topic.record.split(", ")


def _messages(families):
    """Each once, with the key of the topics that carry it."""
    keys = {name: same[0].key for same in families.values() for name in _named(same[0])}
    return {name: _message(name, key) for name, key in sorted(keys.items())}


def _message(name, key):
    payload = (
        {"anyOf": [_ref("schemas", "Envelope"), _ref("schemas", "ChatBody")]}
        if name == "Request"
        else _ref("schemas", name)
    )
    made = {
        "name": name,
        "contentType": "application/json",
        "payload": payload,
        "bindings": {"kafka": {"key": {"type": "string", "description": f"The {key}."}, "bindingVersion": "0.5.0"}},
    }
    if name not in {"Request", "Reply", "Chunk"}:
        return made
    return {
        **made,
        "headers": _asking() if name == "Request" else _answering(),
        "correlationId": {"location": f"$message.header#/{codec.CORRELATION_HEADER}"},
    }


def _asking():
    said = {name: SAYS[target] for name, target in codec._TEXT_HEADERS.items()}
    said |= dict.fromkeys(codec._CORRELATION_HEADERS, CORRELATION)
    said |= dict.fromkeys(codec._PARTITION_HEADERS, PARTITION)
    return _headers(said)


def _answering():
    said = dict.fromkeys(codec._CORRELATION_HEADERS, "The sender's own, under the name that it used.")
    said |= {name: SAYS[name] for name in ("traceparent", "tracestate")}
    return _headers({codec.ID_HEADER: SAYS["id"], **said})


def _headers(said):
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": text} for name, text in said.items()},
    }


def _schemas():
    """Those of the records, side by side; one of the same name is the same."""
    found = {"ChatBody": _chat()}
    for schema in codec.schemas().values():
        moved = json.loads(json.dumps(schema).replace("#/$defs/", "#/components/schemas/"))
        for name, one in moved["$defs"].items():
            assert found.setdefault(name, one) == one, f"two records are called {name}"
    return dict(sorted(found.items()))


def _chat():
    return {
        "type": "object",
        "title": "ChatBody",
        "description": "The body of an OpenAI chat completion; it reaches the engine byte for byte.",
        "required": ["messages"],
        "properties": {
            "model": {"type": "string"},
            "messages": {"type": "array", "items": {"type": "object"}},
            "max_tokens": {"type": "integer"},
            "stream": {"type": "boolean"},
        },
    }


def _ref(kind, name):
    return {"$ref": f"#/components/{kind}/{name}"}


if __name__ == "__main__":
    PAGE.write_text(text())
