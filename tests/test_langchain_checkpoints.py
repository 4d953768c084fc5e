"""Forgotten records in checkpoints: what is found, what is rewritten, what is reported, and that runs go on."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_fakes import DONE, agent_of, answers, asked, calling, in_thread, tool_call
from langchain_memory import ADA, agent_with, session_of
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, Send
from pydantic import BaseModel

from vmem_core import ForgetEvent, InMemoryStore, InvalidRequestError, MemorySession, SqliteStore
from vmem_langchain import RedactionReport, aredact_thread, checkpoints, create_memory_tools, redact_thread
from vmem_langchain.scrubbing import FORGOTTEN, Scrubber

T1 = in_thread("t1")
SECRET = 'Ada\'s "PIN" is QZXW,\nsays お母さん.'
KINDS = ["memory", "sqlite", "sqlite in memory", "async sqlite", "async sqlite in memory"]


@asynccontextmanager
async def saver_of(kind: str, folder: Path) -> AsyncIterator[Any]:
    path = ":memory:" if kind.endswith("in memory") else str(folder / "checkpoints.db")
    if kind == "memory":
        yield InMemorySaver()
    elif kind.startswith("async"):
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            yield saver
    else:
        with SqliteSaver.from_conn_string(path) as saver:
            yield saver


@pytest.fixture(params=KINDS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    async with saver_of(request.param, tmp_path) as made:
        yield made


async def run(agent: Any, given: Any, saver: Any, config: Any = T1) -> Any:
    is_async = isinstance(saver, AsyncSqliteSaver)
    return await agent.ainvoke(given, config) if is_async else agent.invoke(given, config)


async def redact(saver: Any, *record_ids: str, way: str = "async", **more: Any) -> RedactionReport:
    """Redaction, sync or async. The sync one is called under the loop of the test, as in a notebook."""
    if way == "sync":
        return redact_thread(saver, "t1", record_ids=record_ids, **more)
    return await aredact_thread(saver, "t1", record_ids=record_ids, **more)


async def everything(saver: Any, thread_id: str = "t1") -> list[Any]:
    """All checkpoints of a thread."""
    if isinstance(saver, AsyncSqliteSaver):
        return [one async for one in saver.alist(in_thread(thread_id))]
    return list(saver.list(in_thread(thread_id)))


def held(values: Any) -> str:
    return repr(values) + json.dumps(repr(values))


class Ids(NamedTuple):
    """What must stay as it is."""

    configs: Any
    parents: Any
    versions: Any
    writes: Any


def ids_of(found: list[Any]) -> Ids:
    return Ids(
        [one.config for one in found],
        [one.parent_config for one in found],
        [(one.checkpoint["id"], one.checkpoint["channel_versions"], one.checkpoint["versions_seen"]) for one in found],
        [[(task, channel) for task, channel, _ in one.pending_writes] for one in found],
    )


async def paths_of(saver: Any) -> list[str]:
    """The paths of the tasks that wrote, by which LangGraph orders their writes."""
    if isinstance(saver, InMemorySaver):
        return [write[3] for kept in saver.writes.values() for write in kept.values()]
    query = "SELECT task_path FROM writes ORDER BY rowid"
    if isinstance(saver, AsyncSqliteSaver):
        return [row[0] for row in await saver.conn.execute_fetchall(query)]
    return [row[0] for row in saver.conn.execute(query)]


def remember(text: str, call_id: str = "c1") -> AIMessage:
    """A call as a provider delivers it: its arguments stand in three places."""
    args = {"text": text}
    raw = {"id": call_id, "function": {"name": "memory_remember", "arguments": json.dumps(args)}, "type": "function"}
    return AIMessage(
        [{"type": "tool_use", "id": call_id, "name": "memory_remember", "input": args}],
        tool_calls=[tool_call("memory_remember", args, call_id)],
        additional_kwargs={"tool_calls": [raw]},
    )


def revise(text: str) -> Any:
    def act(messages: list[Any]) -> AIMessage:
        written = json.loads(messages[2].content)
        args = {"id": written["id"], "expected_revision": 1, "text": text}
        return calling(tool_call("memory_revise", args, "c2"))

    return act


RECALL = calling(tool_call("memory_recall", {"query": "PIN"}, "c3"))
REPEATS = AIMessage(f"It is: {SECRET} Again: {json.dumps({'pin': SECRET})}")


# --- what is rewritten --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_forgotten_record_leaves_every_checkpoint_and_nothing_else_does(saver: Any, way: str) -> None:
    session = session_of(InMemoryStore())
    other = (await session.remember("Ada's other PIN is 0000.")).records[0]
    old = "An older PIN: WXZQ."
    agent = agent_of(
        create_memory_tools(session), remember(old), revise(SECRET), RECALL, REPEATS, checkpointer=saver
    )  # fmt: skip
    result = await run(agent, asked("Remember my PIN."), saver)
    record_id = answers(result)[0]["id"]
    before = await everything(saver)
    assert held(before).count("QZXW") > 3

    report = await redact(saver, record_id, way=way)

    after = await everything(saver)
    assert not [text for text in ("QZXW", "WXZQ", "お母さん", "\\u304a") if text in held(after)]
    assert (report.complete, report.rewrites, report.scrubbed) == (True, True, True)
    assert (report.checkpoints, report.rewritten > 0, report.thread_id) == (len(after), True, "t1")
    assert ids_of(after) == ids_of(before)
    messages = after[0].checkpoint["channel_values"]["messages"]
    assert [message.id for message in messages] == [message.id for message in result["messages"]]
    recalled = {found["id"]: found["text"] for found in json.loads(messages[6].content)}
    assert recalled == {record_id: FORGOTTEN, other.id: other.text}
    assert messages[1].tool_calls[0]["args"] == {"text": FORGOTTEN}
    assert messages[1].content[0]["input"] == {"text": FORGOTTEN}
    assert json.loads(messages[1].additional_kwargs["tool_calls"][0]["function"]["arguments"]) == {"text": FORGOTTEN}
    assert messages[7].content == f'It is: {FORGOTTEN} Again: {{"pin": "{FORGOTTEN}"}}'
    assert (await redact(saver, record_id, way=way)).rewritten == 0


async def test_a_run_that_was_redacted_while_interrupted_is_resumed(saver: Any) -> None:
    session = session_of(InMemoryStore())
    known = (await session.remember(SECRET)).records[0]
    done: list[Any] = []

    @tool
    def act(text: str) -> str:
        """Do something."""
        done.append(text)
        return "ok"

    agent = agent_of(
        [act, *create_memory_tools(session)], calling(tool_call("memory_recall", {"query": "PIN"}, "c1")),
        calling(tool_call("act", {"text": f"Use: {SECRET}"}, "c2"), tool_call("memory_recall", {"query": "PIN"}, "c3")),
        middleware=[HumanInTheLoopMiddleware({"act": True})], checkpointer=saver,
    )  # fmt: skip
    await run(agent, asked("Act."), saver)
    before = await everything(saver)
    assert [channel for one in before[:1] for _, channel, value in one.pending_writes if "QZXW" in repr(value)] == [
        "__interrupt__"
    ]
    await session.forget(known.id)

    assert (await redact(saver, known.id)).complete

    assert "QZXW" not in held(await everything(saver))
    assert ids_of(await everything(saver)) == ids_of(before)
    result = await run(agent, Command(resume={"decisions": [{"type": "approve"}]}), saver)
    assert result["messages"][-1].content == "done"
    assert done == [f"Use: {FORGOTTEN}"]
    assert [json.loads(m.content) for m in result["messages"] if m.type == "tool" and m.tool_call_id == "c3"] == [[]]


async def test_a_run_that_failed_beside_a_finished_call_keeps_what_was_finished(saver: Any) -> None:
    """Two calls at once: the answer of one waits in the pending writes, the other one failed."""
    session = session_of(InMemoryStore())
    await session.remember(SECRET)
    known = (await session.list()).records[0]
    fails = [True]

    @tool
    def flaky(text: str) -> str:
        """Fail once."""
        if fails.pop() if fails else False:
            raise ConnectionError("down")
        return f"got {text}"

    both = calling(tool_call("memory_recall", {"query": "PIN"}, "c1"), tool_call("flaky", {"text": SECRET}, "c2"))
    agent = agent_of([flaky, *create_memory_tools(session)], both, checkpointer=saver)
    with pytest.raises(ConnectionError):
        await run(agent, asked("Go."), saver)
    writes = [(channel, repr(v)) for _, channel, v in (await everything(saver))[0].pending_writes]
    assert any(channel == "messages" and "QZXW" in value for channel, value in writes)
    paths = await paths_of(saver)
    assert any(paths)

    assert (await redact(saver, known.id)).complete

    assert await paths_of(saver) == paths
    assert "QZXW" not in held(await everything(saver))
    result = await run(agent, None, saver)
    by_call = {m.tool_call_id: m.content for m in result["messages"] if m.type == "tool"}
    assert by_call["c2"] == f"got {FORGOTTEN}"
    assert json.loads(by_call["c1"])[0]["text"] == FORGOTTEN  # the kept answer, not a second recall


async def test_texts_of_the_hosts_are_taken_out_too(saver: Any) -> None:
    agent = agent_of([], AIMessage("Your PIN is QZXW, noted."), checkpointer=saver)
    await run(agent, asked("My PIN is QZXW."), saver)
    report = await redact(saver, texts=["My PIN is QZXW.", "QZXW"])
    assert report.complete
    found = await everything(saver)
    assert "QZXW" not in held(found)
    assert [m.content for m in found[0].checkpoint["channel_values"]["messages"]][:2] == [
        FORGOTTEN, f"Your PIN is {FORGOTTEN}, noted."
    ]  # fmt: skip


async def test_other_threads_and_a_thread_that_is_none_stay_as_they_are(saver: Any) -> None:
    session = session_of(InMemoryStore())
    known = (await session.remember(SECRET)).records[0]
    agent = agent_of(create_memory_tools(session), RECALL, checkpointer=saver)
    await run(agent, asked("Go."), saver, in_thread("t2"))
    report = await redact(saver, known.id)
    assert report == RedactionReport("t1", True, 0, 0, (), True)
    assert "QZXW" in held(await everything(saver, "t2"))


async def test_what_was_said_inside_a_sub_agent_is_found(saver: Any) -> None:
    session = session_of(InMemoryStore())
    known = (await session.remember(SECRET)).records[0]
    helper = agent_of(create_memory_tools(session), RECALL, checkpointer=True)

    @tool
    async def delegate(task: str) -> str:
        """Give a task to a helper."""
        return str((await helper.ainvoke({"messages": [HumanMessage(task)]}))["messages"][-1].content)

    @tool("delegate")
    def delegate_sync(task: str) -> str:
        """Give a task to a helper."""
        return str(helper.invoke({"messages": [HumanMessage(task)]})["messages"][-1].content)

    used = delegate if isinstance(saver, AsyncSqliteSaver) else delegate_sync
    agent = agent_of([used], calling(tool_call("delegate", {"task": "look"}, "c1")), checkpointer=saver)
    await run(agent, asked("Go."), saver)
    inside = [one for one in await everything(saver) if one.config["configurable"]["checkpoint_ns"]]
    assert "QZXW" in held(inside)
    assert (await redact(saver, known.id)).complete
    assert "QZXW" not in held(await everything(saver))


# --- the file -----------------------------------------------------------------------------------------------------


def file_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("checkpoints.db*")))


@pytest.mark.parametrize("kind", ["sqlite", "async sqlite"])
@pytest.mark.parametrize("way", ["sync", "async"])
async def test_no_byte_of_the_text_is_left_in_the_files(kind: str, way: str, tmp_path: Path) -> None:
    session = session_of(InMemoryStore())
    known = (await session.remember(SECRET)).records[0]
    async with saver_of(kind, tmp_path) as saver:
        agent = agent_of(create_memory_tools(session), *[RECALL, DONE] * 6, checkpointer=saver)
        for number in range(6):
            await run(agent, asked(f"Go {number}. " + "x" * 3_000), saver)
        assert b"QZXW" in file_bytes(tmp_path)
        assert (await redact(saver, known.id, way=way)).scrubbed
        assert b"QZXW" not in file_bytes(tmp_path)
        assert saver.conn.isolation_level == ""  # the saver's own connection is as it was


async def test_pages_that_were_freed_before_keep_no_text_either(tmp_path: Path) -> None:
    session = session_of(InMemoryStore())
    known = (await session.remember(SECRET)).records[0]
    async with saver_of("sqlite", tmp_path) as saver:
        saver.conn.execute("PRAGMA secure_delete = OFF")
        agent = agent_of(create_memory_tools(session), RECALL, checkpointer=saver)
        for thread in ("t1", "t2"):
            await run(agent, asked("Go. " + "x" * 3_000), saver, in_thread(thread))
        saver.delete_thread("t2")
        assert (await redact(saver, known.id)).scrubbed
        assert b"QZXW" not in file_bytes(tmp_path)


async def test_a_reader_in_the_way_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_BUSY_SECONDS", 0.1)
    session = session_of(InMemoryStore())
    known = (await session.remember(SECRET)).records[0]
    async with saver_of("sqlite", tmp_path) as saver:
        await run(agent_of(create_memory_tools(session), RECALL, checkpointer=saver), asked("Go."), saver)
        with closing(sqlite3.connect(tmp_path / "checkpoints.db")) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM checkpoints").fetchone()[0] > 0
            report = await redact(saver, known.id, vacuum=False)
            assert (report.complete, report.scrubbed) == (True, False)
        assert "QZXW" not in held(await everything(saver))


async def test_without_vacuum_the_values_are_rewritten_and_the_file_is_not_promised_clean(tmp_path: Path) -> None:
    session = session_of(InMemoryStore())
    known = (await session.remember(SECRET)).records[0]
    async with saver_of("sqlite", tmp_path) as saver:
        await run(agent_of(create_memory_tools(session), RECALL, checkpointer=saver), asked("Go."), saver)
        report = await redact(saver, known.id, vacuum=False)
        assert (report.complete, report.scrubbed) == (True, False)
        assert "QZXW" not in held(await everything(saver))


class BreaksOff(JsonPlusSerializer):
    """Fails at the third value that it is to write."""

    left = 3

    def dumps_typed(self, obj: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise MemoryError
        return super().dumps_typed(obj)


@pytest.mark.parametrize("kind", ["sqlite", "sqlite in memory", "async sqlite", "async sqlite in memory"])
async def test_a_redaction_that_breaks_off_changes_nothing(kind: str, tmp_path: Path) -> None:
    session = session_of(InMemoryStore())
    known = (await session.remember(SECRET)).records[0]
    async with saver_of(kind, tmp_path) as saver:
        agent = agent_of(create_memory_tools(session), RECALL, RECALL, DONE, checkpointer=saver)
        await run(agent, asked("Go."), saver)
        before = held(await everything(saver))
        saver.serde, sound = BreaksOff(), saver.serde
        with pytest.raises(MemoryError):
            await redact(saver, known.id)
        saver.serde = sound
        assert held(await everything(saver)) == before
        assert (await run(agent, asked("Go on."), saver))["messages"][-1].content == "done"


# --- as a listener ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("listener", ["sync", "async"])
@pytest.mark.parametrize("verb", ["sync", "async"])
async def test_a_forget_redacts_the_thread(kind: str, listener: str, verb: str, tmp_path: Path) -> None:
    async with saver_of(kind, tmp_path) as saver:
        reports: list[RedactionReport] = []

        async def alisten(event: ForgetEvent) -> None:
            reports.append(await aredact_thread(saver, "t1", record_ids=[event.record_id]))

        def listen(event: ForgetEvent) -> None:
            reports.append(redact_thread(saver, "t1", record_ids=[event.record_id]))

        store = SqliteStore(tmp_path / "memory.db")
        session = MemorySession(store, ADA, on_forget=alisten if listener == "async" else listen)
        known = (await session.remember(SECRET)).records[0]
        await run(agent_of(create_memory_tools(session), RECALL, checkpointer=saver), asked("Go."), saver)
        done = session.sync.forget(known.id) if verb == "sync" else await session.forget(known.id)
        assert done.redaction == "complete"
        assert [(report.complete, report.rewritten > 0) for report in reports] == [(True, True)]
        assert "QZXW" not in held(await everything(saver))
        await store.close()


async def test_the_references_of_the_middleware_are_no_copies(saver: Any) -> None:
    session = session_of(InMemoryStore())
    known = (await session.remember(SECRET)).records[0]
    agent, model = agent_with(session, memory={"extract": False}, checkpointer=saver)
    await run(agent, asked("Which PIN?"), saver)
    assert "QZXW" in model.systems[0]
    assert await redact(saver, known.id, texts=[SECRET]) == RedactionReport("t1", True, 6, 0, (), True)
    assert known.id in held(await everything(saver))


# --- other checkpointers ------------------------------------------------------------------------------------------


class Foreign:
    """A checkpointer that we know nothing of, over one that we know."""

    def __init__(self, inner: Any, has_async: bool) -> None:
        self.inner, self.has_async = inner, has_async

    def list(self, config: Any) -> Iterator[Any]:
        yield from self.inner.list(config)

    async def alist(self, config: Any) -> AsyncIterator[Any]:
        if not self.has_async:
            raise NotImplementedError
        for one in self.inner.list(config):
            yield one


@pytest.mark.parametrize("has_async", [True, False])
@pytest.mark.parametrize("way", ["sync", "async"])
async def test_of_another_checkpointer_what_holds_a_copy_is_reported(way: str, has_async: bool) -> None:
    saver = InMemorySaver()
    session = session_of(InMemoryStore())
    known = (await session.remember(SECRET)).records[0]
    agent_of(create_memory_tools(session), RECALL, checkpointer=saver).invoke(asked("My dog is Rex."), T1)
    before = held(await everything(saver))

    report = await redact(Foreign(saver, has_async), known.id, way=way, texts=["Rex"])

    assert (report.rewrites, report.complete, report.rewritten, report.scrubbed) == (False, False, 0, False)
    assert report.checkpoints == len(await everything(saver))
    assert {(copy.place, copy.record_ids) for copy in report.copies} == {
        ("channel __start__", ()),  # what the user said
        ("write messages", ()),
        ("channel messages", ()),
        ("write messages", (known.id,)),  # what was recalled
        ("channel messages", (known.id,)),
    }
    ids = {one.checkpoint["id"] for one in await everything(saver)}
    assert {copy.checkpoint_id for copy in report.copies} <= ids
    assert "QZXW" not in repr(report)
    assert "Rex" not in repr(report)
    assert held(await everything(saver)) == before


async def test_a_clean_thread_of_another_checkpointer_is_reported_clean() -> None:
    report = await redact(Foreign(InMemorySaver(), True), "r1")
    assert (report.complete, report.rewrites, report.checkpoints) == (True, False, 0)


class Opaque:
    """A value that only its own class can take apart."""

    def __init__(self, text: str) -> None:
        self.__private = text

    def tell(self) -> str:
        return self.__private


class Pickles(JsonPlusSerializer):
    """Keeps any object."""

    def __init__(self) -> None:
        super().__init__(pickle_fallback=True)


async def test_what_cannot_be_rewritten_is_reported() -> None:
    saver = InMemorySaver(serde=Pickles())
    config = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}
    checkpoint: Any = {
        "v": 4, "id": "1", "ts": "", "channel_values": {"odd": Opaque(SECRET), "sound": SECRET},
        "channel_versions": {"odd": "1", "sound": "1"}, "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip
    saver.put(config, checkpoint, {}, {"odd": "1", "sound": "1"})
    report = redact_thread(saver, "t1", record_ids=[], texts=[SECRET])
    assert (report.complete, report.rewritten) == (False, 1)
    assert [(copy.place, copy.checkpoint_ns, copy.record_ids) for copy in report.copies] == [("channel odd", "", ())]


@pytest.mark.parametrize(
    ("given", "path"),
    [({"record_ids": "r1"}, "record_ids"), ({"record_ids": [" "]}, "record_ids"), ({"record_ids": [1]}, "record_ids"),
     ({"texts": "tea"}, "texts"), ({"texts": [""]}, "texts")],
)  # fmt: skip
async def test_a_wrong_argument_is_refused(given: dict[str, Any], path: str) -> None:
    arguments = {"record_ids": ["r1"], **given}
    with pytest.raises(InvalidRequestError) as refused:
        redact_thread(InMemorySaver(), "t1", **arguments)
    assert refused.value.path == path
    with pytest.raises(InvalidRequestError):
        await aredact_thread(InMemorySaver(), "t1", **arguments)


# --- values of any shape ------------------------------------------------------------------------------------------


class Model(BaseModel, extra="allow"):
    """A model with a field that nobody declared."""

    said: str


@dataclass(frozen=True)
class Frozen:
    """A dataclass that cannot be written to."""

    said: Any
    count: int = 1


class Pair(NamedTuple):
    """A tuple with names."""

    left: Any
    right: Any


def test_values_of_any_shape_lose_the_text_and_keep_their_type() -> None:
    scrubber = Scrubber([], ["tea"])
    given = {
        "tea": [("tea", 1), {"a tea"}, frozenset({"tea"}), Pair("tea", None)],
        "model": Model(said="tea", more={"x": "tea"}),
        "frozen": Frozen(("tea",)),
        "send": Send("tools", [{"args": {"q": "tea"}}]),
        "message": AIMessage("tea", additional_kwargs={"x": "tea"}, id="m1"),
        "bytes": b"tea",
        "none": None,
    }
    clean = scrubber.scrub(given)
    mark = FORGOTTEN
    assert clean[mark] == [(mark, 1), {f"a {mark}"}, frozenset({mark}), Pair(mark, None)]
    assert (clean["model"].said, clean["model"].more) == (mark, {"x": mark})
    assert clean["frozen"] == Frozen((mark,))
    assert (clean["send"].node, clean["send"].arg) == ("tools", [{"args": {"q": mark}}])
    assert clean["message"] == AIMessage(mark, additional_kwargs={"x": mark}, id="m1")
    assert scrubber.found_in(clean) == {""}  # of bytes nobody knows what they are: they are told of, not touched
    assert scrubber.found_in({**clean, "bytes": b""}) == frozenset()
    assert given["tea"][0] == ("tea", 1)  # the value that was given is as it was


def test_a_value_without_the_text_is_the_very_same_object() -> None:
    given = {"a": [1, ("x", {"y"})], "m": AIMessage("coffee"), "s": Send("n", {"z": 1})}
    assert Scrubber(["r1"], ["tea"]).scrub(given) is given


def test_a_short_text_is_taken_out_of_answers_alone() -> None:
    found = {"id": "r1", "revision": 1, "text": "no", "kind": "semantic", "origin": "inferred",
             "source_kinds": ["user"], "status": "active"}  # fmt: skip
    scrubber = Scrubber(["r1"], [])
    value = [ToolMessage(json.dumps([found]), tool_call_id="c1"), "I know."]
    scrubber.learn(value)
    clean = scrubber.scrub(value)
    assert json.loads(clean[0].content)[0]["text"] == FORGOTTEN
    assert clean[1] == "I know."


SHORT = {"id": "r1", "revision": 1, "text": "tea", "kind": "semantic", "origin": "inferred", "source_kinds": ["user"],
         "status": "active"}  # fmt: skip
LABELS = {"revision": 1, "origin": "inferred", "kind": "semantic", "source_kinds": ["user"], "match": "lexical"}
SHOWN = "[id=r1 revision=1 origin=inferred sources=user]"


def test_a_record_that_a_context_shows_is_known_and_taken_out_however_short() -> None:
    value = [SystemMessage(f"Be kind.\n{SHOWN} <<tea>>"), HumanMessage("A teapot."), f"{SHOWN} <<I drink tea.>>"]
    scrubber = Scrubber(["r1"], [])
    scrubber.learn(value)
    clean = scrubber.scrub(value)
    assert clean[0].content == f"Be kind.\n{SHOWN} {FORGOTTEN}"
    assert clean[1] is value[1]
    assert clean[2] == f"{SHOWN} {FORGOTTEN}"
    assert scrubber.scrub("You said: I drink tea.") == f"You said: {FORGOTTEN}"


def test_a_document_of_the_retriever_is_known_and_taken_out_and_that_of_another_record_stays() -> None:
    ours, other = Document("tea", id="r1", metadata=LABELS), Document("tea", id="r2", metadata=LABELS)
    foreign = Document("I drink tea.", id="r1", metadata={"source": "a file"})
    long = Document("Ada likes tea.", id="r1", metadata=LABELS)
    scrubber = Scrubber(["r1"], [])
    scrubber.learn([ours, other, foreign, ToolMessage("x", artifact=[long], tool_call_id="c1")])
    clean = scrubber.scrub([ours, other, foreign, "So: Ada likes tea."])
    assert [one.page_content for one in clean[:3]] == [FORGOTTEN, "tea", "I drink tea."]
    assert clean[3] == f"So: {FORGOTTEN}"
    assert scrubber.scrub(clean) is clean


@pytest.mark.parametrize("depth", range(5))
def test_a_short_text_is_taken_out_of_json_inside_of_strings(depth: int) -> None:
    inner: Any = {"found": [SHORT], "args": {"text": "tea"}, "other": "Größe"}
    for _ in range(depth):
        inner = json.dumps(inner, ensure_ascii=False)
    scrubber = Scrubber(["r1"], [])
    scrubber.learn([inner])
    clean = scrubber.scrub(AIMessage("", additional_kwargs={"raw": inner})).additional_kwargs["raw"]
    for _ in range(depth):
        clean = json.loads(clean)
    assert clean == {"found": [{**SHORT, "text": FORGOTTEN}], "args": {"text": FORGOTTEN}, "other": "Größe"}


def test_every_one_of_many_texts_that_are_json_is_looked_into() -> None:
    ids = [f"r{number}" for number in range(200)]
    value = [json.dumps([{**SHORT, "id": one, "text": f"Ada likes {one}."}]) for one in ids]
    scrubber = Scrubber(ids, [])
    scrubber.learn(value)
    assert scrubber.found_in(" ".join(f"Ada likes {one}." for one in ids)) == set(ids)


def test_the_text_of_another_records_call_stays() -> None:
    talk = [
        calling(tool_call("memory_remember", {"text": "first text"}, "c0")),
        ToolMessage('{"id":"r1","revision":1,"replayed":false}', tool_call_id="c0"),
        calling(tool_call("memory_remember", {"text": "second text"}, "c0")),
        ToolMessage('{"id":"r2","revision":1,"replayed":false}', tool_call_id="c0"),
    ]
    scrubber = Scrubber(["r1"], [])
    scrubber.learn(talk)
    assert [m.tool_calls[0]["args"]["text"] for m in scrubber.scrub(talk) if m.type == "ai"] == [
        FORGOTTEN, "second text"
    ]  # fmt: skip


async def test_deep_values_are_walked_through() -> None:
    deep: Any = "tea"
    for _ in range(200):
        deep = [deep]
    scrubber = Scrubber([], ["tea"])
    assert scrubber.found_in(deep) == {""}
    assert scrubber.found_in(scrubber.scrub(deep)) == frozenset()
    await asyncio.sleep(0)


@pytest.mark.parametrize("written", [["r1", "r2"], ["r2", "r1"]])
def test_of_calls_of_one_message_with_one_id_no_text_of_the_forgotten_is_left(written: list[str]) -> None:
    calls = [{"name": "memory_remember", "args": {"text": text}, "id": "c"} for text in ("tea one", "cake two")]
    later = {"name": "memory_remember", "args": {"text": "pie three"}, "id": "c"}
    said = [json.dumps({"id": one, "revision": 1, "replayed": False}) for one in (*written, "r3")]
    talk = [
        AIMessage("", tool_calls=calls), *(ToolMessage(one, tool_call_id="c") for one in said[:2]),
        AIMessage("", tool_calls=[later]), ToolMessage(said[2], tool_call_id="c"), AIMessage("You said tea one."),
    ]  # fmt: skip
    scrubber = Scrubber(["r1"], [])
    scrubber.learn(talk)
    clean = str(scrubber.scrub(talk))
    assert "tea one" not in clean
    assert "pie three" in clean
