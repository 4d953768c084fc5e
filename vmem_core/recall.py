"""From the arguments of ``recall`` to hits.

Owns the checks of a query's arguments and when the query is embedded. Does not own ranking (``index.py``).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, cast

from vmem_core.errors import EmbeddingMismatchError, InvalidRequestError
from vmem_core.models import ModelCalls
from vmem_core.records import KINDS, Scope, check_metadata
from vmem_core.results import Hit, Hits
from vmem_core.store import FUSIONS, Found, Fusion, Search, Store, check_count
from vmem_core.text import check_string, is_blank
from vmem_core.values import builder, check_choice, check_instant, check_integer

_build_hit: Final = builder(Hit)  # a store's answers are not checked again


def build_search(
    text: str | None,
    *,
    kind: str | None,
    top_k: int,
    recorded_as_of: datetime | None,
    at_scope_revision: int | None,
    include_retracted: bool,
    include_expired: bool,
    metadata: dict[str, Any] | None,
    fusion: Fusion,
) -> Search:
    """A checked search.

    Raises:
        InvalidRequestError: For a wrong argument, named by its path.
    """
    if recorded_as_of is not None and at_scope_revision is not None:
        raise InvalidRequestError("give recorded_as_of or at_scope_revision, not both", path="at_scope_revision")
    return Search(
        text=None if text is None else check_string(text, "text"),
        top_k=check_count(top_k, "top_k"),
        kind=None if kind is None else check_choice(kind, KINDS, "kind"),
        metadata=check_metadata(metadata),
        include_retracted=_check_flag(include_retracted, "include_retracted"),
        include_expired=_check_flag(include_expired, "include_expired"),
        recorded_as_of=None if recorded_as_of is None else check_instant(recorded_as_of, "recorded_as_of"),
        at_scope_revision=(
            None if at_scope_revision is None else check_integer(at_scope_revision, "at_scope_revision", least=0)
        ),
        fusion=cast(Fusion, check_choice(fusion, FUSIONS, "fusion")),
    )


def check_reached(asked: int, current: int) -> None:
    """Refuse a revision that is still to come: what is known at it can change, so that no answer would be exact.

    Args:
        asked: The revision of the scope that is asked for.
        current: The one that it has reached.

    Raises:
        InvalidRequestError: Naming the current one.
    """
    if asked > current:
        raise InvalidRequestError(
            f"the scope is at revision {current}, and what is known later nobody can tell; give {current} or less",
            path="at_scope_revision",
        )


def _check_flag(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"must be True or False, not {type(value).__name__}", path=path)
    return value


def fusion_of(asked: Fusion | None, embedder: object) -> Fusion:
    """The fusion that is asked for, or that the embedder asks for with an attribute ``fusion``, or by ranks."""
    if asked is not None:
        return asked
    wanted = getattr(embedder, "fusion", None)
    return cast(Fusion, wanted) if wanted in FUSIONS else "rrf"


async def recall(store: Store, scope: Scope, search: Search, calls: ModelCalls) -> Hits:
    """The hits of a search; a blank text finds nothing.

    The query is embedded only once the store has a generation, and outside any transaction.

    Raises:
        EmbeddingMismatchError: If the embedder's model or size is not the store's.
        InvalidRequestError: If the scope has not reached the revision that is asked for.
    """
    if search.at_scope_revision is not None:
        check_reached(search.at_scope_revision, await store.scope_revision(scope))
    if search.text is not None and is_blank(search.text):
        return Hits()
    if search.text is not None and calls.embedder is not None:
        generation = store.known_generation or await store.embeddings.active()
        if generation is not None:
            found = await calls.following(lambda: _embed_and_search(store, scope, search, calls))
            return _hits(found)
    return _hits(await store.search(scope, search))


async def _embed_and_search(store: Store, scope: Scope, search: Search, calls: ModelCalls) -> list[Found]:
    assert search.text is not None
    vector = await calls.embed_query(search.text)
    try:
        return await store.search(scope, search.with_vector(vector))
    except EmbeddingMismatchError:
        await store.embeddings.active()  # what the store has known so far is out of date
        raise


def _hits(found: list[Found]) -> Hits:
    return Hits(_build_hit(f.record, f.score, f.match, f.vector_rank, f.lexical_rank) for f in found)
