"""LlamaIndex's embedding models as the embedder of a session.

Owns the way from LlamaIndex's embeddings to ours. Does not own when texts are embedded (``vmem_core``). Touches none of
LlamaIndex's global ``Settings``, which load a provider's package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from llama_index.core.base.embeddings.base import BaseEmbedding

from vmem_core import Embeddings, FirstLoop, InvalidRequestError
from vmem_llamaindex.binding import LOG

_UNNAMED = "unknown"  # what LlamaIndex calls a model that was given no name


def given_name(name: object) -> str | None:
    """A model's name, if it was given one."""
    return name if isinstance(name, str) and name.strip() and name != _UNNAMED else None


class LlamaIndexEmbedder:
    """A LlamaIndex embedding model as the embedder of a session.

    Texts to be stored are embedded as texts, in batches of the model's ``embed_batch_size``; queries as queries, since
    many models put different instructions before the two. The model's async methods are used on the event loop that
    they were first used on, where async clients belong; from any other one (a notebook's, or the one behind
    ``session.sync``), and for a model that has none of its own, the sync methods run in a thread.

    Args:
        model: Any of LlamaIndex's embedding models. Give it no ``embeddings_cache``: it keeps texts that were
            forgotten, and answers a query with the vector of an equal text.
        model_id: Names the space of the vectors; None: the model's ``model_name``. Change it when you change the
            model or its instructions: vectors of two models are never compared.

    Raises:
        InvalidRequestError: For a wrong argument, or a model without a name and no ``model_id``.

    >>> from llama_index.core.embeddings import MockEmbedding
    >>> from vmem_core import InMemoryStore, MemorySession, Scope
    >>> embedder = LlamaIndexEmbedder(MockEmbedding(embed_dim=8, model_name="mock-8"))
    >>> memory = MemorySession(InMemoryStore(), Scope(user_id="ada"), embedder=embedder).sync
    >>> memory.remember("Ada likes green tea.").receipt.notes
    ()
    """

    def __init__(self, model: BaseEmbedding, *, model_id: str | None = None) -> None:
        if not isinstance(model, BaseEmbedding):
            raise InvalidRequestError(f"must be a LlamaIndex embedding, not {type(model).__name__}", path="model")
        name = given_name(model.model_name) if model_id is None else model_id
        if name is None:
            raise InvalidRequestError("the model has no name, so its vectors need one", path="model_id")
        Embeddings((), name)  # checks the id as it will be checked with every answer
        if model.embeddings_cache is not None:
            LOG.warning("an embeddings_cache keeps texts that were forgotten and takes queries for texts; use none")
        self._model, self.model_id, self._loop = model, name, FirstLoop()
        self._is_sync_only = type(model)._aget_text_embedding is BaseEmbedding._aget_text_embedding

    def __repr__(self) -> str:
        return f"LlamaIndexEmbedder({type(self._model).__name__}, model_id={self.model_id!r})"

    async def embed(self, texts: Sequence[str], *, purpose: Literal["document", "query"]) -> Embeddings:
        """Embed texts.

        Args:
            texts: What to embed.
            purpose: ``"document"`` for what is to be found, ``"query"`` for what looks for it.

        Returns:
            One vector a text, in order.
        """
        if purpose == "query":
            vectors = [await self._call("get_query_embedding", text) for text in texts]
        else:
            vectors = await self._call("get_text_embedding_batch", list(texts))
        return Embeddings(vectors, self.model_id)

    async def _call(self, method: str, argument: Any) -> Any:
        if not self._is_sync_only and self._loop.is_running():
            return await getattr(self._model, f"a{method}")(argument)
        return await asyncio.to_thread(getattr(self._model, method), argument)
