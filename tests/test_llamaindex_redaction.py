"""Forgotten records in chat stores and saved contexts of LlamaIndex."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from llama_index.core.tools import RetrieverTool
from llama_index.core.workflow import Context, JsonPickleSerializer
from llamaindex_fakes import Call, ScriptedLLM, recalling, remembering
from llamaindex_memory_fakes import as_json, chat_stores, function_agent, known, learning, react_agent, roles, shown
from workflows.errors import WorkflowCancelledByUser

from vmem_core import InvalidRequestError, MemorySession, run_sync
from vmem_core.context import FORGOTTEN
from vmem_llamaindex import (
    MemoryRetriever,
    VersionedFunctionAgent,
    VersionedMemory,
    aredact_chat_store,
    create_memory_tools,
    redact_chat_store,
    redact_context,
)
from vmem_llamaindex.memory_history import ProcessChatStore
from vmem_llamaindex.scrubbing import Scrubber

TEXTS = ["Ada likes tea.", 'Café "Größe" 咖啡 isn\'t far.\nNext <<door>> \\ to it.']
ASKED = "What do I like?"


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Callable[[], SQLAlchemyChatStore]]:
    async with chat_stores(tmp_path) as make:
        yield make


def holds(value: Any, text: str) -> bool:
    """Whether a text is anywhere in a value, however often it is JSON inside JSON."""
    if isinstance(value, dict):
        return any(holds(one, text) for pair in value.items() for one in pair)
    if isinstance(value, list):
        return any(holds(one, text) for one in value)
    if not isinstance(value, str):
        return False
    try:
        inner = json.loads(value)
    except ValueError:
        inner = None
    return text in value or repr(text)[1:-1] in value or (isinstance(inner, dict | list | str) and holds(inner, text))


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


async def talked(session: MemorySession, text: str, memory: Any, kind: str = "FunctionAgent") -> tuple[str, Any]:
    """A turn in which a model remembers a text and recalls it; the record, and the context of the run."""
    steps = {ASKED: [remembering(text, "c1"), recalling(text, "c2")]}
    make = {"FunctionAgent": function_agent, "ReActAgent": react_agent}[kind]
    agent = make(steps, create_memory_tools(session))
    ctx = Context(agent)
    await agent.run(ASKED, memory=memory, ctx=ctx)
    [record] = (await session.list()).records
    await session.forget(record.id)
    return record.id, ctx


# --- chat stores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["FunctionAgent", "ReActAgent"])
@pytest.mark.parametrize("place", ["process", "database"])
async def test_copies_in_a_chat_are_found_by_the_records_id(
    named: str, database: Any, tmp_path: Path, text: str, kind: str, place: str
) -> None:
    session, _ = learning()
    memory = VersionedMemory.from_session(
        session, binding=named, extract="off", chat_store=database() if place == "database" else None
    )
    record_id, _ = await talked(session, text, memory, kind)
    before = await memory.aget_all()
    assert any(holds(one.model_dump(mode="json"), text) for one in before)
    report = await aredact_chat_store(memory.sql_store, memory.session_id, record_ids=[record_id])
    after = await memory.aget_all()
    assert not any(holds(one.model_dump(mode="json"), text) for one in after)
    assert FORGOTTEN in as_json([one.model_dump(mode="json") for one in after])
    assert report.rewrites
    assert report.complete
    assert report.scrubbed
    assert report.values == len(before)
    assert report.rewritten >= 1
    assert roles(after) == roles(before)
    assert [one.additional_kwargs for one in after] == [one.additional_kwargs for one in before]
    if place == "database":
        for word in ("Ada likes tea", "Größe", "咖啡"):
            for stored in (word, json.dumps(word)[1:-1], json.dumps(json.dumps(word))[2:-2]):
                assert stored.encode() not in files(tmp_path)
    again = await aredact_chat_store(memory.sql_store, memory.session_id, record_ids=[record_id], texts=[text])
    assert again.rewritten == 0


async def test_calls_and_results_stay_together_and_a_conversation_goes_on(named: str, database: Any) -> None:
    session, _ = learning()
    memory = VersionedMemory.from_session(session, binding=named, extract="off", chat_store=database())
    record_id, _ = await talked(session, TEXTS[0], memory)
    await aredact_chat_store(memory.sql_store, record_ids=[record_id])
    messages = await memory.aget_all()
    calls = [block for one in messages for block in one.blocks if isinstance(block, ToolCallBlock)]
    results = [one.additional_kwargs["tool_call_id"] for one in messages if one.role == "tool"]
    assert [call.tool_call_id for call in calls] == results == ["c1", "c2"]
    assert calls[0].tool_kwargs == {"text": FORGOTTEN}
    assert json.loads(str(messages[2].content))["id"] == record_id
    [found] = json.loads(str(messages[4].content))
    assert (found["id"], found["text"]) == (record_id, FORGOTTEN)
    agent = function_agent()
    await agent.run("And now?", memory=memory)
    assert FORGOTTEN in as_json([one.content for one in shown(agent)[0]])


async def test_archived_messages_are_reached_and_stay_archived(database: Any) -> None:
    store = database()
    await store.add_messages("a", [ChatMessage(role="user", content=f"{number}: tea leaves") for number in range(4)])
    await store.archive_oldest_messages("a", 2)
    await store.add_message("b", ChatMessage(role="user", content="tea leaves of another"))
    report = await aredact_chat_store(store, "a", record_ids=[], texts=["tea leaves"])
    assert (report.values, report.rewritten) == (4, 4)
    archived = await store.get_messages("a", status=MessageStatus.ARCHIVED)
    assert [one.content for one in archived] == [f"{number}: {FORGOTTEN}" for number in range(2)]
    assert [one.content for one in await store.get_messages("a")] == [f"{number}: {FORGOTTEN}" for number in (2, 3)]
    assert [one.content for one in await store.get_messages("b")] == ["tea leaves of another"]
    report = await aredact_chat_store(store, record_ids=[], texts=["tea leaves"])
    assert (report.values, report.rewritten) == (5, 1)


async def test_upstreams_own_memory_is_reached_as_well(database: Any) -> None:
    session, _ = learning()
    store = database()
    record_id, _ = await talked(session, TEXTS[0], Memory.from_defaults(session_id="s", chat_store=store))
    report = await aredact_chat_store(store, "s", record_ids=[record_id])
    assert report.complete
    assert not holds([one.model_dump(mode="json") for one in await store.get_messages("s")], TEXTS[0])


def test_sync_code_does_the_same() -> None:
    store = ProcessChatStore()
    run_sync(store.add_message("a", ChatMessage(role="user", content="tea leaves")))
    report = redact_chat_store(store, "a", record_ids=[], texts=["tea leaves"])
    assert (report.rewritten, [one.content for one in run_sync(store.get_messages("a"))]) == (1, [FORGOTTEN])


async def test_old_bytes_that_cannot_be_taken_out_are_told_of(database: Any) -> None:
    store, reader = database(), database()
    await store.add_message("a", ChatMessage(role="user", content="tea leaves"))
    assert not (await aredact_chat_store(store, record_ids=[], texts=["tea leaves"], vacuum=False)).scrubbed
    await store.add_message("a", ChatMessage(role="user", content="tea leaves"))
    engine, _ = await reader._setup_connections()
    async with engine.connect() as connection:
        await connection.exec_driver_sql("BEGIN")
        (await connection.exec_driver_sql("SELECT * FROM chat")).fetchone()
        # A reader: the write itself waits for it, so it is gone when the file is to be rewritten.
        await connection.rollback()
    assert (await aredact_chat_store(store, record_ids=[], texts=["tea leaves"])).scrubbed


async def changes(*args: Any, **more: Any) -> Any:
    raise AssertionError("it was to be left as it is")


class Foreign(AsyncDBChatStore):
    """A chat store of somebody else's, which has no more than the verbs."""

    inner: Any
    add_message = add_messages = set_messages = count_messages = changes
    delete_message = delete_messages = delete_oldest_messages = archive_oldest_messages = changes

    async def get_keys(self) -> list[str]:
        return list(await self.inner.get_keys())

    async def get_messages(self, key: str, status: Any = MessageStatus.ACTIVE, **more: Any) -> list[ChatMessage]:
        return list(await self.inner.get_messages(key, status=status, **more))


async def test_an_unknown_chat_store_is_left_as_it_is_and_its_copies_are_named(named: str) -> None:
    session, _ = learning()
    memory = VersionedMemory.from_session(session, binding=named, extract="off", session_id="s")
    record_id, _ = await talked(session, TEXTS[0], memory)
    report = await aredact_chat_store(Foreign(inner=memory.sql_store), record_ids=[record_id], texts=["done"])
    assert not report.rewrites
    assert not report.complete
    assert {(copy.place, copy.record_ids) for copy in report.copies} == {
        ("message 1 of s", (record_id,)),
        ("message 3 of s", (record_id,)),
        ("message 4 of s", (record_id,)),
        ("message 5 of s", ()),
    }
    assert holds([one.model_dump(mode="json") for one in await memory.aget_all()], TEXTS[0])


# --- contexts -----------------------------------------------------------------------------------------------------


async def stopped(make_agent: Callable[[Any], Any], memory: Any, **more: Any) -> tuple[Any, dict[str, Any]]:
    """An agent that was stopped in its last tool, and the context that was saved then."""
    started, never = asyncio.Event(), asyncio.Event()

    async def slow(number: int) -> str:
        """Slow the first time."""
        if not started.is_set():
            started.set()
            await never.wait()
        return "late"

    agent = make_agent(slow)
    handler = agent.run(ASKED, memory=memory)
    await started.wait()
    while True:
        data = json.loads(json.dumps(handler.ctx.to_dict(**more)))
        if [name for name, one in data["workers"].items() if one["in_progress"]] == ["call_tool"]:
            break
        await asyncio.sleep(0)
    await handler.cancel_run()
    with pytest.raises(WorkflowCancelledByUser):
        await handler
    return agent, data


def remembering_agent(session: MemorySession, text: str) -> Callable[[Any], Any]:
    steps = [remembering(text, "c1"), recalling(text, "c2"), [Call("slow", {"number": 1}, "c3")]]
    retriever = RetrieverTool.from_defaults(MemoryRetriever(session), name="look", description="Look.")
    steps.insert(2, [Call("look", {"input": text}, "c4")])

    class Deaf(ScriptedLLM):
        def answers(self, messages: Any) -> list[Any]:
            return []

    return lambda slow: VersionedFunctionAgent(llm=Deaf(steps), tools=[*create_memory_tools(session), retriever, slow])


@pytest.mark.parametrize("text", TEXTS)
async def test_a_context_in_the_middle_of_a_run_is_cleaned_and_resumes(named: str, text: str) -> None:
    session, _ = learning()
    memory = VersionedMemory.from_session(session, binding=named, extract="off")
    agent, data = await stopped(remembering_agent(session, text), memory)
    [record] = (await session.list()).records
    await session.forget(record.id)
    before = json.dumps(data)
    assert holds(data, text)
    clean, report = redact_context(data, record_ids=[record.id])
    assert not holds(clean, text)
    assert report.complete
    assert report.rewritten >= 2  # what the model wrote and what it was told
    assert json.dumps(data) == before, "what was given is not changed"
    ctx = Context.from_dict(agent, clean)
    await agent.run(ctx=ctx)
    messages = await (await ctx.store.get("memory")).aget_all()
    assert roles(messages) == ["user", *["assistant", "tool"] * 4, "assistant"]
    assert not holds([one.model_dump(mode="json") for one in messages], text)
    assert FORGOTTEN in as_json([one.content for one in messages])


async def test_what_a_model_was_shown_of_memory_is_taken_out_of_steps_that_were_under_way(named: str) -> None:
    session, _ = learning()
    text = TEXTS[1]
    record = (await session.remember(text, supersede="add")).records[0]
    other = (await session.remember("Café Nero is far.", supersede="add")).records[0]
    arrived, never = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedLLM):
        async def astream_chat(self, messages: Any, **more: Any) -> Any:
            arrived.set()
            await never.wait()

    agent = VersionedFunctionAgent(llm=Slow([]))
    memory = VersionedMemory.from_session(session, binding=named, extract="off")
    handler = agent.run("Is the café far?", memory=memory)
    await arrived.wait()
    data = json.loads(json.dumps(handler.ctx.to_dict()))
    await handler.cancel_run()
    with pytest.raises(WorkflowCancelledByUser):
        await handler
    assert holds(data, "Größe")
    clean, report = redact_context(data, record_ids=[record.id])
    assert not holds(clean, "Größe")
    assert holds(clean, "Café Nero is far."), "what is of other records stays"
    assert holds(clean, record.id)
    assert holds(clean, other.id)
    assert report.complete


async def test_a_context_after_a_run_holds_what_the_framework_keeps(named: str) -> None:
    session, _ = learning()
    memory = VersionedMemory.from_session(session, binding=named, extract="off")
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("I like tea leaves.", memory=memory, ctx=ctx)
    clean, report = redact_context(ctx.to_dict(), record_ids=[], texts=["tea leaves"])
    assert clean["state"]["state_data"]["_data"]["user_msg_str"] == f'"I like {FORGOTTEN}."'
    assert report.rewritten == 1


async def test_what_was_pickled_is_reported_and_left() -> None:
    class Odd:
        def __init__(self, text: str) -> None:
            self.text = text

    globals()["Odd"] = Odd  # so that it can be pickled
    Odd.__qualname__ = "Odd"
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("Hello.", memory=ChatMemoryBuffer.from_defaults(), ctx=ctx)
    await ctx.store.set("odd", Odd("tea leaves"))
    data = ctx.to_dict(serializer=JsonPickleSerializer())
    clean, report = redact_context(data, record_ids=[], texts=["tea leaves"])
    assert clean == data
    assert [copy.place for copy in report.copies] == ["state.state_data._data.odd"]
    assert not report.complete


def test_a_report_names_what_it_does_not_reach_and_holds_no_text() -> None:
    _, of_context = redact_context({"a": "tea leaves"}, record_ids=[], texts=["tea leaves"])
    of_store = redact_chat_store(ProcessChatStore(), record_ids=["r1"])
    for report in (of_context, of_store):
        assert {"traces and logs", "providers", "backups"} <= set(report.not_reached)
        assert any("running workflows" in place for place in report.not_reached)
        assert "tea leaves" not in repr(report)
    assert "saved contexts" in of_store.not_reached
    assert "chat stores" in of_context.not_reached


# --- what counts as a copy ----------------------------------------------------------------------------------------


def record_of(text: str, record_id: str = "r1") -> dict[str, Any]:
    labels = {"revision": 1, "kind": "semantic", "origin": "inferred", "source_kinds": ["user"], "status": "active"}
    return {"id": record_id, "text": text, **labels}


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("compact", [False, True])
def test_json_inside_json_is_written_as_it_was(depth: int, ascii_only: bool, compact: bool) -> None:
    def packed(value: Any) -> Any:
        for _ in range(depth):
            value = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":") if compact else None)
        return value

    scrubber = Scrubber(["r1"], [])
    value = {"found": packed([record_of(TEXTS[1]), record_of("Größe", "r2")]), "other": "é"}
    scrubber.learn(value)
    clean = scrubber.scrub(value)
    assert clean == {"found": packed([record_of(FORGOTTEN), record_of("Größe", "r2")]), "other": "é"}
    assert scrubber.scrub(clean) is clean
    assert scrubber.found_in(value) == {"r1"}
    assert not scrubber.found_in(clean)


def test_a_short_text_is_taken_out_only_where_it_is_the_record() -> None:
    scrubber = Scrubber(["r1"], [])
    shown = "[id=r1 revision=1 origin=asserted sources=host]"
    value = [record_of("tea"), "a teapot", {"text": "tea"}, f"{shown} <<tea>>"]
    scrubber.learn(value)
    assert scrubber.scrub(value) == [record_of(FORGOTTEN), "a teapot", {"text": FORGOTTEN}, f"{shown} {FORGOTTEN}"]


def test_older_calls_and_revisions_count() -> None:
    change = {"id": "r1", "expected_revision": 1, "text": "Ada drinks tea."}
    older = {"id": "c1", "function": {"name": "memory_remember", "arguments": json.dumps({"text": "Ada likes tea."})}}
    answer = {"id": "r1", "revision": 1, "origin": "inferred", "status": "active", "replayed": False}
    told = {
        "role": "tool",
        "additional_kwargs": {"tool_call_id": "c1"},
        "blocks": [{"block_type": "text", "text": json.dumps(answer)}],
    }
    value = [
        told,
        {"additional_kwargs": {"tool_calls": [older]}},
        {"block_type": "tool_call", "tool_call_id": "c2", "tool_kwargs": change},
        "You said: Ada likes tea. Ada drinks tea.",
    ]
    scrubber = Scrubber(["r1"], [])
    scrubber.learn(value)
    clean = scrubber.scrub(value)
    assert not holds(clean, "Ada likes tea.")
    assert not holds(clean, "Ada drinks tea.")
    assert clean[3] == f"You said: {FORGOTTEN} {FORGOTTEN}"


@pytest.mark.parametrize(
    "odd", [{"id": ["r1"]}, {"text": {"a": 1}}, {"metadata": {"record_id": {}}, "text": 3}, "{", "[" * 100_000, "null"]
)
def test_odd_values_are_no_obstacle(odd: Any) -> None:
    scrubber = Scrubber(["r1"], ["tea leaves"])
    scrubber.learn([odd])
    assert scrubber.scrub([odd, "tea leaves"]) == [odd, FORGOTTEN]
    assert scrubber.found_in([odd]) == frozenset()


async def test_wrong_arguments_are_refused_by_name() -> None:
    store = ProcessChatStore()
    for wrong, path in (
        ({"record_ids": "r1"}, "record_ids"),
        ({"record_ids": [""]}, "record_ids"),
        ({"record_ids": [], "texts": [3]}, "texts"),
        ({"record_ids": [], "key": " "}, "key"),
        ({"record_ids": [], "chat_store": object()}, "chat_store"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            await aredact_chat_store(**{"chat_store": store, **wrong})  # type: ignore[arg-type]
        assert caught.value.path == path
    with pytest.raises(InvalidRequestError) as caught:
        redact_context("a context", record_ids=[])  # type: ignore[arg-type]
    assert caught.value.path == "data"


async def test_the_records_are_forgotten_in_memory_too(named: str) -> None:
    session, _ = learning()
    memory = VersionedMemory.from_session(session, binding=named, extract="off")
    await talked(session, TEXTS[0], memory)
    assert await known(session) == []


# --- ids that come again --------------------------------------------------------------------------------------------


def asked(*calls: tuple[str, str | None]) -> dict[str, Any]:
    """An assistant's message with calls: an id, and the text to be remembered or None for another tool's call."""
    blocks = [ToolCallBlock(tool_call_id=i, tool_name="t", tool_kwargs={"text": t} if t else {}) for i, t in calls]
    return ChatMessage(role="assistant", blocks=blocks).model_dump(mode="json")


def answered(call_id: str, record_id: str | None) -> dict[str, Any]:
    """A tool's answer: the record that was written, or a refusal."""
    said = {"error": "not_found"} if record_id is None else {"id": record_id, "revision": 1, "replayed": False}
    message = ChatMessage(json.dumps(said), role="tool", additional_kwargs={"tool_call_id": call_id})
    return message.model_dump(mode="json")


TALKS: dict[str, list[dict[str, Any]]] = {
    "the id comes again in the next reply": [
        asked(("c", "tea one")), answered("c", "r1"), asked(("c", "cake two")), answered("c", "r2"),
    ],
    "the first call was never answered": [asked(("c", "cake two")), asked(("c", "tea one")), answered("c", "r1")],
    "the answer stands there twice": [
        asked(("c", "tea one")), answered("c", "r1"), answered("c", "r1"), asked(("c", "cake two")),
        answered("c", "r2"),
    ],
    "the answer stands before the call": [answered("c", "r1"), asked(("c", "tea one")), asked(("c", "cake two"))],
    "no id is given": [asked(("", "tea one")), answered("", "r1"), asked(("", "cake two")), answered("", "r2")],
}  # fmt: skip


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_of_calls_with_one_id_the_forgotten_records_alone_is_taken_out(talk: list[dict[str, Any]]) -> None:
    scrubber = Scrubber(["r1"], [])
    scrubber.learn(talk)
    clean = as_json(scrubber.scrub([*talk, "She said tea one and cake two."]))
    assert "tea one" not in clean
    assert clean.count("cake two") == as_json(talk).count("cake two") + 1


@pytest.mark.parametrize("answers", [["r1", "r2"], ["r2", "r1"], [None, "r1"], ["r1"]])
@pytest.mark.parametrize("answers_first", [False, True])
def test_of_calls_of_one_reply_with_one_id_no_text_of_the_forgotten_is_left(
    answers: list[str | None], answers_first: bool
) -> None:
    """Their answers stand in the order in which they were done, so that nobody can tell whose is whose."""
    calls, said = [asked(("c", "tea one"), ("c", "cake two"))], [answered("c", one) for one in answers]
    talk = said + calls if answers_first else calls + said
    later = [asked(("c", "pie three")), answered("c", "r3")]
    scrubber = Scrubber(["r1"], [])
    scrubber.learn([*talk, *later])
    clean = as_json(scrubber.scrub([*talk, *later, "She said tea one."]))
    assert "tea one" not in clean
    assert "pie three" in clean


async def test_a_chat_whose_calls_have_the_ids_of_another_chats_calls_keeps_its_texts(database: Any) -> None:
    store = database()
    for key, text, record_id in (("kurt", "tea one", "r1"), ("emmy", "cake two", "r2")):
        for data in (asked(("call_1", text)), answered("call_1", record_id)):
            await store.add_message(key, ChatMessage.model_validate(data))
    report = await aredact_chat_store(store, record_ids=["r1"])
    left = {
        key: as_json([m.model_dump(mode="json") for m in await store.get_messages(key)]) for key in ("kurt", "emmy")
    }
    assert report.rewritten == 1
    assert report.complete
    assert "tea one" not in left["kurt"]
    assert "cake two" in left["emmy"]
