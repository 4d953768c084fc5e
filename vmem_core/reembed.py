"""The job that moves a store to another embedding model, or fills what the active one lacks.

Owns the order of the calls: pages of what is missing, batches to the embedder, vectors to the store, passes, and what
is done when one text fails. Does not own which vector counts or when a store switches (``generations.py``). No lock,
connection or transaction is held while the embedder works.

The job keeps nothing: what it has done is in the store, so that it may end anywhere and begin again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vmem_core import tracing
from vmem_core.errors import EmbeddingMismatchError, InvalidRequestError, VmemError
from vmem_core.generations import MOST_PENDING, Pending, check_model
from vmem_core.logs import log
from vmem_core.models import ModelCalls, PluggedEmbedder
from vmem_core.results import ReembedResult
from vmem_core.store import Store
from vmem_core.values import check_integer

_PASSES: Final = 3
_MOST_CALLS: Final = 100
_MOST_NAMED: Final = 100
_HARMLESS: Final = "a"  # a text that every embedder takes

_Row = tuple[str, int, Any]  # record id, revision, vector or None


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of a job, checked."""

    embedder: PluggedEmbedder
    model_id: str
    dims: int
    batch_size: int
    concurrency: int
    progress: Callable[[int, int], Any] | None


def check_order(
    embedder: object, model_id: object, dims: object, batch_size: object, concurrency: object, progress: object
) -> Order:
    """The arguments of ``reembed``, checked.

    Raises:
        InvalidRequestError: For a wrong one.
    """
    if embedder is None:
        raise InvalidRequestError("must have embed(texts, *, purpose) or be such a callable", path="embedder")
    model, size = check_model(model_id, dims)
    if progress is not None and not callable(progress):
        raise InvalidRequestError("must be a callable of (done, total)", path="progress")
    return Order(
        PluggedEmbedder(embedder, model),
        model,
        size,
        check_integer(batch_size, "batch_size", least=1, most=MOST_PENDING),
        check_integer(concurrency, "concurrency", least=1, most=_MOST_CALLS),
        progress,
    )


async def run(store: Store, calls: ModelCalls, order: Order) -> ReembedResult:
    """Run a job; if the store switches, the session goes on with the new embedder.

    Args:
        store: Every scope of it.
        calls: The session's way to models.
        order: What is asked.
    """
    with tracing.span("reembed") as span, calls.expecting(order.embedder):
        result = await Job(store, calls, order).run()
        if result.activated:
            calls.use(order.embedder)
        span.record(records=result.embedded, generation=result.generation)
        return result


class Job:
    """One call of ``reembed``.

    Args:
        store: Every scope of it.
        calls: The session's way to models: it holds the ledger.
        order: What is asked.
    """

    def __init__(self, store: Store, calls: ModelCalls, order: Order) -> None:
        self._generations, self._calls, self._order = store.embeddings, calls, order
        self._number = 0
        self._embedded, self._skipped = 0, Counter[str]()
        self._failed: list[str] = []
        self._total = 0
        self._pages = asyncio.Lock()  # one page is read after the other
        self._after: str | None = None
        self._has_more = True
        self._ahead: asyncio.Task[list[Pending]] | None = None

    async def run(self) -> ReembedResult:
        """Fill the generation, and switch to it if nothing is missing."""
        self._number = (await self._generations.begin(self._order.model_id, self._order.dims)).number
        activated = False
        for _ in range(_PASSES):
            await self._fill()
            activated = await self._generations.activate(self._number)
            if activated:
                break
        reasons = {code: count for code, count in sorted(self._skipped.items()) if count}
        skipped = sum(reasons.values())
        return ReembedResult(self._number, self._embedded, skipped, activated, reasons, tuple(self._failed))

    async def _fill(self) -> None:
        """One pass over what is missing."""
        self._after, self._has_more, self._ahead = None, True, None
        self._failed.clear()
        self._skipped["failed"] = 0  # those that fail are met again in each pass
        if self._order.progress is not None:
            self._total = self._done + await self._generations.missing(self._number)
            await self._tell()
        workers = [self._work() for _ in range(self._order.concurrency)]
        try:
            # All of them end before an error goes on: the batches of the others are paid for, so they are stored.
            ended = await asyncio.gather(*workers, return_exceptions=True)
        finally:
            await self._drop_ahead()
        for error in ended:
            if error is not None:
                raise error

    async def _work(self) -> None:
        try:
            while page := await self._page():
                await self._put(await self._embed(page))
                await self._tell()
        finally:
            self._has_more = False

    async def _page(self) -> list[Pending]:
        """The next records that lack a vector, each once a pass."""
        async with self._pages:
            if not self._has_more:
                return []
            page = await (self._read() if self._ahead is None else self._ahead)
            # The page that follows is read while this one is embedded.
            self._ahead = asyncio.create_task(self._read()) if page else None
            return page

    async def _drop_ahead(self) -> None:
        """Let go of a page that nobody will ask for."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)

    async def _read(self) -> list[Pending]:
        page = await self._generations.pending(self._number, self._order.batch_size, after=self._after)
        if page:
            self._after = page[-1][0]
        return page

    # --- one batch ------------------------------------------------------------------------------------------------

    async def _embed(self, page: Sequence[Pending]) -> list[_Row]:
        """The rows of a page. If the embedder raises, halves of it are tried, until each text that fails is known."""
        try:
            return await self._rows(page)
        except VmemError:
            raise  # another model, a wrong count, a spent budget: no text is at fault
        except Exception as error:
            if not await self._answers():
                raise
            if len(page) == 1:
                self._fail(page[0], error)
                return []
        middle = len(page) // 2
        return [*await self._embed(page[:middle]), *await self._embed(page[middle:])]

    async def _rows(self, page: Sequence[Pending]) -> list[_Row]:
        from vmem_core.ranking import unit

        texts = list(dict.fromkeys(text for _, _, text in page))
        model, matrix = await self._calls.rows(self._order.embedder, texts)
        if (model, matrix.shape[1]) != (self._order.model_id, self._order.dims):
            raise EmbeddingMismatchError(self._order.model_id, self._order.dims, model, matrix.shape[1])
        _, embeddable = unit(matrix)
        vector_of = {text: row if ok else None for text, row, ok in zip(texts, matrix, embeddable, strict=True)}
        return [(record_id, revision, vector_of[text]) for record_id, revision, text in page]

    async def _answers(self) -> bool:
        """Whether the embedder answers at all, so that it was the text that failed."""
        try:
            await self._calls.rows(self._order.embedder, [_HARMLESS])
        except VmemError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the first error is what the caller gets
            log().debug("the embedder does not answer: %s", type(error).__name__)
            return False
        return True

    def _fail(self, missing: Pending, error: Exception) -> None:
        log().warning("the text of record %r cannot be embedded: %s", missing[0], type(error).__name__)
        self._skipped["failed"] += 1
        if len(self._failed) < _MOST_NAMED:
            self._failed.append(missing[0])

    async def _put(self, rows: Sequence[_Row]) -> None:
        vectors = [row for row in rows if row[2] is not None]
        marks = [row for row in rows if row[2] is None]
        if vectors:
            stored = await self._generations.put(self._number, vectors)
            self._embedded += stored
            self._skipped["revised"] += len(vectors) - stored
        if marks:
            stored = await self._generations.put(self._number, marks)
            self._skipped["not_embeddable"] += stored
            self._skipped["revised"] += len(marks) - stored

    @property
    def _done(self) -> int:
        return self._embedded + self._skipped["not_embeddable"]

    async def _tell(self) -> None:
        if self._order.progress is not None:
            told = self._order.progress(self._done, max(self._total, self._done))
            if inspect.isawaitable(told):
                await told
