"""LlamaIndex's embedding models as a session's embedder."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fakes import ADA, word_vector
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.storage.kvstore import SimpleKVStore
from pydantic import ConfigDict, Field

from vmem_core import EmbeddingMismatchError, InMemoryStore, InvalidRequestError, MemorySession
from vmem_llamaindex import LlamaIndexEmbedder


class SyncOnly(BaseEmbedding):
    """As most local integrations are: their async methods are the sync ones, run on the loop."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    calls: list[Any] = Field(default_factory=list)
    loops: set[Any] = Field(default_factory=set)
    threads: set[str] = Field(default_factory=set)

    def _get_query_embedding(self, query: str) -> list[float]:
        self.calls.append(("query", query))
        self.threads.add(threading.current_thread().name)
        return word_vector(query, 8)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        self.calls.append(("texts", *texts))
        self.threads.add(threading.current_thread().name)
        return [word_vector(text, 8) for text in texts]


class Recorded(SyncOnly):
    """As an integration with an async client is."""

    async def _aget_query_embedding(self, query: str) -> list[float]:
        self.calls.append(("aquery", query))
        self.loops.add(asyncio.get_running_loop())
        return word_vector(query, 8)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        self.calls.append(("atexts", *texts))
        self.loops.add(asyncio.get_running_loop())
        return [word_vector(text, 8) for text in texts]


def made(model: type[SyncOnly] = Recorded, **more: Any) -> Any:
    return model(model_name="fake-8", **more)


def memory(model: BaseEmbedding, store: InMemoryStore | None = None, **more: Any) -> MemorySession:
    return MemorySession(store or InMemoryStore(), ADA, embedder=LlamaIndexEmbedder(model, **more))


async def test_texts_and_queries_go_to_their_own_methods() -> None:
    model = made()
    session = memory(model)
    await session.remember("green tea")
    hit = (await session.recall("green tea"))[0]
    assert model.calls == [("atexts", "green tea"), ("aquery", "green tea")]
    assert (hit.match, hit.vector_rank) == ("hybrid", 1)
    generation = await session.store.embeddings.active()
    assert (generation.model_id, generation.dims) == ("fake-8", 8)


async def test_texts_are_embedded_in_batches_of_the_models_size() -> None:
    model = made(embed_batch_size=2)
    embedder = LlamaIndexEmbedder(model)
    found = await embedder.embed(["a", "b", "c"], purpose="document")
    assert model.calls == [("atexts", "a", "b"), ("atexts", "c")]
    assert found.vectors == [word_vector(text, 8) for text in ("a", "b", "c")]
    assert (await embedder.embed([], purpose="document")).vectors == []
    assert (await embedder.embed([], purpose="query")).vectors == []


async def test_async_methods_are_called_on_one_loop_only() -> None:
    model = made()
    session = memory(model)
    await session.remember("green tea")
    session.sync.remember("black tea")  # from the loop behind .sync
    await asyncio.to_thread(lambda: asyncio.run(session.remember("white tea")))  # from a third one
    assert model.loops == {asyncio.get_running_loop()}
    assert [call[0] for call in model.calls] == ["atexts", "texts", "texts"]
    assert threading.main_thread().name not in model.threads


def test_sync_code_leaves_the_async_client_to_the_loop_that_comes_later() -> None:
    model = made()
    session = memory(model)
    session.sync.remember("green tea")
    asyncio.run(session.remember("black tea"))
    assert [call[0] for call in model.calls] == ["texts", "atexts"]


async def test_a_model_without_async_methods_of_its_own_never_holds_up_the_loop() -> None:
    model = made(SyncOnly)
    session = memory(model)
    await session.remember("green tea")
    assert (await session.recall("green tea"))[0].match == "hybrid"
    assert threading.main_thread().name not in model.threads


def test_what_the_model_raises_reaches_the_caller_and_nothing_is_written() -> None:
    class Broken(SyncOnly):
        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            raise ConnectionError("no route")

    session = memory(made(Broken))
    with pytest.raises(ConnectionError, match="no route"):
        session.sync.remember("green tea")
    assert session.sync.scope_revision() == 0


def test_another_model_id_is_another_space() -> None:
    store = InMemoryStore()
    memory(made(), store).sync.remember("green tea")
    with pytest.raises(EmbeddingMismatchError):
        memory(made(), store, model_id="fake-9").sync.recall("tea")


def test_a_cache_of_texts_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    LlamaIndexEmbedder(made(embeddings_cache=SimpleKVStore()))
    assert [record.message.split(" ")[1] for record in caplog.records] == ["embeddings_cache"]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"model": object()}, "model"),
        ({"model": SyncOnly}, "model"),
        ({"model": MockEmbedding(embed_dim=8)}, "model_id"),
        ({"model_id": " "}, "embeddings.model"),
        ({"model_id": 3}, "embeddings.model"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        LlamaIndexEmbedder(**({"model": made()} | arguments))
    assert refused.value.path == path


def test_it_shows_itself_without_keys() -> None:
    assert repr(LlamaIndexEmbedder(made())) == "LlamaIndexEmbedder(Recorded, model_id='fake-8')"
