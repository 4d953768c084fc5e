"""LangChain's embedding models as a session's embedder."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fakes import ADA, word_vector
from langchain_core.embeddings import Embeddings as LangChainEmbeddings

from vmem_core import EmbeddingMismatchError, InMemoryStore, InvalidRequestError, MemorySession
from vmem_langchain import LangChainEmbedder


class Recorded(LangChainEmbeddings):
    """Embeds words by their hashes and keeps which method was called, on which loop."""

    def __init__(self, dims: int = 8) -> None:
        self.dims = dims
        self.calls: list[str] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.threads: set[str] = set()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls.append("embed_documents")
        self.threads.add(threading.current_thread().name)
        return [word_vector(text, self.dims) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.calls.append("embed_query")
        return word_vector(text, self.dims)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls.append("aembed_documents")
        self.loops.add(asyncio.get_running_loop())
        return [word_vector(text, self.dims) for text in texts]

    async def aembed_query(self, text: str) -> list[float]:
        self.calls.append("aembed_query")
        self.loops.add(asyncio.get_running_loop())
        return word_vector(text, self.dims)


class SyncOnly(LangChainEmbeddings):
    """As most small integrations are."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [word_vector(text, 8) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return word_vector(text, 8)


def memory(model: LangChainEmbeddings, store: InMemoryStore | None = None, model_id: str = "fake-8") -> MemorySession:
    return MemorySession(store or InMemoryStore(), ADA, embedder=LangChainEmbedder(model, model_id=model_id))


async def test_documents_and_queries_go_to_their_own_methods() -> None:
    model = Recorded()
    session = memory(model)
    await session.remember("green tea")
    hit = (await session.recall("green tea"))[0]
    assert model.calls == ["aembed_documents", "aembed_query"]
    assert (hit.match, hit.vector_rank) == ("hybrid", 1)
    generation = await session.store.embeddings.active()
    assert (generation.model_id, generation.dims) == ("fake-8", 8)


async def test_async_methods_are_called_on_one_loop_only() -> None:
    model = Recorded()
    session = memory(model)
    await session.remember("green tea")
    session.sync.remember("black tea")  # from the loop behind .sync
    await asyncio.to_thread(lambda: asyncio.run(session.remember("white tea")))  # from a third one
    assert model.loops == {asyncio.get_running_loop()}
    assert model.calls == ["aembed_documents", "embed_documents", "embed_documents"]
    assert threading.main_thread().name not in model.threads


def test_sync_code_leaves_the_async_client_to_the_loop_that_comes_later() -> None:
    model = Recorded()
    session = memory(model)
    session.sync.remember("green tea")
    asyncio.run(session.remember("black tea"))
    assert model.calls == ["embed_documents", "aembed_documents"]


def test_a_loop_that_is_gone_is_not_taken_for_a_new_one() -> None:
    model = Recorded()
    session = memory(model)
    for text in ("green tea", "black tea", "white tea"):
        asyncio.run(session.remember(text))
    assert model.calls == ["aembed_documents", "embed_documents", "embed_documents"]


async def test_a_model_with_sync_methods_alone_works_in_both_worlds() -> None:
    session = memory(SyncOnly())
    await session.remember("green tea")
    session.sync.remember("black coffee")
    assert (await session.recall("green tea"))[0].match == "hybrid"
    assert session.sync.recall("green tea")[0].match == "hybrid"


def test_what_the_model_raises_reaches_the_caller_and_nothing_is_written() -> None:
    class Broken(SyncOnly):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise ConnectionError("no route")

    session = memory(Broken())
    with pytest.raises(ConnectionError, match="no route"):
        session.sync.remember("green tea")
    assert session.sync.scope_revision() == 0


def test_another_model_id_is_another_space() -> None:
    store = InMemoryStore()
    memory(SyncOnly(), store).sync.remember("green tea")
    with pytest.raises(EmbeddingMismatchError):
        memory(SyncOnly(), store, "fake-9").sync.recall("tea")


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"embeddings": object()}, "embeddings"),
        ({"embeddings": SyncOnly}, "embeddings"),
        ({"model_id": " "}, "embeddings.model"),
        ({"model_id": None}, "embeddings.model"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        LangChainEmbedder(**({"embeddings": SyncOnly(), "model_id": "fake-8"} | arguments))
    assert refused.value.path == path
