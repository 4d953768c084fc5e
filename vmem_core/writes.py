"""The way of a write that needs no plan: replay, embed, run. And of every write that meets a store on its move.

Owns the order of these calls; no transaction is open while an embedder works. Does not own plans with a language model
(``planning.py``) or any rule (``operations.py``, ``generations.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from vmem_core.logs import log
from vmem_core.models import ModelCalls, PluggedEmbedder
from vmem_core.operations import Remember, Revise
from vmem_core.plan import Outcome
from vmem_core.results import Generation, WriteResult
from vmem_core.store import Store
from vmem_core.values import builder

_build_result: Final = builder(WriteResult)  # a store's answers are not checked again


async def embed_and_run(store: Store, calls: ModelCalls, operation: Remember | Revise, *, is_retry: bool) -> Outcome:
    """Embed the texts of an operation and run it.

    Args:
        store: Where memory is kept.
        calls: The way to the embedder.
        operation: Without vectors.
        is_retry: Whether the caller gave the operation id: a replay is answered before any embedding call.

    Raises:
        EmbeddingMismatchError: If the embedder's model or size is not the store's.
    """
    if calls.embedder is None or not operation.texts():
        return await store.run(operation)
    if is_retry and (replayed := await store.replay(operation)) is not None:
        return replayed

    async def attempt() -> Outcome:
        return await store.run(operation.with_vectors(await calls.embed_documents(operation.texts())))

    return await commit(store, calls, operation.texts(), attempt)


def result_of(outcome: Outcome, retries: int) -> WriteResult:
    """What the caller of a write is told."""
    return _build_result(outcome.receipt, outcome.replayed, outcome.records, retries, outcome.present)


async def commit(
    store: Store, calls: ModelCalls, texts: Sequence[str], attempt: Callable[[], Awaitable[Outcome]]
) -> Outcome:
    """Make a write that embeds; if the store is on its move to the session's next model, for that one too.

    Else a store that is written to all the time would never be complete. What goes wrong with the next model is no
    fault of the write: the job that moves the store does it again.

    Args:
        store: Where memory is kept.
        calls: The way to the embedders.
        texts: That are written, maybe.
        attempt: Embeds with the current embedder and runs the operation.
    """
    following = calls.next
    pending = await store.embeddings.prepared() if following is not None and texts else None
    if following is None or pending is None:
        return await calls.following(attempt)
    ahead = asyncio.create_task(_rows_ahead(calls, following, pending, list(dict.fromkeys(texts))))
    try:
        outcome = await calls.following(attempt)
    except BaseException:
        ahead.cancel()
        await asyncio.gather(ahead, return_exceptions=True)
        raise
    if not outcome.replayed:
        await _put_ahead(store, pending, outcome, ahead)
    return outcome


async def _rows_ahead(
    calls: ModelCalls, following: PluggedEmbedder, pending: Generation, texts: list[str]
) -> dict[str, Any]:
    """The rows of texts by the next embedder, if it is the one that the pending generation is of."""
    model, matrix = await calls.rows(following, texts)
    if (model, matrix.shape[1]) != (pending.model_id, pending.dims):
        return {}
    return dict(zip(texts, matrix, strict=True))


async def _put_ahead(store: Store, pending: Generation, outcome: Outcome, ahead: asyncio.Task[dict[str, Any]]) -> None:
    try:
        rows = await ahead
        made = [(one.id, one.revision, rows[one.text]) for one in outcome.records if one.text in rows]
        await store.embeddings.put(pending.number, made)
    except Exception as error:  # noqa: BLE001 - the write stands, and the job will meet the record
        log().warning("the next embedder's vectors are left to reembed: %s", type(error).__name__)
