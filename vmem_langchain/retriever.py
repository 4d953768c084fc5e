"""Recall as a LangChain retriever.

Owns the form of its documents. Does not own how records are found (``vmem_core``) or which session a run has
(``identity.py``).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from pydantic import ConfigDict, Field

from vmem_core import (
    Hit,
    InvalidRequestError,
    MemorySession,
    aresolve_session,
    check_count,
    check_session_source,
    mend_string,
    required_session,
    resolve_session,
)
from vmem_langchain.identity import MemoryRequest, SessionResolver, request_of

# A retriever is not told its config; a resolver needs it.
_CONFIG: ContextVar[RunnableConfig | None] = ContextVar("vmem_retriever_config", default=None)


class MemoryRetriever(BaseRetriever):
    """Finds records of a memory as documents.

    Each document has the record's id, its text, and ``metadata``: ``revision``, ``origin``, ``kind``,
    ``source_kinds``, ``score``, ``match`` and ``recorded_at`` (ISO 8601).

    Args:
        session: A session; or a function that gets a ``MemoryRequest`` at each call and returns one, sync or async.
        k: How many documents at most, 1 to 1,000; also for one call: ``retriever.invoke(query, k=2)``.

    Raises:
        InvalidRequestError: For a wrong argument; from a call also if the resolver returns None. What a resolver
            raises reaches the caller as it is.

    >>> from vmem_core import InMemoryStore, Scope
    >>> session = MemorySession(InMemoryStore(), Scope(user_id="ada"))
    >>> record = session.sync.remember("Ada likes green tea.").records[0]
    >>> [document] = MemoryRetriever(session=session, k=4).invoke("Which tea?")
    >>> document.page_content, document.id == record.id, document.metadata["match"]
    ('Ada likes green tea.', True, 'lexical')
    """

    model_config = ConfigDict(extra="forbid")

    session: Any = Field(exclude=True, repr=False)
    k: int = 4

    def __init__(self, session: MemorySession | SessionResolver, *, k: int = 4, **fields: Any) -> None:
        checked: dict[str, Any] = {"session": check_session_source(session, "session"), "k": check_count(k, "k")}
        super().__init__(**checked, **fields)

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Find documents for a query."""
        token = _CONFIG.set(ensure_config(config))
        try:
            return super().invoke(input, config, **kwargs)
        finally:
            _CONFIG.reset(token)

    async def ainvoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Find documents for a query."""
        token = _CONFIG.set(ensure_config(config))
        try:
            return await super().ainvoke(input, config, **kwargs)
        finally:
            _CONFIG.reset(token)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        text, count = _check_query(query), self._count(k)
        session = required_session(resolve_session(self.session, _request()))
        return [_document(hit) for hit in session.sync.recall(text, top_k=count)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        text, count = _check_query(query), self._count(k)
        session = required_session(await aresolve_session(self.session, _request()))
        return [_document(hit) for hit in await session.recall(text, top_k=count)]

    def _count(self, k: int | None) -> int:
        return check_count(self.k if k is None else k, "k")


def _request() -> MemoryRequest:
    return request_of(_CONFIG.get() or ensure_config())


def _check_query(query: object) -> str:
    if not isinstance(query, str):  # None would ask for the newest records
        raise InvalidRequestError(f"must be a string, not {type(query).__name__}", path="query")
    return mend_string(query)


def _document(hit: Hit) -> Document:
    record = hit.record
    return Document(
        id=record.id,
        page_content=record.text,
        metadata={
            "revision": record.revision,
            "origin": record.origin,
            "kind": record.kind,
            "source_kinds": list(record.source_kinds),
            "score": hit.score,
            "match": hit.match,
            "recorded_at": record.recorded_at.isoformat(),
        },
    )
