"""LangChain's models as what a session plugs in.

Owns the way from LangChain's embeddings to ours. Does not own when texts are embedded (``vmem_core``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from langchain_core.embeddings import Embeddings as LangChainEmbeddings

from vmem_core import Embeddings, FirstLoop, InvalidRequestError


class LangChainEmbedder:
    """LangChain's embeddings as the embedder of a session.

    Texts to be stored go to ``embed_documents``, queries to ``embed_query``; in async code to their async twins. An
    async client is bound to the event loop that it first ran on. So the async methods are used on that loop alone;
    from any other one (a notebook's, or the one behind ``session.sync``) the sync methods run in a thread.

    Args:
        embeddings: Any of LangChain's embedding models.
        model_id: Names the space of the vectors, such as ``"text-embedding-3-small"``. Change it when you change the
            model: vectors of two models are never compared.

    Raises:
        InvalidRequestError: For a wrong argument.

    >>> from langchain_core.embeddings import DeterministicFakeEmbedding
    >>> from vmem_core import InMemoryStore, MemorySession, Scope
    >>> embedder = LangChainEmbedder(DeterministicFakeEmbedding(size=8), model_id="fake-8")
    >>> memory = MemorySession(InMemoryStore(), Scope(user_id="ada"), embedder=embedder).sync
    >>> memory.remember("Ada likes green tea.").receipt.notes
    ()
    """

    def __init__(self, embeddings: LangChainEmbeddings, *, model_id: str) -> None:
        if not isinstance(embeddings, LangChainEmbeddings):
            raise InvalidRequestError(
                f"must be LangChain embeddings, not {type(embeddings).__name__}", path="embeddings"
            )
        Embeddings((), model_id)  # checks the id as it will be checked with every answer
        self._embeddings, self.model_id = embeddings, model_id
        self._loop = FirstLoop()

    def __repr__(self) -> str:
        return f"LangChainEmbedder({type(self._embeddings).__name__}, model_id={self.model_id!r})"

    async def embed(self, texts: Sequence[str], *, purpose: Literal["document", "query"]) -> Embeddings:
        """Embed texts.

        Args:
            texts: What to embed.
            purpose: ``"document"`` for what is to be found, ``"query"`` for what looks for it.

        Returns:
            One vector a text, in order.
        """
        if purpose == "query":
            vectors = [await self._call("embed_query", text) for text in texts]
        else:
            vectors = await self._call("embed_documents", list(texts))
        return Embeddings(vectors, self.model_id)

    async def _call(self, method: str, argument: Any) -> Any:
        if self._loop.is_running():
            return await getattr(self._embeddings, f"a{method}")(argument)
        return await asyncio.to_thread(getattr(self._embeddings, method), argument)
