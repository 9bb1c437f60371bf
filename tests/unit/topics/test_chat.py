import base64
import json

import msgspec
import pytest

from topics.chat import Chat

decode = msgspec.json.Decoder(Chat).decode
PICTURE = "data:image/png;base64," + base64.b64encode(bytes(3000)).decode()
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def chat(*messages, **fields):
    return decode(json.dumps({"messages": list(messages), **fields}))


def says(content, role="user", **fields):
    return {"role": role, "content": content, **fields}


def compact(value):
    return len(json.dumps(value))


TEXTS = {
    "none": ([], 0),
    "a string": ([says("hello")], 5),
    "several": ([says("hello"), says("you", "assistant")], 8),
    "an empty string": ([says("")], 0),
    "no content": ([{"role": "assistant"}], 0),
    "null": ([says(None)], 0),
    "parts of text": ([says([{"type": "text", "text": "hello"}, {"type": "input_text", "text": "you"}])], 8),
    "no parts": ([says([])], 0),
    "a linked picture": ([says([{"type": "image_url", "image_url": {"url": "http://x/" + "y" * 500}}])], 0),
    "a picture inside": ([says([{"type": "image_url", "image_url": {"url": PICTURE}}])], 0),
    "a picture without a type": ([says([{"image_url": PICTURE}])], 0),
    "sound inside": ([says([{"type": "input_audio", "input_audio": {"data": "A" * 4000}}])], 0),
    "text beside a picture": ([says([{"type": "text", "text": "what is it?"}, {"image_url": PICTURE}])], 11),
    "a picture written as text": ([says(PICTURE)], len(PICTURE)),
    "a kind of part that nobody knows": ([says([{"type": "thinking", "thinking": "long"}])], len('"long"')),
    "a list of strings": ([says(["hello"])], len('["hello"]')),
    "an object": ([says({"a": 1})], len('{"a": 1}')),
    "calls of tools": ([says("", "assistant", tool_calls=[{"id": "1"}])], len('[{"id": "1"}]')),
    "the call of a function": ([says(None, function_call={"name": "f"})], len('{"name": "f"}')),
    "a name": ([says("hello", name="ann")], 5 + len('"ann"')),
    "thoughts": ([says(None, "assistant", reasoning_content="long")], len('"long"')),
    "a field that nobody knows": ([says("hello", later=["long"])], 5 + len('["long"]')),
    "text in a picture": ([says([{"type": "image_url", "image_url": PICTURE, "text": "hello"}])], 5),
    "text beside the text of a part": ([says([{"type": "text", "text": "a", "x": "long"}])], 1 + len('"long"')),
    "a role that is no word": ([says("hello", 7)], 5),
}


@pytest.mark.parametrize(("messages", "size_bytes"), TEXTS.values(), ids=TEXTS)
def test_text_is_what_the_model_reads_and_pictures_are_none(messages, size_bytes):
    assert chat(*messages).text_bytes() == size_bytes


def test_tools_and_functions_are_read_by_the_model_too():
    plain = chat(says("hello")).text_bytes()
    assert chat(says("hello"), tools=TOOLS).text_bytes() == plain + compact(TOOLS)
    assert chat(says("hello"), functions=TOOLS).text_bytes() == plain + compact(TOOLS)
    assert chat(says("hello"), tools=None, functions=[]).text_bytes() == plain


@pytest.mark.parametrize(
    "name",
    ["tool_choice", "function_call", "response_format", "documents", "chat_template", "chat_template_kwargs", "prefix"],
)
@pytest.mark.parametrize("value", ["long", {"text": "long"}, [{"text": "long"}]])
def test_what_can_come_into_the_prompt_beside_the_messages_counts(name, value):
    assert chat(says("hello"), **{name: value}).text_bytes() == 5 + compact(value)


MEDIA = {
    "text only": ([says("hello"), says([{"type": "text", "text": "x"}])], 0),
    "two pictures": ([says([{"type": "image_url", "image_url": {"url": PICTURE}}, {"image_url": "http://x"}])], 2),
    "a picture, a sound and a film": (
        [says([{"type": "input_image"}, {"type": "input_audio"}]), says([{"type": "video_url"}])], 3,
    ),
    "a type that is no word": ([says([{"type": 7, "text": "x"}])], 0),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "count"), MEDIA.values(), ids=MEDIA)
def test_other_parts_are_counted(messages, count):
    assert chat(*messages).media_parts() == count


@pytest.mark.parametrize(
    ("fields", "choices"),
    [({}, 1), ({"n": 3}, 3), ({"best_of": 5}, 5), ({"n": 2, "best_of": 8}, 8), ({"n": 4, "best_of": 2}, 4)],
)
def test_all_choices_that_the_engine_generates_count(fields, choices):
    assert chat(says("x"), **fields).choices() == choices


def test_a_template_is_what_requests_of_one_kind_share():
    system = says("You are a clerk.", "system")
    first = chat(system, says("hello"), tools=TOOLS).template()
    assert len(first) == 12
    assert int(first, 16) >= 0
    assert chat(system, says("something else", "user"), tools=TOOLS, max_tokens=9).template() == first


def test_another_instruction_or_another_tool_is_another_template():
    kinds = [
        chat(says("a", "system")),
        chat(says("b", "system")),
        chat(says("a", "system"), says("b", "system")),
        chat(says("ab", "system")),
        chat(says("a", "system"), tools=TOOLS),
        chat(tools=TOOLS),
        chat(tools=TOOLS[:0]),
    ]
    assert len({kind.template() for kind in kinds}) == len(kinds)


def test_a_developer_message_instructs_as_a_system_message_does():
    assert chat(says("a", "developer")).template() == chat(says("a", "system")).template()


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": None, "functions": None}])
def test_a_request_without_instructions_has_no_template(fields):
    assert chat(says("hello"), says("hi", "assistant"), **fields).template() == ""
