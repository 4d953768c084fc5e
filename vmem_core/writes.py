"""The way of a write that needs no plan: replay, embed, run.

Owns the order of these calls; no transaction is open while an embedder works. Does not own plans with a language model
(``planning.py``) or any rule (``operations.py``).
"""

from __future__ import annotations

from vmem_core.models import ModelCalls
from vmem_core.operations import Remember, Revise
from vmem_core.plan import Outcome
from vmem_core.store import Store


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

    return await calls.following(attempt)
