"""Recall as a LlamaIndex retriever.

Owns the form of its nodes. Does not own how records are found (``vmem_core``) or which session a run has
(``binding.py``).
"""

from __future__ import annotations

import re
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

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
from vmem_llamaindex.binding import MemoryRequest, SessionResolver
from vmem_llamaindex.identity import step_context

_HIDDEN = ("kind", "source_kinds", "match")
_FROM_A_TOOL = re.compile(r"\ninput is (?P<query>.*)\n", re.DOTALL)  # how a RetrieverTool words a model's query


class MemoryRetriever(BaseRetriever):
    """Finds records of a memory as nodes, for query engines, chat engines and retriever tools.

    Each node has the record's text and the id ``<record id>@<revision>``, for a retriever that recalls drops nodes of
    equal ids. The model sees ``record_id``, ``revision``, ``origin`` and ``recorded_at`` (ISO 8601) above the text;
    ``kind``, ``source_kinds`` and ``match`` are metadata for the host. A score tells the order within one answer.

    Args:
        session: A session; or a function that gets a ``MemoryRequest`` at each call and returns one, sync or async.
        similarity_top_k: How many nodes at most, 1 to 1,000.
        callback_manager: LlamaIndex's; None: one without handlers.
        verbose: LlamaIndex's.

    Raises:
        InvalidRequestError: For a wrong argument; from a call also if the resolver returns None. What a resolver
            raises reaches the caller as it is.

    >>> from vmem_core import InMemoryStore, Scope
    >>> session = MemorySession(InMemoryStore(), Scope(user_id="ada"))
    >>> record = session.sync.remember("Ada likes green tea.").records[0]
    >>> [found] = MemoryRetriever(session, similarity_top_k=4).retrieve("Which tea?")
    >>> found.text, found.node.metadata["record_id"] == record.id, found.node.metadata["match"]
    ('Ada likes green tea.', True, 'lexical')
    """

    def __init__(
        self,
        session: MemorySession | SessionResolver,
        *,
        similarity_top_k: int = 4,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        self._source = check_session_source(session, "session")
        self._top_k = check_count(similarity_top_k, "similarity_top_k")
        super().__init__(callback_manager=callback_manager, verbose=verbose)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = _query(query_bundle)
        session = required_session(resolve_session(self._source, MemoryRequest(step_context())))
        return [_node(hit) for hit in session.sync.recall(query, top_k=self._top_k)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = _query(query_bundle)
        session = required_session(await aresolve_session(self._source, MemoryRequest(step_context())))
        return [_node(hit) for hit in await session.recall(query, top_k=self._top_k)]


def _query(bundle: QueryBundle) -> str:
    """The text to look for: what the bundle wants embedded, which is the query itself unless a host says otherwise.

    A vector that it brings along is not used: it does not say which model made it, and vectors of two models are never
    compared.
    """
    texts = bundle.custom_embedding_strs or [bundle.query_str]
    if not all(isinstance(text, str) for text in texts):  # None would ask for the newest records
        raise InvalidRequestError("must be a string", path="query")
    query = mend_string(" ".join(texts))
    wrapped = _FROM_A_TOOL.fullmatch(query)
    return wrapped["query"] if wrapped else query


def _node(hit: Hit) -> NodeWithScore:
    record = hit.record
    metadata: dict[str, Any] = {
        "record_id": record.id,
        "revision": record.revision,
        "origin": record.origin,
        "recorded_at": record.recorded_at.isoformat(),
        "kind": record.kind,
        "source_kinds": ", ".join(record.source_kinds),  # flat, as indexes want it
        "match": hit.match,
    }
    node = TextNode(
        id_=f"{record.id}@{record.revision}",
        text=record.text,
        metadata=metadata,
        excluded_llm_metadata_keys=list(_HIDDEN),
        excluded_embed_metadata_keys=list(metadata),
    )
    return NodeWithScore(node=node, score=hit.score)
