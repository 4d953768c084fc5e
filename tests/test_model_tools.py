"""The memory tools in no framework's terms, as an adapter uses them. What they do is tested through each adapter."""

from __future__ import annotations

import json

import pytest
from fakes import ADA, Ids

from vmem_core import (
    InMemoryStore,
    InvalidRequestError,
    MemorySession,
    StoreUnavailableError,
    ToolAnswer,
    has_memory_labels,
    holds_memory,
    is_memory_answer,
    is_memory_record,
    model_tools,
    read_json,
)


@pytest.fixture
def session() -> MemorySession:
    return MemorySession(InMemoryStore(), ADA, new_id=Ids())


def test_the_tools_come_by_their_names_in_one_order() -> None:
    assert list(model_tools()) == ["memory_remember", "memory_recall", "memory_revise", "memory_retract"]
    chosen = model_tools(include={"recall", "remember"}, prefix="notes")
    assert [(name, tool.name, tool.kind) for name, tool in chosen.items()] == [
        ("notes_remember", "notes_remember", "remember"), ("notes_recall", "notes_recall", "recall")
    ]  # fmt: skip
    assert model_tools(include=[]) == {}


@pytest.mark.parametrize(
    ("given", "path"),
    [({"include": "recall"}, "include"), ({"include": ["forget"]}, "include"), ({"prefix": "a b"}, "prefix")],
)
def test_a_wrong_choice_is_refused(given: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        model_tools(**given)
    assert refused.value.path == path


def test_a_schema_has_what_a_model_may_give_and_nothing_else() -> None:
    for tool in model_tools().values():
        schema = json.dumps(tool.arguments.model_json_schema())
        hidden = ("scope", "origin", "sources", "operation_id", "top_k", "call_id", "runtime")
        assert not [name for name in hidden if f'"{name}"' in schema]
        with pytest.raises(ValueError, match="Extra inputs"):
            tool.arguments.model_validate({"scope": "bob"})


async def test_a_call_is_answered_and_again_with_its_operation_id(session: MemorySession) -> None:
    remember = model_tools()["memory_remember"]
    given = {"text": "Ada likes tea.", "kind": None}
    first, again = [await remember.answer(session, given, call_id="c", operation_id="op-1") for _ in range(2)]
    assert (first.content["replayed"], again.content["replayed"], again.failed) == (False, True, False)
    assert first.artifact == (await session.receipt("op-1")).to_json()
    assert (await session.get("r1")).sources[0].tool_call_id == "c"


async def test_a_refusal_is_an_answer_and_a_failure_is_not(session: MemorySession) -> None:
    tools = model_tools()
    refused = await tools["memory_retract"].answer(session, {"id": "r9", "expected_revision": 1})
    assert refused == ToolAnswer({"error": "not_found"}, {"error": "not_found"}, failed=True)
    await session.store.close()
    with pytest.raises(StoreUnavailableError):
        await tools["memory_recall"].answer(session, {"query": "tea"})


def test_an_answer_is_compact_json_with_letters_as_they_are() -> None:
    assert ToolAnswer([{"text": "grüner Tee, お茶"}], None).text == '[{"text":"grüner Tee, お茶"}]'
    assert ToolAnswer.invalid_request("x" * 100).content == {"error": "invalid_request", "detail": "x" * 64}


async def test_every_answer_is_known_again_for_one_of_memory(session: MemorySession) -> None:
    tools = model_tools()
    change = {"id": "r1", "expected_revision": 1}
    answers = [
        await tools["memory_remember"].answer(session, {"text": "tea"}),
        await tools["memory_remember"].answer(session, {"text": "tea"}),  # already stored
        await tools["memory_recall"].answer(session, {"query": "tea"}),
        await tools["memory_revise"].answer(session, change | {"text": "coffee"}),
        await tools["memory_retract"].answer(session, change | {"expected_revision": 2}),
    ]
    assert all(is_memory_answer(read_json(answer.text)) for answer in answers)
    [found] = answers[2].content
    assert is_memory_record(found)
    assert is_memory_answer([found, found])


@pytest.mark.parametrize(
    "other",
    [
        None, "r1", 7, [], {}, [{}], ["r1"], {"id": "r1", "replayed": False},
        {"id": "r1", "revision": 1, "origin": "inferred", "status": "active", "replayed": False, "total": 9},
        [{"id": "r1", "revision": 1, "text": "x", "kind": "a", "origin": "Rome", "source_kinds": [], "status": "on"}],
        [{"id": "r1", "revision": 1, "text": "x", "kind": "a", "origin": [], "source_kinds": [], "status": "on"}],
    ],
)  # fmt: skip
def test_the_answer_of_another_tool_is_not_taken_for_one_of_memory(other: object) -> None:
    assert not is_memory_answer(other)
    assert not is_memory_record(other)


def test_what_a_retriever_found_is_known_by_its_labels() -> None:
    labels = {"revision": 1, "origin": "asserted", "source_kinds": ["user"], "match": "lexical", "more": None}
    assert has_memory_labels(labels)
    for other in (None, [], "match", {name: 1 for name in labels if name != "match"}):
        assert not has_memory_labels(other)


RECORD = {
    "id": "r1", "revision": 1, "text": "it's \"tea\" — 茶", "kind": "semantic", "origin": "asserted",
    "source_kinds": ["user"], "status": "active",
}  # fmt: skip
LABELS = {"revision": 1, "origin": "asserted", "source_kinds": "user", "match": "lexical"}


class Found:
    """A node or a document, as frameworks have them, in an answer with its sources, or a result of a server."""

    def __init__(self, **parts: object) -> None:
        self.__dict__.update(parts)

    @property
    def broken(self) -> None:
        raise AssertionError("nothing of a host's object is called")


@pytest.mark.parametrize(
    "value",
    [
        RECORD, [RECORD], ["a", {"b": (RECORD,)}], {"known": [RECORD], "total": 9},
        str(RECORD), json.dumps({"known": [RECORD]}), json.dumps(json.dumps([RECORD])),
        repr(json.dumps(RECORD)),
        json.dumps({"content": [{"type": "text", "text": json.dumps({"text": json.dumps(RECORD)})}]}),
        f"The answer is: {json.dumps(RECORD)} and more",
        {"done": {"id": "r1", "revision": 1, "origin": "inferred", "status": "active", "replayed": False}},
        LABELS, Found(metadata=LABELS), [Found(node=Found(metadata=LABELS))],
        Found(source_nodes=[Found(metadata=LABELS)]),
        Found(content=[Found(text=json.dumps(RECORD))]), Found(structuredContent={"result": [RECORD]}),
    ],
)  # fmt: skip
def test_a_record_of_memory_is_known_wherever_it_stands(value: object) -> None:
    assert holds_memory(value)


@pytest.mark.parametrize(
    "value",
    [
        None, 7, "tea", [], {}, {"known": []}, Found(), Found(metadata={"revision": 1}), object,
        {"id": "r1", "revision": 1, "origin": "asserted", "text": "tea"}, "the revision has an origin and source_kinds",
        json.dumps({"id": 7, "revision": 3, "origin": "Rome", "source_kinds": []}),
    ],
)  # fmt: skip
def test_what_only_looks_like_a_record_is_none(value: object) -> None:
    assert not holds_memory(value)


def test_a_value_may_hold_itself() -> None:
    value: list[object] = ["tea"]
    value.append({"again": value})
    assert not holds_memory(value)
    value.append([RECORD])
    assert holds_memory(value)


@pytest.mark.parametrize("kind", ["remember", "revise"])
@pytest.mark.parametrize("text", ["[forgotten]", "Ada likes [forgotten]."])
async def test_the_text_of_a_call_that_was_redacted_is_not_remembered(
    session: MemorySession, kind: str, text: str
) -> None:
    await session.remember("tea", origin="inferred")
    given = {"id": "r1", "expected_revision": 1, "text": text}
    answer = await model_tools()[f"memory_{kind}"].answer(session, given if kind == "revise" else {"text": text})
    assert (answer.content, answer.failed) == ({"error": "not_found"}, True)
    assert [record.text for record in (await session.list()).records] == ["tea"]
