"""The retriever: what its documents hold, how many there are, and whose they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import ADA, BOB, Clock, Ids
from langchain_core.documents import Document
from langchain_core.runnables import ConfigurableField, RunnableLambda

from vmem_core import (
    InMemoryStore,
    InvalidRequestError,
    MemorySession,
    Scope,
    Source,
    StoreUnavailableError,
    text_digest,
)
from vmem_langchain import MemoryRequest, MemoryRetriever


@pytest.fixture
def session() -> MemorySession:
    made = MemorySession(InMemoryStore(clock=Clock()), ADA, new_id=Ids())
    for number in range(6):
        made.sync.remember(f"Ada's tea number {number}.")
    return made


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Any:
    def call(retriever: Any, query: Any = "tea", config: Any = None, **more: Any) -> list[Document]:
        if request.param == "sync":
            return list(retriever.invoke(query, config, **more))
        return list(asyncio.run(retriever.ainvoke(query, config, **more)))

    return call


def test_a_document_is_a_record(ask: Any) -> None:
    session = MemorySession(InMemoryStore(clock=Clock()), ADA, new_id=Ids())
    sources = [Source("user", text_digest("a")), Source("tool", text_digest("b")), Source("user", text_digest("c"))]
    session.sync.remember("Ada likes green tea.", kind="episodic", sources=sources)
    session.sync.revise("r1", importance=1)
    [document] = ask(MemoryRetriever(session=session))
    [hit] = session.sync.recall("tea")
    assert document == Document(
        id="r1",
        page_content="Ada likes green tea.",
        metadata={
            "revision": 2,
            "origin": "asserted",
            "kind": "episodic",
            "source_kinds": ["user", "tool"],
            "score": hit.score,
            "match": "lexical",
            "recorded_at": "2026-03-01T10:00:00+00:00",
        },
    )


def test_there_are_at_most_k_documents_also_for_one_call(session: MemorySession, ask: Any) -> None:
    assert len(ask(MemoryRetriever(session=session))) == 4
    assert len(ask(MemoryRetriever(session, k=2))) == 2
    assert len(ask(MemoryRetriever(session, k=2), k=5)) == 5
    assert ask(MemoryRetriever(session), "helicopter") == []
    assert ask(MemoryRetriever(session), " ") == []


def test_it_can_be_configured_and_composed(session: MemorySession, ask: Any) -> None:
    retriever = MemoryRetriever(session).configurable_fields(k=ConfigurableField("k"))
    assert len(ask(retriever, config={"configurable": {"k": 3}})) == 3
    chain = MemoryRetriever(session, k=1) | RunnableLambda(len)
    assert chain.invoke("tea") == 1
    assert MemoryRetriever(session).batch(["tea", "tea"])[1][0].page_content.startswith("Ada's tea")


@pytest.mark.parametrize("k", [0, 1001, True, "3", 1.5])
def test_a_wrong_k_is_refused(session: MemorySession, ask: Any, k: Any) -> None:
    with pytest.raises(InvalidRequestError, match="k: must be an integer"):
        MemoryRetriever(session, k=k)
    with pytest.raises(InvalidRequestError, match="k: must be an integer"):
        ask(MemoryRetriever(session), k=k)


def test_a_wrong_argument_is_refused(session: MemorySession) -> None:
    with pytest.raises(InvalidRequestError, match="session: must be"):
        MemoryRetriever(session=session.sync)
    with pytest.raises(ValueError, match="top_k"):
        MemoryRetriever(session, top_k=3)


@pytest.mark.parametrize("query", [None, 7, ["tea"]])
def test_a_query_must_be_a_string(session: MemorySession, ask: Any, query: Any) -> None:
    with pytest.raises(InvalidRequestError, match="query: must be a string"):
        ask(MemoryRetriever(session), query)


def test_a_query_may_hold_anything_a_message_may(session: MemorySession, ask: Any) -> None:
    assert len(ask(MemoryRetriever(session, k=1), 'tea \x00 \ud800 "NEAR(" * OR -')) == 1


async def by_user(request: MemoryRequest) -> MemorySession | None:
    user = request.config.get("configurable", {}).get("user")
    return MemorySession(SHARED, Scope(user_id=user)) if user else None


SHARED = InMemoryStore()


def test_a_resolver_sees_the_config_of_a_direct_call(ask: Any) -> None:
    MemorySession(SHARED, BOB).sync.remember("Bob's tea.", supersede="skip_equal")
    retriever = MemoryRetriever(session=by_user)
    assert [found.page_content for found in ask(retriever, config={"configurable": {"user": "bob"}})] == ["Bob's tea."]
    assert ask(retriever, config={"configurable": {"user": "ada"}}) == []


def test_a_resolver_sees_the_config_inside_a_chain() -> None:
    MemorySession(SHARED, BOB).sync.remember("Bob's tea.", supersede="skip_equal")
    retriever = MemoryRetriever(session=by_user)
    chain = RunnableLambda(lambda query: retriever.invoke(query))
    assert len(chain.invoke("tea", {"configurable": {"user": "bob"}})) == 1


def test_without_a_session_it_raises(ask: Any) -> None:
    with pytest.raises(InvalidRequestError, match="found no session") as refused:
        ask(MemoryRetriever(session=by_user))
    assert refused.value.path == "session"


def test_what_a_resolver_raises_or_a_store_reaches_the_caller(session: MemorySession, ask: Any) -> None:
    def resolver(request: MemoryRequest) -> MemorySession:
        raise KeyError("user")

    with pytest.raises(KeyError):
        ask(MemoryRetriever(session=resolver))
    session.store.sync.close()
    with pytest.raises(StoreUnavailableError):
        ask(MemoryRetriever(session))


def test_it_does_not_show_whose_memory_it_has(session: MemorySession) -> None:
    assert "ada" not in repr(MemoryRetriever(session))
