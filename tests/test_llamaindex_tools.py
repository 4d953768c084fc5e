"""What the memory tools take and what they answer, called as LlamaIndex calls a tool, with no agent around."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from fakes import ADA, BOB, Ids, RawEmbedder
from llama_index.core.tools import FunctionTool, ToolMetadata, ToolOutput
from llama_index.core.tools.calling import acall_tool, call_tool
from llama_index.core.tools.tool_spec.base import BaseToolSpec

from vmem_core import InMemoryStore, InvalidRequestError, MemorySession, Scope, Source, text_digest
from vmem_llamaindex import MemoryRequest, MemoryToolSpec, create_memory_tools, tool_call_scope

TEXT = "Ada likes green tea."


@pytest.fixture
def session() -> MemorySession:
    return MemorySession(InMemoryStore(), Scope(user_id="ada", chat_id="chat-7"), new_id=Ids())


@pytest.fixture(params=["sync", "async"])
def use(request: pytest.FixtureRequest) -> Callable[..., ToolOutput]:
    """Call a tool, sync or async, in a call that has an id."""

    def call(tool: FunctionTool, args: dict[str, Any], call_id: str = "call_1") -> ToolOutput:
        with tool_call_scope(tool_call_id=call_id, execution_id="job-1"):
            return tool(**args) if request.param == "sync" else asyncio.run(tool.acall(**args))

    return call


def tools_of(session: Any, **more: Any) -> dict[str, FunctionTool]:
    return {tool.metadata.get_name().removeprefix("memory_"): tool for tool in create_memory_tools(session, **more)}


def read(output: ToolOutput) -> Any:
    return json.loads(output.content)


# --- answers ------------------------------------------------------------------------------------------------------


def test_remember_answers_the_record_and_cites_the_call(session: MemorySession, use: Any) -> None:
    output = use(tools_of(session)["remember"], {"text": TEXT, "kind": "episodic", "importance": 0.5})

    assert output.content == '{"id":"r1","revision":1,"origin":"inferred","status":"active","replayed":false}'
    assert (output.is_error, output.tool_name) == (False, "memory_remember")
    record = session.sync.get("r1")
    assert (record.text, record.kind, record.origin, record.importance) == (TEXT, "episodic", "inferred", 0.5)
    assert record.sources == (
        Source("assistant", text_digest(TEXT), chat_id="chat-7", tool_call_id="call_1", tool_name="memory_remember"),
    )


def test_a_text_that_is_stored_already_is_answered_and_not_added(session: MemorySession, use: Any) -> None:
    session.sync.remember(TEXT)
    answer = read(use(tools_of(session)["remember"], {"text": f"  {TEXT.upper()}"}))
    assert (answer["id"], answer["origin"], answer["already_stored"]) == ("r1", "asserted", True)
    assert session.sync.count() == 1


def test_recall_answers_records_as_an_array(session: MemorySession, use: Any) -> None:
    sources = [Source("user", text_digest("a")), Source("tool", text_digest("b")), Source("user", text_digest("c"))]
    session.sync.remember("Ada trinkt gern grünen Tee. お茶", sources=sources, kind="episodic")
    output = use(tools_of(session)["recall"], {"query": "Tee"})
    assert output.content == (
        '[{"id":"r1","revision":1,"text":"Ada trinkt gern grünen Tee. お茶","kind":"episodic","origin":"asserted",'
        '"source_kinds":["user","tool"],"status":"active"}]'
    )
    assert use(tools_of(session)["recall"], {"query": "helicopter"}).content == "[]"
    assert use(tools_of(session)["recall"], {"query": " "}).content == "[]"


def test_recall_filters_by_kind_and_answers_no_more_than_top_k(session: MemorySession, use: Any) -> None:
    for kind in ("semantic", "semantic", "procedural"):
        session.sync.remember(f"tea {kind}", kind=kind)
    recall = tools_of(session, top_k=1)["recall"]
    assert len(read(use(recall, {"query": "tea"}))) == 1
    assert [found["kind"] for found in read(use(recall, {"query": "tea", "kind": "procedural"}))] == ["procedural"]


def test_revise_and_retract_stay_inferred_and_cite_the_call(session: MemorySession, use: Any) -> None:
    tools = tools_of(session)
    use(tools["remember"], {"text": TEXT})
    revised = use(tools["revise"], {"id": "r1", "expected_revision": 1, "text": "Ada likes coffee."}, "call_2")
    assert read(revised) == {"id": "r1", "revision": 2, "origin": "inferred", "status": "active", "replayed": False}
    assert [source.tool_call_id for source in session.sync.get("r1").sources] == ["call_1", "call_2"]
    retracted = read(use(tools["retract"], {"id": "r1", "expected_revision": 2}, "call_3"))
    assert (retracted["revision"], retracted["status"]) == (3, "retracted")


def test_what_the_host_gets_besides_refers_to_records_and_holds_no_text(session: MemorySession, use: Any) -> None:
    tools = tools_of(session)
    written = use(tools["remember"], {"text": TEXT})
    found = use(tools["recall"], {"query": "tea"})
    assert written.raw_output == session.sync.receipt(session.sync.get("r1").operation_id).to_json()
    assert found.raw_output == [{"id": "r1", "revision": 1, "score": found.raw_output[0]["score"], "match": "lexical"}]
    assert "tea" not in json.dumps([written.raw_output, found.raw_output])


# --- refusals -----------------------------------------------------------------------------------------------------


def assert_refused(output: ToolOutput, **expected: Any) -> None:
    assert read(output) == expected
    assert output.is_error
    assert output.raw_output == expected


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
    for number, record_id in enumerate(("r9", foreign.id, "r1", "\x00\ud800")):
        args = {"id": record_id, "expected_revision": 1} | more
        assert_refused(use(tools_of(session)[tool], args, f"call_{number}"), error="not_found")


@pytest.mark.parametrize(
    ("tool", "args", "detail"),
    [
        ("remember", {"text": " \u200b"}, "text"),
        ("remember", {"text": "x" * 100_001}, "text"),
        ("remember", {"text": 7}, "text"),
        ("remember", {"text": {"a": [1]}}, "text"),
        ("remember", {}, "text"),
        ("remember", {"text": TEXT, "kind": "fact"}, "kind"),
        ("remember", {"text": TEXT, "importance": 1.5}, "importance"),
        ("remember", {"text": TEXT, "importance": float("nan")}, "importance"),
        ("recall", {"query": None}, "query"),
        ("recall", {"query": "tea", "kind": "all"}, "kind"),
        ("revise", {"id": "r1", "expected_revision": 1}, "revise"),
        ("revise", {"id": "r1", "expected_revision": 0, "text": "New."}, "expected_revision"),
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
        "scope", "user_id", "origin", "sources", "operation_id", "top_k", "tool_call_id", "ctx", "self", "context",
        "args", "kwargs", "metadata", "x" * 5_000, "\x00",
    ],
)  # fmt: skip
@pytest.mark.parametrize("tool", ["remember", "recall"])
def test_nothing_hidden_can_be_forged_through_extra_arguments(
    session: MemorySession, use: Any, tool: str, forged: str
) -> None:
    needed = {"remember": {"text": TEXT}, "recall": {"query": TEXT}}[tool]
    output = use(tools_of(session)[tool], needed | {forged: {"user_id": "bob"}})
    assert_refused(output, error="invalid_request", detail=forged.replace("\x00", "\ufffd")[:64])
    assert session.sync.scope_revision() == 0


def test_numbers_that_a_model_wrote_as_strings_are_taken(session: MemorySession, use: Any) -> None:
    session.sync.remember(TEXT, origin="inferred")
    answer = read(use(tools_of(session)["retract"], {"id": "r1", "expected_revision": "1"}))
    assert (answer["revision"], answer["status"]) == (2, "retracted")


def test_strings_that_no_store_can_hold_are_mended_and_the_fact_is_kept(session: MemorySession, use: Any) -> None:
    tools = tools_of(session)
    output = use(tools["remember"], {"text": "tea \ud83d\ude00 \x00 \udc00"})
    assert session.sync.get("r1").text == "tea \U0001f600 \ufffd \ufffd"
    assert output.model_dump_json()
    assert read(use(tools["recall"], {"query": "tea \x00 \udc00"}))[0]["id"] == "r1"
    assert not use(tools["remember"], {"text": "milk"}, "\x00\ud800").is_error
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


def test_a_failed_embedder_is_unavailable_and_logged_by_its_class_alone(
    use: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = InMemoryStore()
    MemorySession(store, ADA, embedder=RawEmbedder([[1.0, 0.0]])).sync.remember("Something.")
    tools = tools_of(MemorySession(store, ADA, embedder=RawEmbedder(ValueError("a secret"))))
    with caplog.at_level(logging.DEBUG, logger="vmem_llamaindex"):
        assert_refused(use(tools["remember"], {"text": TEXT}), error="unavailable")
        assert_refused(use(tools["recall"], {"query": TEXT}), error="unavailable")
    assert [record.message for record in caplog.records] == [
        "memory_remember: memory failed with ValueError", "memory_recall: memory failed with ValueError"
    ]  # fmt: skip


# --- ways to call -------------------------------------------------------------------------------------------------


async def test_sync_tools_work_while_a_loop_runs(session: MemorySession) -> None:
    tools = tools_of(session)
    assert read(tools["remember"](text=TEXT))["id"] == "r1"
    assert read(await tools["recall"].acall(query="tea"))[0]["id"] == "r1"


def test_one_tool_serves_many_loops(session: MemorySession) -> None:
    tools = tools_of(session)
    for text in ("one", "two"):
        asyncio.run(tools["remember"].acall(text=text))
    assert session.sync.count() == 2


def test_a_function_of_a_tool_answers_data(session: MemorySession) -> None:
    tools = tools_of(session)
    assert tools["remember"].fn(text=TEXT)["id"] == "r1"
    assert asyncio.run(tools["recall"].async_fn(query="tea"))[0]["text"] == TEXT
    assert tools["recall"].fn(top_k=3) == {"error": "invalid_request", "detail": "query"}


async def test_what_calls_a_tool_for_a_model_calls_it_once(session: MemorySession) -> None:
    tools = tools_of(session)
    assert read(call_tool(tools["remember"], {"text": TEXT}))["id"] == "r1"
    assert read(await acall_tool(tools["remember"], {"text": "Ada sails."}))["id"] == "r2"
    assert read(await acall_tool(tools["remember"], {"fact": "Ada sings."}))["error"] == "invalid_request"
    assert await session.scope_revision() == 2


def test_a_plain_string_is_taken_for_the_first_argument(session: MemorySession) -> None:
    tools = tools_of(session)
    assert read(tools["remember"]("half a pair: \ud800"))["id"] == "r1"
    assert read(tools["recall"]("half pair"))[0]["text"] == "half a pair: \ufffd"


def test_a_tool_does_not_show_whose_memory_it_has(session: MemorySession) -> None:
    assert "ada" not in repr(create_memory_tools(session))


# --- making them --------------------------------------------------------------------------------------------------


def test_the_tools_a_model_is_offered_and_their_arguments(session: MemorySession) -> None:
    offered = [tool.metadata.to_openai_tool()["function"] for tool in create_memory_tools(session)]
    assert {tool["name"]: sorted(tool["parameters"]["properties"]) for tool in offered} == {
        "memory_remember": ["importance", "kind", "text"],
        "memory_recall": ["kind", "query"],
        "memory_revise": ["expected_revision", "id", "importance", "kind", "text"],
        "memory_retract": ["expected_revision", "id"],
    }
    assert [tool["parameters"]["required"] for tool in offered] == [
        ["text"], ["query"], ["id", "expected_revision"], ["id", "expected_revision"]
    ]  # fmt: skip
    assert all(50 < len(tool["description"]) < 1024 for tool in offered)
    assert not any(tool.requires_context or tool.metadata.return_direct for tool in create_memory_tools(session))


def test_a_subset_and_another_prefix_can_be_chosen(session: MemorySession) -> None:
    tools = create_memory_tools(session, include=["recall", "remember"], prefix="notes")
    assert [tool.metadata.name for tool in tools] == ["notes_remember", "notes_recall"]
    tools[0](text=TEXT)
    assert session.sync.get("r1").sources[0].tool_name == "notes_remember"


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"include": ["recall", "forget"]}, "include"),
        ({"include": "recall"}, "include"),
        ({"prefix": ""}, "prefix"),
        ({"prefix": "x" * 56}, "prefix"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"session_or_resolver": None}, "session_or_resolver"),
        ({"session_or_resolver": "ada"}, "session_or_resolver"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_path(session: MemorySession, arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        create_memory_tools(**({"session_or_resolver": session} | arguments))
    assert refused.value.path == path


# --- the tool spec ------------------------------------------------------------------------------------------------


def test_a_tool_spec_gives_the_same_tools(session: MemorySession) -> None:
    spec = MemoryToolSpec(session, top_k=1)
    assert isinstance(spec, BaseToolSpec)
    tools = {tool.metadata.name: tool for tool in spec.to_tool_list()}
    assert list(tools) == spec.spec_functions
    for text in (TEXT, "Ada hates white tea."):
        tools["memory_remember"](text=text)
    assert len(read(tools["memory_recall"](query="tea"))) == 1
    assert read(tools["memory_retract"](id="r9", expected_revision=1)) == {"error": "not_found"}


def test_a_tool_of_a_spec_can_be_described_anew_and_keeps_its_schema(session: MemorySession) -> None:
    told = ToolMetadata("Write it down.", "note", fn_schema=None, return_direct=True)
    [tool] = MemoryToolSpec(session).to_tool_list(["memory_remember"], {"memory_remember": told})
    assert (tool.metadata.name, tool.metadata.description, tool.metadata.return_direct) == (
        "note", "Write it down.", True
    )  # fmt: skip
    assert "text" in tool.metadata.get_parameters_dict()["properties"]
    assert read(tool(text=TEXT, scope="bob")) == {"error": "invalid_request", "detail": "scope"}
    tool(text=TEXT)
    assert session.sync.get("r1").sources[0].tool_name == "note"


async def test_the_functions_of_a_spec_answer_data(session: MemorySession) -> None:
    spec = MemoryToolSpec(session)
    written = await spec.memory_remember(TEXT)
    assert (await spec.memory_recall("tea"))[0]["text"] == TEXT
    revised = await spec.memory_revise(written["id"], 1, importance=1.0)
    assert await spec.memory_retract(written["id"], 1) == {"error": "revision_conflict", "actual_revision": 2}
    assert (await spec.memory_retract(written["id"], revised["revision"]))["status"] == "retracted"


def test_a_spec_refuses_what_it_does_not_have(session: MemorySession) -> None:
    with pytest.raises(InvalidRequestError, match="must be names among memory_remember"):
        MemoryToolSpec(session).to_tool_list(["memory_forget"])
    with pytest.raises(InvalidRequestError, match=r"session: must be"):
        MemoryToolSpec(session.sync)


# --- whose memory: resolvers --------------------------------------------------------------------------------------


def resolvers(session: MemorySession | None) -> dict[str, Any]:
    """The same resolver in every form that a host may give it."""

    async def of_async(request: MemoryRequest) -> MemorySession | None:
        return session

    class Callable_:
        async def __call__(self, request: MemoryRequest) -> MemorySession | None:
            return session

    return {"sync": lambda request: session, "async": of_async, "object": Callable_(), "mixed": lambda r: of_async(r)}


@pytest.mark.parametrize("form", ["sync", "async", "object", "mixed"])
def test_a_resolver_in_any_form_finds_the_session(session: MemorySession, use: Any, form: str) -> None:
    assert read(use(tools_of(resolvers(session)[form])["remember"], {"text": TEXT}))["id"] == "r1"
    assert_refused(use(tools_of(resolvers(None)[form])["remember"], {"text": TEXT}), error="no_session")


def test_a_resolver_that_raises_or_returns_something_else_finds_no_session(
    session: MemorySession, use: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(request: MemoryRequest) -> MemorySession:
        raise KeyError("a secret")

    for resolver in (raises, lambda request: "ada", lambda request: session.sync):
        assert_refused(use(tools_of(resolver)["recall"], {"query": "tea"}), error="no_session")
    assert [record.message for record in caplog.records] == [
        f"memory_recall: the resolver failed with {name}"
        for name in ("KeyError", "InvalidRequestError", "InvalidRequestError")
    ]


def test_outside_of_a_workflow_a_resolver_is_told_of_no_context(session: MemorySession, use: Any) -> None:
    asked: list[MemoryRequest] = []
    use(tools_of(lambda request: asked.append(request) or session)["recall"], {"query": "tea"})
    assert asked == [MemoryRequest(context=None, binding=None)]
