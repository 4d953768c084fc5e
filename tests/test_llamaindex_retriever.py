"""The retriever: what its nodes hold and show, how many there are, and whose they are."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fakes import ADA, BOB, Clock, Ids
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.indices.query.query_transform.base import HyDEQueryTransform
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.tools import RetrieverTool
from llama_index.core.workflow import Context
from llamaindex_fakes import AGENTS, Call, KeptMemory, ScriptedLLM, outputs

from vmem_core import (
    InMemoryStore,
    InvalidRequestError,
    MemorySession,
    Source,
    StoreUnavailableError,
    text_digest,
)
from vmem_llamaindex import MemoryRequest, MemoryRetriever


@pytest.fixture
def session() -> MemorySession:
    made = MemorySession(InMemoryStore(clock=Clock()), ADA, new_id=Ids())
    for number in range(6):
        made.sync.remember(f"Ada's tea number {number}.")
    return made


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Any:
    def call(retriever: Any, query: Any = "tea") -> list[NodeWithScore]:
        if request.param == "sync":
            return list(retriever.retrieve(query))
        return list(asyncio.run(retriever.aretrieve(query)))

    return call


def record_ids(nodes: list[NodeWithScore]) -> list[str]:
    return [found.node.metadata["record_id"] for found in nodes]


def test_a_node_is_a_revision_of_a_record(ask: Any) -> None:
    session = MemorySession(InMemoryStore(clock=Clock()), ADA, new_id=Ids())
    sources = [Source("user", text_digest("a")), Source("tool", text_digest("b")), Source("user", text_digest("c"))]
    session.sync.remember("Ada likes green tea.", kind="episodic", sources=sources, operation_id="secret-operation")
    session.sync.revise("r1", importance=1)
    [found] = ask(MemoryRetriever(session))
    [hit] = session.sync.recall("tea")
    assert (found.node.node_id, found.text, found.score) == ("r1@2", "Ada likes green tea.", hit.score)
    assert found.node.metadata == {
        "record_id": "r1",
        "revision": 2,
        "origin": "asserted",
        "recorded_at": "2026-03-01T10:00:00+00:00",
        "kind": "episodic",
        "source_kinds": "user, tool",
        "match": "lexical",
    }


def test_two_revisions_of_one_record_are_two_nodes(session: MemorySession) -> None:
    retriever = MemoryRetriever(session, similarity_top_k=1)
    before = retriever.retrieve("number 3")
    session.sync.revise("r4", text="Ada's tea number 3 is cold.")
    after = retriever.retrieve("number 3")
    # LlamaIndex drops later nodes with the id of an earlier one.
    both = retriever._handle_recursive_retrieval(QueryBundle("number 3"), [*before, *after])
    assert [found.node.node_id for found in both] == ["r4@1", "r4@2"]


def test_a_model_sees_the_labels_and_no_internals(session: MemorySession, ask: Any) -> None:
    node = ask(MemoryRetriever(session, similarity_top_k=1), "number 3")[0].node
    assert node.get_content(MetadataMode.LLM) == (
        "record_id: r4\nrevision: 1\norigin: asserted\nrecorded_at: 2026-03-01T10:00:00+00:00\n\nAda's tea number 3."
    )
    assert node.get_content(MetadataMode.EMBED) == "Ada's tea number 3."
    everything = node.to_json()
    assert all(word not in everything for word in ("operation", "scope", "user_id", "digest"))


def test_there_are_at_most_so_many_nodes(session: MemorySession, ask: Any) -> None:
    assert len(ask(MemoryRetriever(session))) == 4
    assert len(ask(MemoryRetriever(session, similarity_top_k=2))) == 2
    assert ask(MemoryRetriever(session), "helicopter") == []
    assert ask(MemoryRetriever(session), " ") == []
    assert ask(MemoryRetriever(session), "") == []


@pytest.mark.parametrize("count", [0, 1001, True, "3", 1.5])
def test_a_wrong_number_is_refused(session: MemorySession, count: Any) -> None:
    with pytest.raises(InvalidRequestError, match="similarity_top_k: must be an integer"):
        MemoryRetriever(session, similarity_top_k=count)


def test_a_wrong_session_is_refused(session: MemorySession) -> None:
    with pytest.raises(InvalidRequestError, match="session: must be"):
        MemoryRetriever(session.sync)
    assert isinstance(MemoryRetriever(session), BaseRetriever)


@pytest.mark.parametrize("query", [QueryBundle(None), QueryBundle("tea", custom_embedding_strs=[7])])
def test_a_query_must_be_a_string(session: MemorySession, ask: Any, query: Any) -> None:
    with pytest.raises(InvalidRequestError, match="query: must be a string"):
        ask(MemoryRetriever(session), query)


def test_a_query_may_hold_anything_a_message_may(session: MemorySession, ask: Any) -> None:
    assert len(ask(MemoryRetriever(session, similarity_top_k=1), 'tea \x00 \ud800 "NEAR(" * OR -')) == 1


def test_a_bundle_is_looked_for_by_what_it_wants_embedded(session: MemorySession, ask: Any) -> None:
    session.sync.remember("Ada sails a boat.")
    retriever = MemoryRetriever(session)
    assert record_ids(ask(retriever, QueryBundle("What is it?", custom_embedding_strs=["a boat", "sails"]))) == ["r7"]
    assert len(ask(retriever, QueryBundle("tea", embedding=[0.1, 0.2]))) == 4  # a vector of no known model is not used


async def test_a_query_made_by_a_model_is_looked_for(session: MemorySession) -> None:
    await session.remember("Ada sails a boat.")
    imagined = MockFunctionCallingLLM(
        is_chat_model=True,
        response_generator=lambda messages, **more: ChatMessage(role="assistant", content="A boat sails."),
    )
    bundle = HyDEQueryTransform(llm=imagined).run("Which hobby?")
    assert "r7" in record_ids(await MemoryRetriever(session).aretrieve(bundle))


def test_sync_works_inside_a_running_loop_and_in_a_thread(session: MemorySession) -> None:
    retriever = MemoryRetriever(session)

    async def inside() -> int:
        return len(retriever.retrieve("tea"))

    assert asyncio.run(inside()) == 4
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(retriever.retrieve("tea"))))
    thread.start()
    thread.join()
    assert found == [4]


# --- in what LlamaIndex makes of it -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_query_engine_answers_from_memory(session: MemorySession, way: str) -> None:
    llm = ScriptedLLM([])
    engine = RetrieverQueryEngine(
        MemoryRetriever(session, similarity_top_k=2), get_response_synthesizer(llm=llm, response_mode="compact")
    )
    response = engine.query("number 3") if way == "sync" else asyncio.run(engine.aquery("number 3"))
    assert str(response) == "done"
    shown = str(llm.seen[-1][-1].content)
    assert "record_id: r4\nrevision: 1\norigin: asserted" in shown
    assert "lexical" not in shown
    assert response.source_nodes[0].node.node_id == "r4@1"
    assert set(response.metadata) == {found.node.node_id for found in response.source_nodes}


def test_what_is_retracted_or_forgotten_is_not_retrieved_any_more(session: MemorySession, ask: Any) -> None:
    retriever = MemoryRetriever(session, similarity_top_k=10)
    session.sync.retract("r1")
    session.sync.forget("r2")
    assert sorted(record_ids(ask(retriever))) == ["r3", "r4", "r5", "r6"]


async def test_a_retriever_tool_finds_what_the_model_asked_for(session: MemorySession) -> None:
    await session.remember("The input of the amplifier is broken.")
    tool = RetrieverTool.from_defaults(MemoryRetriever(session, similarity_top_k=1), name="look", description="Look.")
    found = await tool.acall(input="Which tea has number 3?")
    assert "record_id: r4\nrevision: 1\norigin: asserted" in found.content
    assert "Ada's tea number 3." in tool.call(input="Which tea has number 3?").content
    assert tool.call("number 5").content.endswith("Ada's tea number 5.\n\n")


@pytest.mark.parametrize("kind", list(AGENTS))
async def test_an_agent_uses_it_as_a_tool(session: MemorySession, kind: str) -> None:
    tool = RetrieverTool.from_defaults(MemoryRetriever(session, similarity_top_k=1), name="look", description="Look.")
    agent = AGENTS[kind]([[Call("look", {"input": "tea number 3"})]], [tool])
    context = Context(agent)
    result = await agent.run("hello", ctx=context, memory=KeptMemory())
    assert "Ada's tea number 3." in outputs(result)[0].content
    assert context.to_dict()


# --- whose memory -------------------------------------------------------------------------------------------------


async def test_a_resolver_is_told_of_the_context_that_it_is_asked_in() -> None:
    store = InMemoryStore()
    for scope, text in ((ADA, "Ada's tea."), (BOB, "Bob's tea.")):
        await MemorySession(store, scope).remember(text)

    async def session_of(request: MemoryRequest) -> MemorySession | None:
        assert request.context is not None
        scope = {"ada": ADA, "bob": BOB}.get(await request.context.store.get("user_id", default=None))
        return None if scope is None else MemorySession(store, scope)

    tool = RetrieverTool.from_defaults(MemoryRetriever(session_of), name="look", description="Look.")

    async def ask(user: str) -> str:
        agent = AGENTS["FunctionAgent"]([[Call("look", {"input": "tea"})]], [tool])
        context = Context(agent)
        await context.store.set("user_id", user)
        return str(outputs(await agent.run("hello", ctx=context, memory=KeptMemory()))[0].content)

    assert "Ada's tea." in await ask("ada")
    assert "Bob's tea." in await ask("bob")
    assert "found no session" in await ask("eve")


def test_without_a_session_it_raises(ask: Any) -> None:
    with pytest.raises(InvalidRequestError, match="found no session") as refused:
        ask(MemoryRetriever(lambda request: None))
    assert refused.value.path == "session"


def test_what_a_resolver_raises_or_a_store_reaches_the_caller(session: MemorySession, ask: Any) -> None:
    def resolver(request: MemoryRequest) -> MemorySession:
        raise KeyError("user")

    with pytest.raises(KeyError):
        ask(MemoryRetriever(resolver))
    session.store.sync.close()
    with pytest.raises(StoreUnavailableError):
        ask(MemoryRetriever(session))


def test_it_does_not_show_whose_memory_it_has(session: MemorySession) -> None:
    assert "ada" not in repr(MemoryRetriever(session))
