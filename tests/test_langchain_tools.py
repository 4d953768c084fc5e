"""What the memory tools take and what they answer, with LangChain's core alone: no graph, no agent."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from fakes import ADA, BOB, Ids, RawEmbedder
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_fakes import read, tool_call

from vmem_core import InMemoryStore, InvalidRequestError, MemorySession, Scope, Source, text_digest
from vmem_langchain import MemoryRequest, create_memory_tools

TEXT = "Ada likes green tea."


@pytest.fixture
def session() -> MemorySession:
    return MemorySession(InMemoryStore(), Scope(user_id="ada", chat_id="chat-7"), new_id=Ids())


@pytest.fixture(params=["sync", "async"])
def use(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call a tool, sync or async, with a call that has an id, and get its message."""

    def call(tool: BaseTool, args: dict[str, Any], call_id: str = "call_1") -> ToolMessage:
        given = tool_call(tool.name, args, call_id)
        message = tool.invoke(given) if request.param == "sync" else asyncio.run(tool.ainvoke(given))
        assert isinstance(message, ToolMessage)
        return message

    return call


def tools_of(session: Any, **more: Any) -> dict[str, BaseTool]:
    return {tool.name.removeprefix("memory_"): tool for tool in create_memory_tools(session, **more)}


# --- answers ------------------------------------------------------------------------------------------------------


def test_remember_answers_the_record_and_cites_the_call(session: MemorySession, use: Any) -> None:
    message = use(tools_of(session)["remember"], {"text": TEXT, "kind": "episodic", "importance": 0.5})

    assert message.content == '{"id":"r1","revision":1,"origin":"inferred","status":"active","replayed":false}'
    assert (message.status, message.name, message.tool_call_id) == ("success", "memory_remember", "call_1")
    record = session.sync.get("r1")
    assert (record.text, record.kind, record.origin, record.importance) == (TEXT, "episodic", "inferred", 0.5)
    assert record.sources == (
        Source("assistant", text_digest(TEXT), chat_id="chat-7", tool_call_id="call_1", tool_name="memory_remember"),
    )


def test_a_text_that_is_stored_already_is_answered_and_not_added(session: MemorySession, use: Any) -> None:
    session.sync.remember(TEXT)
    message = use(tools_of(session)["remember"], {"text": f"  {TEXT.upper()}"})
    assert read(message) == {
        "id": "r1", "revision": 1, "origin": "asserted", "status": "active", "replayed": False, "already_stored": True
    }  # fmt: skip
    assert session.sync.count() == 1


def test_recall_answers_records_as_an_array(session: MemorySession, use: Any) -> None:
    sources = [Source("user", text_digest("a")), Source("tool", text_digest("b")), Source("user", text_digest("c"))]
    session.sync.remember("Ada trinkt gern grünen Tee. お茶", sources=sources, kind="episodic")
    message = use(tools_of(session)["recall"], {"query": "Tee"})
    assert message.content == (
        '[{"id":"r1","revision":1,"text":"Ada trinkt gern grünen Tee. お茶","kind":"episodic","origin":"asserted",'
        '"source_kinds":["user","tool"],"status":"active"}]'
    )


def test_recall_without_a_match_or_a_query_answers_an_empty_array(session: MemorySession, use: Any) -> None:
    session.sync.remember(TEXT)
    recall = tools_of(session)["recall"]
    assert use(recall, {"query": "helicopter"}).content == "[]"
    assert use(recall, {"query": "  "}).content == "[]"


def test_recall_filters_by_kind_and_answers_no_more_than_top_k(session: MemorySession, use: Any) -> None:
    for kind in ("semantic", "semantic", "procedural"):
        session.sync.remember(f"tea {kind}", kind=kind)
    recall = tools_of(session, top_k=1)["recall"]
    assert len(read(use(recall, {"query": "tea"}))) == 1
    assert [found["kind"] for found in read(use(recall, {"query": "tea", "kind": "procedural"}))] == ["procedural"]


def test_revise_stays_inferred_and_adds_the_call_to_the_sources(session: MemorySession, use: Any) -> None:
    tools = tools_of(session)
    use(tools["remember"], {"text": TEXT})
    message = use(tools["revise"], {"id": "r1", "expected_revision": 1, "text": "Ada likes coffee."}, "call_2")

    assert read(message) == {"id": "r1", "revision": 2, "origin": "inferred", "status": "active", "replayed": False}
    record = session.sync.get("r1")
    assert [source.tool_call_id for source in record.sources] == ["call_1", "call_2"]
    assert record.sources[1].digest == text_digest("Ada likes coffee.")
    assert record.sources[1].tool_name == "memory_revise"


def test_revise_without_a_text_keeps_it_and_still_cites_the_call(session: MemorySession, use: Any) -> None:
    session.sync.remember(TEXT, origin="inferred")
    use(tools_of(session)["revise"], {"id": "r1", "expected_revision": 1, "importance": 1, "text": None})
    record = session.sync.get("r1")
    assert (record.revision, record.text, record.importance, record.origin) == (2, TEXT, 1.0, "inferred")
    assert record.sources[-1].tool_call_id == "call_1"


def test_revise_with_nothing_new_brings_a_retracted_record_back(session: MemorySession, use: Any) -> None:
    session.sync.remember(TEXT, origin="inferred")
    session.sync.retract("r1")
    message = use(tools_of(session)["revise"], {"id": "r1", "expected_revision": 2})
    assert read(message)["status"] == "active"


def test_retract_answers_the_record_and_again_the_same_one(session: MemorySession, use: Any) -> None:
    session.sync.remember(TEXT, origin="inferred")
    retract = tools_of(session)["retract"]
    retracted = {"id": "r1", "revision": 2, "origin": "inferred", "status": "retracted", "replayed": False}
    assert read(use(retract, {"id": "r1", "expected_revision": 1})) == retracted
    assert read(use(retract, {"id": "r1", "expected_revision": 2})) == retracted
    assert session.sync.recall(TEXT) == []


def test_an_artifact_refers_to_records_and_holds_no_text(session: MemorySession, use: Any) -> None:
    tools = tools_of(session)
    written = use(tools["remember"], {"text": TEXT})
    found = use(tools["recall"], {"query": "tea"})
    assert written.artifact == session.sync.receipt(session.sync.get("r1").operation_id).to_json()
    assert found.artifact == [{"id": "r1", "revision": 1, "score": found.artifact[0]["score"], "match": "lexical"}]
    assert "tea" not in json.dumps([written.artifact, found.artifact])


# --- refusals -----------------------------------------------------------------------------------------------------


def assert_refused(message: ToolMessage, **expected: Any) -> None:
    assert read(message) == expected
    assert message.status == "error"


@pytest.mark.parametrize("tool", ["revise", "retract"])
def test_what_the_host_asserted_is_not_a_models_to_change(session: MemorySession, use: Any, tool: str) -> None:
    session.sync.remember(TEXT)
    args = {"id": "r1", "expected_revision": 1} | ({"text": "No tea."} if tool == "revise" else {})
    assert_refused(use(tools_of(session)[tool], args), error="asserted_record")
    assert session.sync.get("r1").revision == 1


@pytest.mark.parametrize("tool", ["revise", "retract"])
def test_a_stale_revision_is_refused_with_the_current_one(session: MemorySession, use: Any, tool: str) -> None:
    session.sync.remember(TEXT, origin="inferred")
    session.sync.revise("r1", importance=1, origin="inferred")
    args = {"id": "r1", "expected_revision": 1} | ({"text": "No tea."} if tool == "revise" else {})
    assert_refused(use(tools_of(session)[tool], args), error="revision_conflict", actual_revision=2)


@pytest.mark.parametrize("tool", ["revise", "retract"])
def test_unknown_foreign_and_forgotten_records_are_not_found(session: MemorySession, use: Any, tool: str) -> None:
    foreign = MemorySession(session.store, BOB).sync.remember("Bob's.", id="bobs", origin="inferred").records[0]
    session.sync.remember(TEXT, origin="inferred")
    session.sync.forget("r1")
    more = {"text": "New."} if tool == "revise" else {}
    for record_id in ("r9", foreign.id, "r1", "\x00\ud800"):
        args = {"id": record_id, "expected_revision": 1} | more
        assert_refused(use(tools_of(session)[tool], args), error="not_found")


@pytest.mark.parametrize(
    ("tool", "args", "detail"),
    [
        ("remember", {"text": " \u200b"}, "text"),
        ("remember", {"text": "x" * 100_001}, "text"),
        ("remember", {"text": 7}, "text"),
        ("remember", {}, "text"),
        ("remember", {"text": TEXT, "kind": "fact"}, "kind"),
        ("remember", {"text": TEXT, "importance": 1.5}, "importance"),
        ("remember", {"text": TEXT, "importance": float("nan")}, "importance"),
        ("recall", {"query": None}, "query"),
        ("recall", {"query": "tea", "kind": "all"}, "kind"),
        ("revise", {"id": "r1", "expected_revision": 1}, "revise"),
        ("revise", {"id": "r1", "expected_revision": 1, "text": " "}, "text"),
        ("revise", {"id": "r1", "text": "New."}, "expected_revision"),
        ("revise", {"id": "r1", "expected_revision": 0, "text": "New."}, "expected_revision"),
        ("retract", {"id": " ", "expected_revision": 1}, "id"),
        ("retract", {"id": "x" * 513, "expected_revision": 1}, "id"),
        ("retract", {"id": "r1", "expected_revision": "now"}, "expected_revision"),
    ],
)
def test_values_that_cannot_be_taken_are_refused_by_their_path(
    session: MemorySession, use: Any, tool: str, args: dict[str, Any], detail: str
) -> None:
    session.sync.remember(TEXT, origin="inferred")
    assert_refused(use(tools_of(session)[tool], args), error="invalid_request", detail=detail)
    assert session.sync.scope_revision() == 1


@pytest.mark.parametrize(
    "forged",
    [
        "scope", "user_id", "origin", "sources", "operation_id", "top_k", "tool_call_id", "runtime", "config",
        "run_manager", "id", "links", "metadata", "ttl", "x" * 5_000, "\x00",
    ],
)  # fmt: skip
@pytest.mark.parametrize("tool", ["remember", "recall"])
def test_nothing_hidden_can_be_forged_through_extra_arguments(
    session: MemorySession, use: Any, tool: str, forged: str
) -> None:
    value = {"tool_call_id": "FORGED", "top_k": 1000, "origin": "asserted"}.get(forged, {"user_id": "bob"})
    needed = {"remember": {"text": TEXT}, "recall": {"query": TEXT}}[tool]
    message = use(tools_of(session)[tool], needed | {forged: value})
    assert_refused(message, error="invalid_request", detail=forged.replace("\x00", "\ufffd")[:64])
    assert message.tool_call_id == "call_1"
    assert session.sync.scope_revision() == 0


def test_a_call_without_an_id_is_answered_by_text_refusals_too(session: MemorySession) -> None:
    tools = tools_of(session)
    assert tools["retract"].invoke({"id": "r1", "expected_revision": 1}) == '{"error":"not_found"}'
    assert tools["remember"].invoke({"text": " "}) == '{"error":"invalid_request","detail":"text"}'


def test_strings_that_no_store_can_hold_are_mended_and_the_fact_is_kept(session: MemorySession, use: Any) -> None:
    tools = tools_of(session)
    use(tools["remember"], {"text": "tea \ud83d\ude00 \x00 \udc00"})
    assert session.sync.get("r1").text == "tea \U0001f600 \ufffd \ufffd"
    assert read(use(tools["recall"], {"query": "tea \x00 \udc00"}))[0]["id"] == "r1"
    assert use(tools["remember"], {"text": "milk"}, "\x00\ud800").status == "success"
    assert session.sync.get("r2").sources[0].tool_call_id == "\ufffd\ufffd"


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["remember", "recall", "revise", "retract"])
def test_a_store_that_is_down_is_unavailable(session: MemorySession, use: Any, tool: str) -> None:
    session.sync.remember(TEXT, origin="inferred")
    tools = tools_of(session)
    session.store.sync.close()
    args = {
        "remember": {"text": TEXT},
        "recall": {"query": "tea"},
        "revise": {"id": "r1", "expected_revision": 1, "text": "No tea."},
        "retract": {"id": "r1", "expected_revision": 1},
    }[tool]
    assert_refused(use(tools[tool], args), error="unavailable")


@pytest.mark.parametrize(
    "answer",
    [ValueError("a secret"), [[1.0, 2.0], [3.0, 4.0]], [["a"]], [[1.0, 2.0, 3.0]]],
    ids=["raises", "wrong count", "strings", "another size than the store's"],
)
def test_a_failed_embedder_is_unavailable_and_logged_by_its_class_alone(
    use: Any, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = InMemoryStore()
    MemorySession(store, ADA, embedder=RawEmbedder([[1.0, 0.0]])).sync.remember("Something.")
    tools = tools_of(MemorySession(store, ADA, embedder=RawEmbedder(answer)))
    with caplog.at_level(logging.DEBUG, logger="vmem_langchain"):
        assert_refused(use(tools["remember"], {"text": TEXT}), error="unavailable")
        assert_refused(use(tools["recall"], {"query": TEXT}), error="unavailable")
    assert [record.message.split(":")[0] for record in caplog.records] == ["memory_remember", "memory_recall"]
    assert "secret" not in caplog.text
    assert "tea" not in caplog.text


def test_an_id_of_the_host_that_is_taken_is_no_models_mistake(use: Any) -> None:
    session = MemorySession(InMemoryStore(), ADA, new_id=lambda: "same")
    session.sync.remember("First.")
    assert_refused(use(tools_of(session)["remember"], {"text": TEXT}), error="unavailable")


# --- ways to call -------------------------------------------------------------------------------------------------


def test_outside_a_graph_each_call_is_a_new_operation(session: MemorySession, use: Any) -> None:
    tools = tools_of(session)
    for text in ("one", "two", "three"):
        assert read(use(tools["remember"], {"text": text}, "123"))["replayed"] is False
    again = read(use(tools["remember"], {"text": "three"}, "123"))
    assert (again["replayed"], again["already_stored"]) == (False, True)
    assert session.sync.count() == 3


async def test_sync_tools_work_while_a_loop_runs(session: MemorySession) -> None:
    tools = tools_of(session)
    assert read(tools["remember"].invoke({"text": TEXT}))["id"] == "r1"
    assert read(await tools["recall"].ainvoke({"query": "tea"}))[0]["id"] == "r1"


def test_plain_strings_and_batches_are_taken(session: MemorySession) -> None:
    tools = tools_of(session)
    assert read(tools["remember"].invoke("half a pair: \ud800"))["id"] == "r1"
    assert read(tools["recall"].invoke("half pair"))[0]["text"] == "half a pair: \ufffd"
    found = tools["recall"].batch([{"query": "pair"}] * 4)
    assert [read(one)[0]["id"] for one in found] == ["r1"] * 4


def test_one_tool_serves_many_loops(session: MemorySession) -> None:
    tools = tools_of(session)
    for text in ("one", "two"):
        asyncio.run(tools["remember"].ainvoke({"text": text}))
    assert session.sync.count() == 2


def test_tools_can_be_copied_and_pickled() -> None:
    tool = tools_of(no_session_at_all)["recall"]
    for copied in (tool.model_copy(), tool.model_copy(deep=True), pickle.loads(pickle.dumps(tool))):
        assert read(copied.invoke({"query": "tea"})) == {"error": "no_session"}


def no_session_at_all(request: MemoryRequest) -> None:
    return None


def test_a_tool_does_not_show_whose_memory_it_has(session: MemorySession) -> None:
    for tool in create_memory_tools(session):
        assert "ada" not in repr(tool)
        assert "source" not in tool.model_dump(exclude={"args_schema"})


def test_tools_need_neither_langchain_nor_langgraph() -> None:
    code = """
import sys
sys.modules["langchain"] = sys.modules["langgraph"] = None
from vmem_core import InMemoryStore, MemorySession, Scope
from vmem_langchain import MemoryRetriever, create_memory_tools
session = MemorySession(InMemoryStore(), Scope(user_id="ada"))
remember, recall, *_ = create_memory_tools(lambda request: session)
remember.invoke({"type": "tool_call", "name": "memory_remember", "id": "1", "args": {"text": "tea"}})
print(len(MemoryRetriever(session=lambda request: session).invoke("tea")), recall.invoke({"query": "tea"})[:7])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ('1 [{"id":\n', "")


# --- making them --------------------------------------------------------------------------------------------------


def test_the_tools_a_model_is_offered_and_their_arguments(session: MemorySession) -> None:
    offered = [convert_to_openai_tool(tool)["function"] for tool in create_memory_tools(session)]
    assert {tool["name"]: sorted(tool["parameters"]["properties"]) for tool in offered} == {
        "memory_remember": ["importance", "kind", "text"],
        "memory_recall": ["kind", "query"],
        "memory_revise": ["expected_revision", "id", "importance", "kind", "text"],
        "memory_retract": ["expected_revision", "id"],
    }
    assert [tool["parameters"]["required"] for tool in offered] == [
        ["text"], ["query"], ["id", "expected_revision"], ["id", "expected_revision"]
    ]  # fmt: skip
    assert all(len(tool["description"]) > 50 for tool in offered)
    assert "runtime" not in json.dumps(
        [tool.get_input_schema().model_json_schema() for tool in tools_of(session).values()]
    )


def test_a_subset_and_another_prefix_can_be_chosen(session: MemorySession) -> None:
    tools = create_memory_tools(session, include=["recall", "remember"], prefix="notes")
    assert [tool.name for tool in tools] == ["notes_remember", "notes_recall"]
    tools[0].invoke({"text": TEXT})
    assert session.sync.get("r1").sources[0].tool_name == "notes_remember"


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"include": ["recall", "forget"]}, "include"),
        ({"include": "recall"}, "include"),
        ({"include": [["recall"]]}, "include"),
        ({"prefix": ""}, "prefix"),
        ({"prefix": "my memory"}, "prefix"),
        ({"prefix": "x" * 56}, "prefix"),
        ({"prefix": None}, "prefix"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 1001}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"session_or_resolver": None}, "session_or_resolver"),
        ({"session_or_resolver": "ada"}, "session_or_resolver"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_path(session: MemorySession, arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        create_memory_tools(**({"session_or_resolver": session} | arguments))
    assert refused.value.path == path


def test_the_sync_side_of_a_session_is_refused_with_a_hint(session: MemorySession) -> None:
    with pytest.raises(InvalidRequestError, match=r"not its \.sync"):
        create_memory_tools(session.sync)


# --- whose memory: resolvers --------------------------------------------------------------------------------------


def user_of(request: MemoryRequest) -> str | None:
    user = request.config.get("configurable", {}).get("user_id")
    return user if isinstance(user, str) else None


def for_user(user: str) -> RunnableConfig:
    return {"configurable": {"user_id": user}}


class Resolvers:
    """The same resolver in every form that a host may give it."""

    def __init__(self, store: InMemoryStore) -> None:
        self.store = store

    def plain(self, request: MemoryRequest) -> MemorySession | None:
        user = user_of(request)
        return MemorySession(self.store, Scope(user_id=user)) if user else None

    async def coroutine(self, request: MemoryRequest) -> MemorySession | None:
        await asyncio.sleep(0)
        return self.plain(request)

    def returning_a_coroutine(self, request: MemoryRequest) -> Any:
        return self.coroutine(request)

    async def __call__(self, request: MemoryRequest) -> MemorySession | None:
        return await self.coroutine(request)


@pytest.mark.parametrize("form", ["plain", "coroutine", "returning_a_coroutine", "__call__"])
async def test_a_resolver_chooses_the_session_of_each_call(form: str) -> None:
    store = InMemoryStore()
    resolvers = Resolvers(store)
    tools = tools_of(resolvers if form == "__call__" else getattr(resolvers, form))
    tools["remember"].invoke({"text": "Ada's secret."}, for_user("ada"))
    await tools["remember"].ainvoke({"text": "Bob's secret."}, for_user("bob"))

    assert [one["text"] for one in read(tools["recall"].invoke({"query": "secret"}, for_user("bob")))] == [
        "Bob's secret."
    ]
    found = read(await tools["recall"].ainvoke({"query": "secret"}, for_user("ada")))
    assert [one["text"] for one in found] == ["Ada's secret."]
    assert read(tools["recall"].invoke({"query": "secret"})) == {"error": "no_session"}
    assert read(await tools["recall"].ainvoke({"query": "secret"})) == {"error": "no_session"}
    assert await store.scopes() == [Scope(user_id="ada"), Scope(user_id="bob")]


@pytest.mark.parametrize("found", ["nothing", "an error", "something else"])
def test_a_resolver_that_fails_leaves_no_session(use: Any, found: str, caplog: pytest.LogCaptureFixture) -> None:
    def resolver(request: MemoryRequest) -> Any:
        if found == "an error":
            raise KeyError("Ada's secret")
        return None if found == "nothing" else "ada"

    with caplog.at_level(logging.DEBUG, logger="vmem_langchain"):
        assert_refused(use(tools_of(resolver)["recall"], {"query": "secret"}), error="no_session")
    assert len(caplog.records) == (0 if found == "nothing" else 1)
    assert "secret" not in caplog.text


def test_a_request_tells_config_context_and_thread(session: MemorySession) -> None:
    seen: list[MemoryRequest] = []

    def resolver(request: MemoryRequest) -> MemorySession:
        seen.append(request)
        return session

    tools = tools_of(resolver)
    tools["recall"].invoke({"query": "tea"}, {"configurable": {"thread_id": 7, "user_id": "ada"}})
    tools["recall"].invoke({"query": "tea"})
    assert [(request.thread_id, request.context) for request in seen] == [("7", None), (None, None)]
    assert seen[0].config["configurable"]["user_id"] == "ada"
