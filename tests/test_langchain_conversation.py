"""LangChain's messages as the core reads them: roles, ids of their own, what others wrote, where a turn begins."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_fakes import calling, tool_call

from vmem_core import InMemoryStore, MemorySession, Message, Scope
from vmem_langchain import MemoryRetriever, create_memory_tools
from vmem_langchain.conversation import batches, flat, read, turns

ADA = Scope(user_id="ada")
FOUND = {"id": "r1", "revision": 1, "text": "Ada likes tea.", "kind": "semantic", "origin": "inferred",
         "source_kinds": ["user"], "status": "active"}  # fmt: skip
WRITTEN = {"id": "r1", "revision": 1, "origin": "inferred", "status": "active", "replayed": False}


def one(message: Any) -> Message:
    [found] = flat(read([message], "t1"))
    return found


def result(content: Any, **more: Any) -> ToolMessage:
    return ToolMessage(content, tool_call_id="call_1", **more)


# --- roles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "role"),
    [
        (HumanMessage("hi"), "user"),
        (("user", "hi"), "user"),
        ({"role": "user", "content": "hi"}, "user"),
        (ChatMessage("hi", role="user"), "user"),
        (AIMessage("hi"), "assistant"),
        (AIMessageChunk("hi"), "assistant"),
        (ChatMessage("hi", role="assistant"), "assistant"),
        (SystemMessage("hi"), "system"),
        ({"role": "developer", "content": "hi"}, "system"),
        (ChatMessage("hi", role="developer"), "system"),
        (result("hi"), "tool"),
        (FunctionMessage("hi", name="f"), "tool"),
    ],
)
def test_each_kind_of_message_has_its_role(message: Any, role: str) -> None:
    assert (one(message).role, one(message).content, one(message).model_written) == (role, "hi", False)


def test_a_speaker_nobody_knows_is_not_read() -> None:
    assert (one(ChatMessage("hi", role="critic")).role, one(ChatMessage("hi", role="critic")).content) == ("tool", None)


def test_a_message_that_removes_another_is_none() -> None:
    assert read([RemoveMessage(id="m1")], "t1") == []


def test_a_call_and_its_result_keep_what_decides_about_trust() -> None:
    call, answer = flat(
        read([calling(tool_call("lookup", {"id": 1})), result("no", name="other", status="error", id="m2")], "t1")
    )
    assert [(c.id, c.name, c.args) for c in call.tool_calls] == [("call_1", "lookup", {"id": 1})]
    assert (answer.tool_call_id, answer.tool_name, answer.is_error) == ("call_1", "other", True)


def test_a_call_without_a_name_is_no_call() -> None:
    assert one(calling(tool_call(" ", {}))).tool_calls == ()


# --- what others wrote --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [HumanMessage("hi"), AIMessage("hi"), result("hi")])
def test_what_the_harness_added_is_written_by_a_model(message: Any) -> None:
    message.additional_kwargs["lc_source"] = "summarization"
    assert one(message).model_written


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([FOUND]),
        json.dumps([FOUND, {**FOUND, "id": "r2"}], indent=2),
        json.dumps([{**FOUND, "score": 0.5}]),
        json.dumps(WRITTEN),
        json.dumps({**WRITTEN, "already_stored": True}),
        [{"type": "text", "text": json.dumps([FOUND])}],
    ],
)
def test_answers_of_our_own_tools_are_recognised_under_any_name(content: Any) -> None:
    assert one(result(content, name="notes_recall")).model_written


@pytest.mark.parametrize(
    "content",
    ["[]", "[1]", "{}", "{", "[" * 5_000, "tea", '{"id":"r1"}', json.dumps([{"id": "x"}]), ["tea"], [],
     json.dumps([{**FOUND, "origin": "hearsay"}])],
)  # fmt: skip
def test_other_answers_are_not_taken_for_ours(content: Any) -> None:
    assert not one(result(content, name="lookup")).model_written


@pytest.mark.parametrize("prefix", ["memory", "notes"])
def test_the_tools_answer_what_is_recognised(prefix: str) -> None:
    session = MemorySession(InMemoryStore(), ADA)
    remember, recall = create_memory_tools(session, include=["remember", "recall"], prefix=prefix)
    for tool, args in ((remember, {"text": "Ada likes tea."}), (remember, {"text": "Ada likes tea."}),
                       (recall, {"query": "tea"})):  # fmt: skip
        assert one(tool.invoke({"name": tool.name, "args": args, "id": "call_1", "type": "tool_call"})).model_written


def test_documents_of_our_retriever_are_recognised() -> None:
    session = MemorySession(InMemoryStore(), ADA)
    session.sync.remember("Ada likes tea.")
    found = MemoryRetriever(session=session).invoke("tea")
    assert one(result("Ada likes tea.", artifact=found)).model_written
    assert not one(result("Ada likes tea.", artifact=[Document("x")])).model_written


@pytest.mark.parametrize(
    "message",
    [
        AIMessage([{"type": "web_search_call", "id": "w"}, {"type": "text", "text": "It says so."}]),
        AIMessage([{"type": "server_tool_result", "output": "x"}, {"type": "text", "text": "It says so."}]),
        AIMessage([{"type": "text", "text": "It says so.", "annotations": [{"type": "url_citation"}]}]),
        AIMessage([{"type": "text", "text": "It says so.", "citations": [{"url": "u"}]}]),
        AIMessage("It says so.", additional_kwargs={"tool_outputs": [{"type": "file_search_call"}]}),
        AIMessage("It says so.", response_metadata={"grounding_metadata": {"chunks": [1]}}),
    ],
)
def test_what_a_providers_own_tool_found_comes_first_and_untrusted(message: Any) -> None:
    found, said = flat(read([message], "t1"))
    assert (found.role, found.content, found.tool_call_id) == ("tool", None, None)
    assert said.role == "assistant"
    assert found.id != said.id


@pytest.mark.parametrize(
    "content",
    ["yes", ["yes"], [{"type": "text", "text": "yes", "annotations": []}], [{"type": "thinking", "thinking": "hm"}],
     [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]],
)  # fmt: skip
def test_an_assistant_by_itself_found_nothing(content: Any) -> None:
    assert one(AIMessage(content)).role == "assistant"


# --- ids ----------------------------------------------------------------------------------------------------------


def ids(*messages: Any, thread: str | None = "t1") -> list[str]:
    return [message.id for message in flat(read(messages, thread))]


def test_an_id_that_was_given_is_kept() -> None:
    assert ids(HumanMessage("a", id="m1"), AIMessage("b", id="m2")) == ["m1", "m2"]


def test_a_message_without_an_id_gets_the_same_one_each_time() -> None:
    talk = [HumanMessage("a"), AIMessage("b"), HumanMessage("a")]
    assert ids(*talk) == ids(*talk)
    assert len(set(ids(*talk))) == 3
    assert ids(*talk[1:])[0] == ids(*talk)[1]  # also when the beginning was cut off
    assert set(ids(*talk, thread="t2")).isdisjoint(ids(*talk))
    assert set(ids(*talk, thread=None)).isdisjoint(ids(*talk))


@pytest.mark.parametrize("given", ["", "  "])
def test_a_blank_id_is_none(given: str) -> None:
    assert ids(HumanMessage("a", id=given)) == ids(HumanMessage("a"))


def test_an_id_that_is_given_twice_names_the_first() -> None:
    found = ids(HumanMessage("a", id="m1"), HumanMessage("b", id="m1"), HumanMessage("c", id="m1"))
    assert found[0] == "m1"
    assert len(set(found)) == 3


def test_ids_and_contents_that_no_text_can_hold_do_no_harm() -> None:
    odd = [HumanMessage("a", id="\ud83d\x00"), HumanMessage([{"type": "image", "data": b"\xff"}]), AIMessage("\ud83d")]
    assert len(set(ids(*odd))) == 3


# --- turns --------------------------------------------------------------------------------------------------------


def parted(*messages: Any) -> list[list[Any]]:
    return [[one.original.content for one in turn] for turn in turns(read(messages, "t1"))]


def test_a_turn_begins_where_the_user_speaks() -> None:
    talk = [SystemMessage("s"), AIMessage("hello"), HumanMessage("a"), AIMessage("b"), HumanMessage("c")]
    assert parted(*talk) == [["s", "hello", "a", "b"], ["c"]]
    assert parted() == []
    assert parted(AIMessage("hello")) == [["hello"]]


def test_no_turn_begins_with_a_summary_or_an_observation() -> None:
    summary = HumanMessage("sum", additional_kwargs={"lc_source": "summarization"})
    talk = [HumanMessage("a"), summary, AIMessage("Action: f"), HumanMessage("Observation: x"), HumanMessage("c")]
    assert parted(*talk) == [["a", "sum", "Action: f", "Observation: x"], ["c"]]
    block = HumanMessage([{"type": "text", "text": " **Observation 2:** x"}])
    assert parted(HumanMessage("a"), block) == [["a", block.content]]


def test_short_turns_are_read_together_and_long_ones_are_not_parted() -> None:
    talk = [message for number in range(60) for message in (HumanMessage(f"q{number}"), AIMessage(f"a{number}"))]
    found = list(batches(turns(read(talk, "t1"))))
    assert [len(batch) for batch in found] == [50, 50, 20]
    assert [one.original.content for batch in found for one in batch] == [message.content for message in talk]
    long = [HumanMessage("q"), *(AIMessage(str(number)) for number in range(120))]
    assert [len(batch) for batch in batches(turns(read(long, "t1")))] == [121]


def test_turns_that_use_the_id_of_a_call_again_are_read_apart() -> None:
    turn = [HumanMessage("q"), calling(tool_call("f", {}, "call_0")), ToolMessage("x", tool_call_id="call_0")]
    assert [len(batch) for batch in batches(turns(read([*turn, *turn], "t1")))] == [3, 3]


class Failed:
    """What a server answers that could not do what it was asked."""

    isError = None

    def __init__(self) -> None:
        self.isError = True


@pytest.mark.parametrize(
    ("content", "artifact"),
    [
        ("stack trace", {"isError": True}),
        ("stack trace", Failed()),
        ("stack trace", {"raw_output": {"is_error": True}}),
        ('{"isError":true,"content":"stack trace"}', None),
        ('{"status":"error","detail":"stack trace"}', None),
        ([{"type": "text", "text": "stack trace", "isError": True}], None),
        ("meta=None content=[TextContent(text='stack trace')] isError=True", None),
    ],
)
def test_a_result_that_says_that_the_tool_failed_is_a_failed_one(content: Any, artifact: Any) -> None:
    message = ToolMessage(content, tool_call_id="call_1", name="lookup", artifact=artifact)
    assert one(message).is_error


@pytest.mark.parametrize("content", ['{"status":"shipped"}', '{"isError":false}', "isError=False", '["error"]'])
def test_a_result_that_says_nothing_of_the_kind_is_none(content: str) -> None:
    assert not one(ToolMessage(content, tool_call_id="call_1", name="lookup", artifact={"isError": False})).is_error
