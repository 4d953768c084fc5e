"""Export and import of a scope's whole history, as lines of JSON.

Owns the verbs: a line at a time out, all or nothing in. Does not own the format (``portable.py``) or how a store reads
and writes its rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from typing import Any, Final

from vmem_core import tracing
from vmem_core.arguments import check_store
from vmem_core.errors import InvalidRequestError
from vmem_core.portable import Header, Part, Reader, Writer
from vmem_core.records import Scope, check_scope
from vmem_core.results import ImportResult
from vmem_core.store import Store

_BLOCK: Final = 500
Lines = Iterable[str] | AsyncIterable[str]


async def export_jsonl(store: Store, scope: Scope) -> AsyncIterator[str]:
    """A scope's whole history as lines of JSON, each with its line break.

    Records, revisions, sources, links, receipts with the digests by which a redelivered operation still replays,
    tombstones, and the ids of messages that were read; no vectors. All from one moment, whoever writes meanwhile. Equal
    scopes give equal bytes, whatever store they are in. The lines hold the texts: keep them like the store itself.

    Args:
        store: Where the scope is.
        scope: Whose memory it is; one that was never written gives a header and an end.

    Raises:
        InvalidRequestError: For a wrong argument.

    >>> from vmem_core import InMemoryStore, run_sync
    >>> async def exported(): return [line async for line in export_jsonl(InMemoryStore(), Scope(user_id="ada"))]
    >>> len(run_sync(exported()))
    2
    """
    writer = Writer()
    async with contextlib.aclosing(_dump(store, check_scope(scope))) as blocks:
        async for block in blocks:
            if isinstance(block, Header):
                yield writer.header(block)
            else:
                for part in block:
                    yield writer.part(part)
    yield writer.end()


def _dump(store: Any, scope: Scope) -> AsyncGenerator[Any, None]:
    check_store(store, "dump")
    made: AsyncGenerator[Any, None] = store.dump(scope)
    return made


async def import_jsonl(store: Store, lines: Lines) -> ImportResult:
    """Write an exported scope into a store that has none of it: every line in one transaction, or nothing.

    Revisions, receipts and the scope's own revision are what they were; vectors are made anew by ``reembed``. A file
    that was cut off or changed is refused at its last line at the latest, and nothing of it stays. Other writers of a
    SQLite file wait meanwhile.

    Args:
        store: Where it goes.
        lines: What ``export_jsonl`` gave: an iterable of lines, such as an open file, async or not.

    Returns:
        How many records there are, forgotten ones too; none is ever skipped.

    Raises:
        InvalidRequestError: If the lines are no whole export, or its scope was written to before.
        RecordConflictError: If another scope of the store holds or has forgotten an id of the export.
        UnsupportedError: If a newer library wrote the export.
    """
    if isinstance(lines, str | bytes) or not isinstance(lines, Iterable | AsyncIterable):
        raise InvalidRequestError("must be an iterable of lines, such as an open file", path="lines")
    check_store(store, "restore")
    reader = Reader()
    with tracing.span("import") as span:
        blocks = _blocks(lines, reader)
        try:
            await store.restore(await _header(blocks, reader), blocks)
        finally:
            await blocks.aclose()
        count = reader.finish().records
        span.record(records=count)
    return ImportResult(count, count, 0, {})


async def _header(blocks: Any, reader: Reader) -> Header:
    """The header: the first block is empty, and comes once it is read."""
    await anext(blocks, None)
    return reader.header or reader.finish()


async def _blocks(lines: Lines, reader: Reader) -> Any:
    """The parts of the lines, some at a time. Ends only when the last line was read and fits."""
    block: list[Part] = []
    async for line in _each(lines):
        if not isinstance(line, str):
            raise InvalidRequestError(f"must be strings, not {type(line).__name__}", path="lines")
        if not line.strip():
            continue
        first = reader.header is None
        part = reader.read(line)
        if part is not None:
            block.append(part)
        if first or len(block) >= _BLOCK:
            yield block
            block = []
    reader.finish()
    yield block


async def _each(lines: Lines) -> AsyncIterator[str]:
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            yield line
    else:
        for line in lines:
            yield line
