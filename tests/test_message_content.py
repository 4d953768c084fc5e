"""What is read of a message that may be read: texts, JSON and sources; and messages that cannot be built."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_models import assistant, call, result, user
from test_messages import answered, read, seen

from vmem_core import ExtractionPolicy, InvalidRequestError, Message, Scope, Source, ToolCall, text_digest
from vmem_core.messages import ROLES, check_messages, read_messages

# ------------------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"ships": "Friday"}, '{"ships":"Friday"}'),
        ({"b": 1, "a": [1, 2.5, None, True]}, '{"b":1,"a":[1,2.5,null,true]}'),
        ({"city": "Zürich", "茶": "咖啡 ☕"}, '{"city":"Zürich","茶":"咖啡 ☕"}'),
        ([1, 2], "[1,2]"),
        ([{"id": 1}, {"id": 2}], '[{"id":1},{"id":2}]'),
        (42, "42"),
        (2.5, "2.5"),
        (False, "false"),
        ({}, "{}"),
        ("plain text", "plain text"),
        ('{"kept": "as it is"}', '{"kept": "as it is"}'),
        ({"nul": "\x00", "half": "\ud83d"}, '{"nul":"\\u0000","half":"\ufffd"}'),
        ({1: "a", None: "b"}, '{"1":"a","null":"b"}'),
    ],
)
def test_a_tools_result_that_is_no_text_is_read_as_compact_json(content: Any, text: str) -> None:
    reading = read(*answered(content))
    assert seen(reading) == [("tool", text)]
    assert reading.sources[0].source.digest == text_digest(text)


@pytest.mark.parametrize("content", [b"bytes", {"a": {1, 2}}, object(), {("a",): 1}, bytearray(b"x")])
def test_a_tools_result_that_json_cannot_hold_is_skipped_and_noted(content: Any) -> None:
    reading = read(*answered(content))
    assert (seen(reading), reading.notes, reading.read_ids) == ([], {"block_skipped": 1}, ())


def test_a_tools_result_that_is_too_deep_for_json_is_skipped_and_noted() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert read(*answered({"deep": deep})).notes == {"block_skipped": 1}


BLOCKS = [
    {"type": "text", "text": "one"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    "two",
    {"type": "thinking", "thinking": "hidden", "text": "hidden"},
    {"type": "reasoning", "text": "hidden"},
    {"type": "input_audio", "input_audio": {"data": "AAAA"}},
    {"type": "file", "file": {"text": "hidden"}},
    {"type": "tool_use", "id": "c9", "name": "lookup", "input": {"q": "hidden"}},
    {"text": "three"},
    {"type": "text"},
    {"type": "text", "text": None},
    None,
    7,
    b"bytes",
    ["hidden"],
]


@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_texts_of_blocks_are_read_in_order_and_the_others_skipped_and_noted(role: str) -> None:
    blocks = [one for one in BLOCKS if isinstance(one, str) or (isinstance(one, dict) and one.get("type"))]
    blocks = blocks if role == "tool" else BLOCKS
    message = result("m2", "c1", blocks) if role == "tool" else Message("m2", role, blocks)  # type: ignore[arg-type]
    reading = read(call("m1", "c1", "lookup"), message, assistant=True)
    expected = "one\ntwo" if role == "tool" else "one\ntwo\nthree"
    assert seen(reading) == [(role, expected)]
    assert reading.notes == {"block_skipped": len(blocks) - expected.count("\n") - 1}
    assert reading.sources[0].source.digest == text_digest(expected)


@pytest.mark.parametrize(
    "content", [None, "", " \n", [], [None], [{"type": "image"}], "\u200b", [{"type": "text", "text": ""}], b"bytes", 7]
)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_message_without_text_is_not_read(role: Any, content: Any) -> None:
    reading = read(Message("m1", role, content), assistant=True)
    assert (reading.sources, reading.read_ids) == ((), ())
    assert set(reading.notes) <= {"block_skipped"}


def test_no_content_beside_tool_calls_is_fine() -> None:
    assert seen(read(*answered("Friday"), assistant=True)) == [("tool", "Friday")]


def test_only_so_many_characters_of_a_message_are_read_and_noted() -> None:
    megabyte = "x" * 1_000_000
    reading = read(user("m1", "fits"), *(Message(m.id + "t", m.role, m.content, tool_calls=m.tool_calls,
                   tool_call_id=m.tool_call_id) for m in answered(megabyte)))  # fmt: skip
    assert [len(text) for _, text in seen(reading)] == [4, 20_000]
    assert reading.notes == {"truncated": 1}
    assert reading.sources[1].source.digest == text_digest("x" * 20_000)
    exact = read(user("m1", "x" * 20_000), user("m2", "y" * 20_001))
    assert [len(text) for _, text in seen(exact)] == [20_000, 20_000]
    assert exact.notes == {"truncated": 1}
    as_json = read(*answered({"rows": ["é" * 10] * 100_000}), most_chars=50)
    assert seen(as_json)[0][1] == json.dumps({"rows": ["é" * 10] * 9}, ensure_ascii=False, separators=(",", ":"))[:50]


def test_what_no_store_can_hold_is_mended_in_texts_ids_and_names() -> None:
    messages = (
        Message("m\x001", "user", "te\x00a \ud83d", run_id="run\ud83d"),
        assistant("m2", tool_calls=(ToolCall("c\x00", "look\ud83dup"),)),
        result("m3", "c\x00", "Fri\x00day"),
    )
    reading = read(*messages, trusted=("look\ufffdup",))
    assert seen(reading) == [("user", "te\ufffda \ufffd"), ("tool", "Fri\ufffdday")]
    first, second = (one.source for one in reading.sources)
    assert (first.message_id, first.run_id) == ("m\ufffd1", "run\ufffd")
    assert (second.tool_call_id, second.tool_name) == ("c\ufffd", "look\ufffdup")
    assert first.digest == text_digest("te\ufffda \ufffd")


# ------------------------------------------------------------------------------------------------------------ sources


def test_a_users_source_has_message_run_and_chat() -> None:
    (one,) = read(user("m1", "tea", run_id="run-1")).sources
    assert one.source == Source("user", text_digest("tea"), message_id="m1", chat_id="chat-7", run_id="run-1")


def test_a_tools_source_adds_call_and_name() -> None:
    (one,) = read(*answered({"ships": "Friday"}, run_id="run-1")).sources
    assert one.source == Source(
        "tool", text_digest('{"ships":"Friday"}'), message_id="m2", chat_id="chat-7", run_id="run-1",
        tool_call_id="c1", tool_name="lookup",
    )  # fmt: skip


def test_an_assistants_source_has_no_call() -> None:
    (one,) = read(call("m1", "c1", "lookup", "looking"), assistant=True).sources
    assert one.source == Source("assistant", text_digest("looking"), message_id="m1", chat_id="chat-7")


def test_a_scope_without_a_chat_gives_sources_without_one() -> None:
    policy = ExtractionPolicy()
    reading = read_messages([user("m1", "tea")], policy, Scope(user_id="ada"), most_chars=10)
    assert reading.sources[0].source.chat_id is None


@pytest.mark.parametrize("blank", ["", " ", "\u200b"])
def test_a_blank_run_id_is_none_and_a_blank_call_id_matches_nothing(blank: str) -> None:
    (one,) = read(user("m1", "tea", run_id=blank)).sources
    assert one.source.run_id is None
    assert seen(read(call("m1", blank, "lookup"), result("m2", blank, "secret"))) == []


def test_a_message_that_was_processed_is_not_read_again() -> None:
    reading = read(user("m1", "tea"), user("m2", "coffee"), processed={"m1"})
    assert (seen(reading), reading.read_ids) == ([("user", "coffee")], ("m2",))
    assert reading.notes == {"already_processed": 1}


# ---------------------------------------------------------------------------------------------- what cannot be built


@pytest.mark.parametrize("message_id", ["", " ", "\n", "\u200b", None, 7, b"m1"])
def test_a_message_needs_an_id(message_id: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Message(message_id, "user", "secret")
    assert caught.value.path == "message.id"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("role", ["User", "human", "ai", "", None, 7])
def test_a_message_needs_a_known_role(role: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Message("m1", role, "secret")
    assert caught.value.path == "message.role"


def test_every_role_of_the_list_is_taken() -> None:
    assert [Message("m1", role, "x").role for role in ROLES] == list(ROLES)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"tool_calls": [{"id": "c1", "name": "lookup"}]}, "message.tool_calls"),
        ({"tool_calls": "lookup"}, "message.tool_calls"),
        ({"tool_call_id": 7}, "message.tool_call_id"),
        ({"tool_name": b"lookup"}, "message.tool_name"),
        ({"run_id": 1}, "message.run_id"),
    ],
)
def test_a_wrong_part_of_a_message_is_named(more: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Message("m1", "user", "secret", **more)
    assert caught.value.path.startswith(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "path"),
    [(("c1", ""), "tool_call.name"), (("c1", None), "tool_call.name"), ((7, "lookup"), "tool_call.id"),
     (("c1", "lookup", "text"), "tool_call.args")],
)  # fmt: skip
def test_a_wrong_part_of_a_tool_call_is_named(given: tuple[Any, ...], path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ToolCall(*given)
    assert caught.value.path == path


def test_ids_must_be_unique_in_a_batch() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_messages([user("m1", "secret"), user("m2", "b"), user("m1", "c")])
    assert caught.value.path == "messages[2].id"
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidRequestError):
        check_messages([user("m\x00", "a"), user("m\ufffd", "b")])


@pytest.mark.parametrize("messages", [None, "text", user("m1", "x"), [{"id": "m1"}], [None], 7, {"m1": "x"}])
def test_anything_but_a_list_of_messages_is_refused(messages: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_messages(messages)
    assert caught.value.path.startswith("messages")


@pytest.mark.parametrize("trusted", ["lookup", [7], [None], {"lookup", b"x"}])
def test_trusted_tools_must_be_names(trusted: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ExtractionPolicy(trusted_tools=trusted)
    assert caught.value.path == "trusted_tools"


def test_a_policy_trusts_no_tool_and_no_assistant_by_default() -> None:
    assert (ExtractionPolicy().trusted_tools, ExtractionPolicy().read_assistant) == (frozenset(), False)
    assert seen(read(*answered("secret"), assistant("m3", "secret"), trusted=())) == []
