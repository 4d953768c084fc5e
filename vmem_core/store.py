"""What a store must do: the contract, on one page.

A store runs operations and answers reads. It holds no rule: it loads what an operation names, lets it decide,
and applies the plan in one transaction; and it ranks with ``index.py``. ``tests/store_suite`` is the contract
as tests, for anyone's own store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from vmem_core.errors import InvalidRequestError
from vmem_core.generations import Pending
from vmem_core.imports import Import
from vmem_core.operations import Operation
from vmem_core.plan import Kept, Outcome, Survey
from vmem_core.portable import Header, Part
from vmem_core.records import Record, Scope
from vmem_core.results import Finding, Generation, Receipt
from vmem_core.values import check_choice

if TYPE_CHECKING:
    from vmem_core.sync import Facade

MOST_RESULTS = 1_000
Progress = Callable[[int, int], object]
"""Called with how many records are done, and how many there are."""
ENGLISH = "english"
Fusion = Literal["rrf", "scores"]
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)


def check_count(value: object, path: str) -> int:
    """How many results: 1 to 1,000.

    Raises:
        InvalidRequestError: For anything else.

    >>> check_count(5, "top_k")
    5
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_RESULTS:
        raise InvalidRequestError(f"must be an integer from 1 to {MOST_RESULTS}", path=path)
    return value


def check_language(language: object) -> str | None:
    """A language that search tokens can be made in, or None for the store's own.

    Raises:
        InvalidRequestError: For a language without a stemmer; the message lists those there are.
    """
    if language is None:
        return None
    from vmem_core.tokens import languages

    return check_choice(language, sorted(languages()), "language")


@dataclass(slots=True, repr=False)
class QueryVector:
    """An embedded query.

    Args:
        model: The model's id.
        dims: Its size, in dimensions.
        vector: Unit float32, little-endian bytes; None: not embeddable, the query uses text alone.
    """

    model: str
    dims: int
    vector: bytes | None


@dataclass(slots=True, repr=False)
class Search:
    """A recall, as a store gets it.

    Args:
        text: The query; None: the records changed last.
        vector: The embedded query, if the session embeds and the store has a generation.
        top_k: How many hits, 1 to 1,000.
        kind: Only this kind.
        metadata: Only records whose metadata has these top-level values.
        include_retracted: Retracted records too.
        include_expired: Expired records too.
        recorded_as_of: What the store knew at this instant, inclusive.
        at_scope_revision: What the store knew at this scope revision.
        fusion: How the two lists become one: ``"rrf"`` or ``"scores"``.
    """

    text: str | None = None
    vector: QueryVector | None = None
    top_k: int = 5
    kind: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    include_retracted: bool = False
    include_expired: bool = False
    recorded_as_of: datetime | None = None
    at_scope_revision: int | None = None
    fusion: Fusion = "rrf"

    def with_vector(self, vector: QueryVector) -> Search:
        """The same search with its text embedded."""
        return replace(self, vector=vector)


@dataclass(slots=True, repr=False)
class Found:
    """A record that a search found, with its place in both lists."""

    record: Record
    score: float
    match: str
    vector_rank: int | None
    lexical_rank: int | None


@dataclass(slots=True, repr=False)
class Listing:
    """A page to list.

    Args:
        kind: Only this kind.
        origin: Only this origin.
        status: Only this status; None: all.
        before: Only records created before the record of this number (its place in the scope); None: the newest.
        limit: How many, 1 to 1,000.
    """

    kind: str | None = None
    origin: str | None = None
    status: str | None = "active"
    before: int | None = None
    limit: int = 50


class EmbeddingGenerations(Protocol):
    """The generations of a store's vectors: for ``reembed``, and for hosts that run the job themselves.

    The rules are in ``generations.py``. A record's vector is of one revision: nothing that is put for an older one
    counts, and nothing switches while a revision is being written.
    """

    async def active(self) -> Generation | None:
        """The active generation, or None if no vector was ever stored."""
        ...

    async def prepared(self) -> Generation | None:
        """The pending generation, or None if none is being prepared."""
        ...

    async def begin(self, model_id: str, dims: int) -> Generation:
        """The generation to fill for a model: the active one, the pending one, or a new pending one.

        A pending generation of another model or size is given up, and its vectors go, in the same transaction. So
        ``begin`` with the model of the active generation gives up a move.

        Args:
            model_id: The model's id, as its ``Embeddings`` say.
            dims: Its size, 1 to 65,536.

        Raises:
            InvalidRequestError: For a wrong argument.
        """
        ...

    async def pending(self, number: int, limit: int, *, after: str | None = None) -> list[Pending]:
        """The next records whose current revision a generation lacks: id, revision and text, in a lasting order.

        Records of every scope, retracted and expired ones too. Empty for an unknown or retired generation.

        Args:
            number: The generation.
            limit: How many, 1 to 1,000.
            after: Only those after this record's place: the id of the last one seen; None: from the first.

        Raises:
            InvalidRequestError: For a wrong argument, or if the store never had a record ``after``.
        """
        ...

    async def missing(self, number: int) -> int:
        """How many records' current revisions a generation lacks; 0 for an unknown or retired one."""
        ...

    async def put(self, number: int, vectors: Sequence[tuple[str, int, Any]]) -> int:
        """Store vectors in a generation, and return how many were taken.

        What is not of a record's current revision is left out, as are forgotten records. Into an unknown or retired
        generation nothing is put. What was put survives the end of the process at once, and a power cut once
        ``activate`` has answered; a batch that a power cut takes before is missing again.

        Args:
            number: The generation, active or pending.
            vectors: Each a record id, the revision whose text was embedded, and the vector. None, or a vector that is
                zero, NaN or infinite, marks that revision as not embeddable: it is found by its words, and no longer
                missing.

        Raises:
            InvalidRequestError: For anything else; nothing is stored.
            EmbeddingMismatchError: For vectors of another size than the generation's; nothing is stored.
        """
        ...

    async def activate(self, number: int) -> bool:
        """Let the store search with a generation, if it lacks nothing; the vectors of the one before go.

        Returns:
            Whether it is the active one and lacks nothing. False for an unknown or retired one.
        """
        ...


class Store(Protocol):
    """A place where memory is kept. Every method can be called from any thread and any event loop.

    Raises:
        StoreUnavailableError: From every method, when the store is closed or cannot be reached.
        SchemaVersionError: From every method, when a newer library wrote the store.
    """

    @property
    def embeddings(self) -> EmbeddingGenerations:
        """The generations of its vectors."""
        ...

    @property
    def sync(self) -> Facade:
        """The same verbs for threads, scripts and notebooks."""
        ...

    @property
    def known_generation(self) -> Generation | None:
        """The active generation as last seen, without I/O; None if none was seen."""
        ...

    async def run(self, operation: Operation) -> Outcome:
        """Load what ``operation.reads()`` names, decide, apply the plan: all in one transaction, or nothing.

        Stamps are the store's clock, taken after the scope is locked, never earlier than the scope's last stamp.
        A cancelled call is applied whole or not at all.
        """
        ...

    async def replay(self, operation: Operation) -> Outcome | None:
        """What ``run`` would answer if the operation was committed before; None if it was not. Writes nothing."""
        ...

    async def run_imports(self, operations: Sequence[Import], *, dry_run: bool = False) -> list[str | None]:
        """Settle and apply a batch of imports (``imports.py``), of any scopes, in one transaction.

        Args:
            operations: In the order of their source.
            dry_run: Whether nothing is applied.

        Returns:
            For each operation why it was skipped, or None.
        """
        ...

    async def search(self, scope: Scope, search: Search) -> list[Found]:
        """The best hits, in order.

        Raises:
            EmbeddingMismatchError: If the query's vector is of another model or size than the active generation.
        """
        ...

    async def survey(self, scope: Scope, searches: Sequence[Search], equal_texts: Sequence[int]) -> Survey:
        """The scope's revision, the best records of each search, and active records by text key, from one read."""
        ...

    async def processed(self, scope: Scope, message_ids: Sequence[str]) -> frozenset[str]:
        """Those of the messages that an extraction of this scope has read."""
        ...

    async def diagnose(self, *, progress: Progress | None = None) -> list[Finding]:
        """What does not agree in the store, from one snapshot; an empty list if all is well. Changes nothing."""
        ...

    async def get(self, scope: Scope, record_id: str) -> Record | None:
        """The current revision, retracted or not, unless expired, forgotten, foreign or unknown."""
        ...

    async def history(self, scope: Scope, record_id: str) -> list[Record]:
        """All kept revisions, oldest first."""
        ...

    async def revisions(self, scope: Scope, wanted: Sequence[tuple[str, int]]) -> Sequence[Kept]:
        """What is left of each wanted (record id, revision), in order, from one read."""
        ...

    async def list(self, scope: Scope, listing: Listing) -> tuple[Sequence[Record], int | None]:
        """A page, newest creation first, and the number to go on before; None if there is no more."""
        ...

    async def count(self, scope: Scope) -> int:
        """How many records are active and unexpired."""
        ...

    async def receipt(self, scope: Scope, operation_id: str) -> Receipt | None:
        """The receipt of an operation."""
        ...

    async def scope_revision(self, scope: Scope) -> int:
        """How many operations were committed in the scope."""
        ...

    async def scopes(self) -> Sequence[Scope]:
        """Every scope that was ever written to, in the order of their keys."""
        ...

    async def prune_history(self, older_than: datetime, scope: Scope | None = None, *, dry_run: bool = False) -> int:
        """Delete past revisions, recorded before a cutoff, of records that are retracted or expired.

        Args:
            older_than: The cutoff, exclusive.
            scope: Only of this scope; None: of all.
            dry_run: Whether they are only counted.

        Returns:
            How many revisions. Current revisions, receipts, tombstones and scope revisions stay as they are.
        """
        ...

    async def prune_operations(self, older_than: datetime, *, dry_run: bool = False) -> int:
        """Delete receipts committed before a cutoff; their operation ids apply again, which the log warns of.

        Args:
            older_than: The cutoff, exclusive.
            dry_run: Whether they are only counted.

        Returns:
            How many receipts. Records, tombstones and scope revisions stay as they are.
        """
        ...

    def dump(self, scope: Scope) -> AsyncGenerator[Header | Sequence[Part], None]:
        """A scope's whole history from one snapshot: its header, then its parts in order, in blocks."""
        ...

    async def restore(self, header: Header, blocks: AsyncIterator[Sequence[Part]]) -> None:
        """Write a dumped scope in one transaction, which ends once ``blocks`` has ended; its error undoes all.

        Raises:
            InvalidRequestError: If the scope was written to before.
            RecordConflictError: If an id is held or was forgotten in the store.
        """
        ...

    async def scrub(self) -> None:
        """Leave no byte of forgotten text in any file of the store."""
        ...

    async def close(self) -> None:
        """Finish what is queued and let go of files and connections; calling it again does nothing."""
        ...
