"""The session: one scope's memory, one short method a verb.

Owns the checks of arguments and the way of a write: embed outside any transaction, build the operation, run it.
Does not own a rule about records (``operations.py``) or how anything is kept (``stores``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from vmem_core import arguments, context, cursors, listeners, recall, requests, sync, tracing, writes
from vmem_core.context import ContextPackage
from vmem_core.errors import InvalidRequestError
from vmem_core.ids import new_id as default_new_id
from vmem_core.ids import new_salt
from vmem_core.ledger import UsageLedger
from vmem_core.limits import Limits
from vmem_core.messages import ExtractionPolicy, Message, check_messages
from vmem_core.models import ModelCalls
from vmem_core.operations import (
    UNSET,
    Forget,
    ForgetScope,
    Remember,
    RememberMany,
    Retract,
    Revise,
    Unset,
)
from vmem_core.plan import Outcome
from vmem_core.records import (
    KINDS,
    Draft,
    Kind,
    Link,
    Origin,
    Record,
    Scope,
    Source,
    Status,
    check_metadata,
    check_scope,
    check_ttl,
)
from vmem_core.results import ForgetResult, ForgetScopeResult, History, Hits, Page, Receipt, ReembedResult, WriteResult
from vmem_core.store import FUSIONS, Fusion, Listing, Store
from vmem_core.text import check_string, check_text
from vmem_core.values import check_choice, check_integer, check_optional_text, check_values

if TYPE_CHECKING:
    from vmem_core.planning import Planner


class MemorySession:
    """One scope's memory in a store. Cheap to make; holds no connection.

    Args:
        store: Where it is kept.
        scope: Whose memory it is. Reads and writes match this scope exactly.
        llm: A language model: a callable of a ``Prompt``, sync or async, that returns a text or an ``LLMReply``.
            With one, ``remember`` reconciles by default and ``extract`` works.
        embedder: Turns texts into vectors; None: records are found by their words.
        extraction: What ``extract`` may read.
        on_forget: Called in order after each forget, with a ``ForgetEvent``; plain or async.
        max_conflict_retries: How often a write is planned in all when other writers keep coming first.
        ledger: Where every model call is reserved before it runs and settled after.
        llm_model_id: The id that language model calls are reserved under.
        embedder_model_id: The id that embedding calls are reserved under.
        limits: The largest values that are taken.
        new_id: Makes record ids; None: time-ordered UUIDs.
        next_embedder: The embedder that the store is going to be moved to with ``reembed``, in this process or another.
            While it moves, what the session writes is embedded with both; once the store has switched, the session goes
            on with this one: no call meets a mismatch.
        fusion: How ``recall`` makes one list of what meaning and words find: ``"rrf"`` by ranks, or ``"scores"`` by a
            sum of scores, which put more right records first in what was measured (``benchmarks/README.md``), above
            all with a weak embedder. None: what the embedder in use asks for with an attribute ``fusion``, as
            ``LocalEmbedder`` does, else ``"rrf"``.

    Raises:
        InvalidRequestError: For a wrong argument.

    >>> from vmem_core import InMemoryStore, MemorySession, Scope
    >>> memory = MemorySession(InMemoryStore(), Scope(user_id="ada")).sync
    >>> fact = memory.remember("Ada lives in London.").records[0]
    >>> memory.revise(fact.id, text="Ada lives in Paris.", expected_revision=1).records[0].revision
    2
    >>> [hit.record.text for hit in memory.recall("Where does Ada live?")]
    ['Ada lives in Paris.']
    """

    def __init__(
        self,
        store: Store,
        scope: Scope,
        *,
        llm: Any = None,
        embedder: Any = None,
        extraction: ExtractionPolicy = ExtractionPolicy(),  # noqa: B008 - frozen
        on_forget: Any = (),
        max_conflict_retries: int = 3,
        ledger: UsageLedger | None = None,
        llm_model_id: str | None = None,
        embedder_model_id: str | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        new_id: Callable[[], str] | None = None,
        next_embedder: Any = None,
        fusion: Fusion | None = None,
    ) -> None:
        arguments.check_parts(store, limits, new_id, ledger)
        check_optional_text(llm_model_id, "llm_model_id")
        check_optional_text(embedder_model_id, "embedder_model_id")
        limits.check_scope(check_scope(scope))
        self._store, self._scope, self._limits = store, scope, limits
        self._calls = ModelCalls(llm, embedder, ledger, llm_model_id, embedder_model_id, next_embedder)
        self._policy = arguments.check_policy(extraction)
        self._attempts = check_integer(max_conflict_retries, "max_conflict_retries", least=1)
        self._listeners = listeners.check_listeners(on_forget)
        self._new_id = new_id or default_new_id
        self._fusion = None if fusion is None else cast(Fusion, check_choice(fusion, FUSIONS, "fusion"))

    def __repr__(self) -> str:
        return f"MemorySession({self._store!r}, {self._scope!r})"

    @property
    def scope(self) -> Scope:
        """Whose memory it is."""
        return self._scope

    @property
    def store(self) -> Store:
        """Where it is kept."""
        return self._store

    @property
    def sync(self) -> sync.Facade:
        """The same verbs for threads, scripts and notebooks."""
        return sync.facade(self)

    # --- writes -----------------------------------------------------------------------------------------------

    async def remember(
        self,
        text: str,
        *,
        id: str | None = None,
        kind: Kind = "semantic",
        origin: Origin = "asserted",
        sources: Sequence[Source] | None = None,
        links: Sequence[Link] = (),
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        ttl: timedelta | None = None,
        supersede: arguments.Supersede | None = None,
        top_k: int = 5,
        instructions: str | None = None,
        operation_id: str | None = None,
    ) -> WriteResult:
        """Remember a text: as a new record, or reconciled with similar ones.

        Args:
            text: Stored exactly as given.
            id: An id of your own; None: one is made.
            kind: ``semantic``, ``episodic``, ``working`` or ``procedural``.
            origin: ``asserted`` by the host or ``inferred`` by a model.
            sources: Where it comes from; None: the host.
            links: Relations to other records.
            importance: None, or 0 to 1.
            metadata: A JSON object.
            ttl: How long until it expires.
            supersede: ``"reconcile"`` (the default with an ``llm``): a model decides how it meets similar records;
                the text stored is always yours. ``"add"`` (the default without): as a new record, whatever is there
                already. ``"skip_equal"``: unless an active record has an equal
                text, which is then met (``present``, and the note ``already_stored``) instead of a new record.
            top_k: How many similar records a model sees, 1 to 1,000.
            instructions: Appended to the prompt of reconciliation.
            operation_id: Makes a retry apply once.

        Raises:
            InvalidRequestError: For a wrong argument, before anything is written.
            OperationConflictError: If the operation id was used for another request.
            RecordConflictError: If the id is not available.
            EmbeddingMismatchError: If the embedder's model or size is not the store's.
        """
        draft = Draft(text, id, kind, sources, links, importance, check_metadata(metadata), ttl)  # type: ignore[arg-type]
        self._limits.check_draft(draft)
        mode, extra = self._check_mode(supersede, top_k, instructions)
        with tracing.span("remember") as span:
            operation = Remember(
                **self._operation(operation_id),
                drafts=(draft,),
                ids=() if mode == "reconcile" else (self._record_id(draft),),
                origin=arguments.check_origin(origin),
                skip_equal=mode == "skip_equal",
                request_extra=extra,
            )
            if mode == "reconcile":
                planner = self._planner(top_k, instructions)
                return self._told(span, *await planner.remember(operation, operation_id is not None))
            return self._told(span, await self._write(operation, operation_id))

    async def remember_many(
        self, drafts: Sequence[Draft], *, origin: Origin = "asserted", operation_id: str | None = None
    ) -> WriteResult:
        """Remember many texts in one operation: all or none. No model looks at them.

        Args:
            drafts: At most 10,000.
            origin: Of all of them.
            operation_id: Makes a retry apply once.

        Raises:
            InvalidRequestError: For a wrong argument, or an id given twice.
            OperationConflictError: If the operation id was used for another request.
            RecordConflictError: If an id is not available.
            EmbeddingMismatchError: If the embedder's model or size is not the store's.
        """
        checked = arguments.check_drafts(drafts, self._limits)
        with tracing.span("remember_many") as span:
            operation = RememberMany(
                **self._operation(operation_id),
                drafts=checked,
                ids=tuple(self._record_id(draft) for draft in checked),
                origin=arguments.check_origin(origin),
            )
            outcome = await self._write(operation, operation_id)
            return self._told(span, outcome)

    async def extract(
        self,
        messages: Sequence[Message],
        *,
        kind: Kind | None = None,
        ttl: timedelta | None = None,
        links: Sequence[Link] = (),
        top_k: int = 5,
        supersede: Literal["add", "reconcile"] | None = None,
        instructions: str | None = None,
        infer: bool = True,
        policy: ExtractionPolicy | None = None,
        operation_id: str | None = None,
    ) -> WriteResult:
        """Learn from a conversation: inferred records that cite the messages they come from.

        Only what the session's ``ExtractionPolicy`` trusts is read. A message is read once in a scope, so that a
        growing conversation can be sent again.

        Args:
            messages: The conversation, in order, each with an id of its own.
            kind: Of all records; None: as the model says.
            ttl: How long until they expire.
            links: Relations of all records.
            top_k: How many similar records the model sees a fact, 1 to 1,000.
            supersede: ``"reconcile"`` (the default with an ``llm``) or ``"add"``.
            instructions: Appended to the prompt of extraction.
            infer: Whether a model makes facts of the texts; False: each readable text is a record, as it stands.
            policy: What may be read; None: the session's.
            operation_id: Makes a retry apply once.

        Raises:
            InvalidRequestError: For a wrong argument, or ``infer`` without an ``llm``.
            OperationConflictError: If the operation id was used for another request.
            RevisionConflictError: If other writers came first, ``max_conflict_retries`` times.
            BudgetExceededError: If the ledger refuses a call; nothing is written then.
        """
        checked = check_messages(messages)
        if infer and self._calls.llm is None:
            raise InvalidRequestError("needs a session with an llm; or use infer=False", path="infer")
        if supersede is not None:
            check_choice(supersede, ("add", "reconcile") if infer else ("add",), "supersede")
        kind = None if kind is None else cast(Kind, check_choice(kind, KINDS, "kind"))
        links = check_values(links, Link, "links")
        self._limits.check_links(links)
        mode, extra = self._check_mode(supersede, top_k, instructions)
        given = {"kind": kind, "ttl": check_ttl(ttl), "links": links, "infer": infer, **extra}
        with tracing.span("extract") as span:
            from vmem_core import planning

            job = planning.ExtractionJob(
                **self._operation(operation_id),
                canonical_request=requests.extract(checked, given),
                messages=checked,
                policy=self._policy if policy is None else arguments.check_policy(policy, "policy"),
                kind=kind,
                ttl=ttl,
                links=links,
                reconciles=infer and mode == "reconcile",
                infer=infer,
            )
            planner = self._planner(top_k, instructions)
            return self._told(span, *await planner.extract(job, operation_id is not None))

    async def revise(
        self,
        record_id: str,
        *,
        text: str | Unset = UNSET,
        kind: Kind | Unset | None = UNSET,
        importance: float | Unset | None = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        ttl: timedelta | Unset | None = UNSET,
        links: Sequence[Link] | Unset | None = UNSET,
        sources: Sequence[Source] | Unset | None = UNSET,
        origin: Origin | Unset = UNSET,
        expected_revision: int | None = None,
        by_model: bool = False,
        operation_id: str | None = None,
    ) -> WriteResult:
        """Write a record's next revision. What is not given stays; None clears.

        With nothing given, a retracted record becomes active again. A new text without sources gets the host as its
        source and is asserted.

        Args:
            record_id: The record.
            text: The new text.
            kind: The new kind; None: ``semantic``.
            importance: The new importance.
            metadata: The new metadata, in place of all of the old.
            ttl: Time to live from now; None: no expiry.
            links: The new links.
            sources: The new sources; None: the host.
            origin: The new origin.
            expected_revision: What you planned against; None: whatever is current.
            by_model: A model asks: asserted records are refused, the record stays inferred, sources are added.
            operation_id: Makes a retry apply once.

        Raises:
            InvalidRequestError: For a wrong argument, or nothing to change.
            RecordNotFoundError: If the scope has no such record.
            RecordConflictError: If it was forgotten.
            RevisionConflictError: If ``expected_revision`` is not current.
            AssertedRecordError: If a model asks and the host asserted the record.
            OperationConflictError: If the operation id was used for another request.
            EmbeddingMismatchError: If the embedder's model or size is not the store's.
        """
        given = {
            "text": text, "kind": kind, "importance": importance, "metadata": metadata, "ttl": ttl, "links": links,
            "sources": sources, "origin": origin,
        }  # fmt: skip
        checked = arguments.check_given(given, self._limits)
        with tracing.span("revise") as span:
            operation = Revise(
                **self._on_record(record_id, expected_revision, operation_id), given=checked, by_model=by_model
            )
            outcome = await self._write(operation, operation_id)
            return self._told(span, outcome)

    async def retract(
        self,
        record_id: str,
        *,
        expected_revision: int | None = None,
        by_model: bool = False,
        operation_id: str | None = None,
    ) -> WriteResult:
        """Take a record out of recall. Its history stays, and a revise brings it back.

        Args:
            record_id: The record.
            expected_revision: What you planned against; None: whatever is current.
            by_model: A model asks: asserted records are refused.
            operation_id: Makes a retry apply once.

        Raises:
            RecordNotFoundError: If the scope has no such record.
            RecordConflictError: If it was forgotten.
            RevisionConflictError: If ``expected_revision`` is not current.
            AssertedRecordError: If a model asks and the host asserted the record.
            OperationConflictError: If the operation id was used for another request.
        """
        with tracing.span("retract") as span:
            operation = Retract(**self._on_record(record_id, expected_revision, operation_id), by_model=by_model)
            outcome = await self._store.run(operation)
            return self._told(span, outcome)

    async def forget(self, record_id: str, *, operation_id: str | None = None) -> ForgetResult:
        """Delete every revision, vector, token and source of a record, for good.

        Then every ``on_forget`` listener is called. An id that the scope never had is no error.

        Args:
            record_id: The record.
            operation_id: Makes a retry the same operation; a new one forgets nothing twice either.

        Raises:
            OperationConflictError: If the operation id was used for another request.
        """
        with tracing.span("forget") as span:
            operation = Forget(**self._operation(operation_id), record_id=self._check_id(record_id))
            outcome = await self._store.run(operation)
            met = outcome.forgotten[0]
            redaction = await listeners.tell(self._listeners, self._scope, operation.operation_id, outcome.forgotten)
            span.record(records=len(met.revisions) and 1)
            return ForgetResult(
                outcome.receipt, outcome.replayed, met.revisions, met.already, redaction, outcome.scrubbed
            )

    async def forget_scope(self, *, operation_id: str | None = None) -> ForgetScopeResult:
        """Forget every record of the scope in one operation; listeners get one event a record.

        Records that were forgotten before are told to the listeners again, so that a failed redaction gets done.

        Args:
            operation_id: Makes a retry the same operation.

        Raises:
            OperationConflictError: If the operation id was used for another request.
        """
        with tracing.span("forget_scope") as span:
            operation = ForgetScope(**self._operation(operation_id))
            outcome = await self._store.run(operation)
            redaction = await listeners.tell(self._listeners, self._scope, operation.operation_id, outcome.forgotten)
            ids = tuple(change.record_id for change in outcome.receipt.changes)
            span.record(records=len(ids))
            return ForgetScopeResult(outcome.receipt, ids, redaction, outcome.replayed, outcome.scrubbed)

    # --- reads ------------------------------------------------------------------------------------------------

    async def recall(
        self,
        text: str | None = None,
        *,
        kind: Kind | None = None,
        top_k: int = 5,
        recorded_as_of: datetime | None = None,
        at_scope_revision: int | None = None,
        include_retracted: bool = False,
        include_expired: bool = False,
        metadata: Mapping[str, Any] | None = None,
        fusion: Fusion | None = None,
    ) -> Hits:
        """Find records by meaning and words; without a text, those changed last.

        Args:
            text: The query; None: the records changed last; blank: nothing.
            kind: Only this kind.
            top_k: How many, 1 to 1,000.
            recorded_as_of: What the store knew at this instant, inclusive.
            at_scope_revision: What the store knew at this scope revision, the current one at most; not with
                ``recorded_as_of``.
            include_retracted: Retracted records too.
            include_expired: Expired records too.
            metadata: Only records whose metadata holds these top-level values, equal as JSON.
            fusion: ``"rrf"`` or ``"scores"``; None: the session's.

        Raises:
            InvalidRequestError: For a wrong argument.
            EmbeddingMismatchError: If the embedder's model or size is not the store's.
        """
        search = recall.build_search(
            text,
            kind=kind,
            top_k=top_k,
            recorded_as_of=recorded_as_of,
            at_scope_revision=at_scope_revision,
            include_retracted=include_retracted,
            include_expired=include_expired,
            metadata=check_metadata(metadata),
            fusion=recall.fusion_of(self._fusion if fusion is None else fusion, self._calls.embedder),
        )
        with tracing.span("recall") as span:
            hits = await recall.recall(self._store, self._scope, search, self._calls)
            span.record(records=len(hits), generation=self._generation_number())
            return hits

    async def compile_context(
        self,
        query: str,
        *,
        top_k: int = 8,
        max_tokens: int = 1000,
        count_tokens: Callable[[str], int] | None = None,
    ) -> ContextPackage:
        """What a model should see for a query, as references to revisions, within a budget.

        Args:
            query: What it is about; blank: nothing.
            top_k: How many records at most, 1 to 1,000.
            max_tokens: What the rendered text may take, 1 or more.
            count_tokens: Counts the tokens of a text; None: a quarter of its characters.

        Raises:
            InvalidRequestError: For a wrong argument.
            EmbeddingMismatchError: If the embedder's model or size is not the store's.
        """
        counter = context.check_counter(count_tokens)
        check_integer(max_tokens, "max_tokens", least=1)
        # The revision is read first: whatever the package shows is at least as new.
        revision = await self.scope_revision()
        hits = await self.recall(check_string(query, "query"), top_k=top_k)
        return context.pack(
            [hit.record for hit in hits], revision, max_tokens=max_tokens, count_tokens=counter
        )  # fmt: skip

    async def render(self, package: ContextPackage) -> str:
        """The text of a package, from the very revisions it names, in this session's scope alone.

        A forgotten record reads ``[forgotten]``, a pruned revision ``[no longer kept]``. An empty package is ``""``.

        Args:
            package: From ``compile_context`` of this scope.
        """
        if not isinstance(package, ContextPackage):
            raise InvalidRequestError("must be a ContextPackage", path="package")
        wanted = [(item.record_id, item.revision) for item in package.items]
        found = await self._store.revisions(self._scope, wanted) if wanted else []
        texts = [None if one.record is None else one.record.text for one in found]
        return context.render(package, texts, forgotten=[one.gone for one in found])

    async def get(self, record_id: str) -> Record | None:
        """A record's current revision, retracted or not; None if expired, forgotten or not of this scope."""
        return await self._store.get(self._scope, self._check_id(record_id))

    async def history(self, record_id: str) -> History:
        """A record's revisions, oldest first; empty if forgotten or not of this scope."""
        return History(await self._store.history(self._scope, self._check_id(record_id)))

    async def receipt(self, operation_id: str) -> Receipt | None:
        """The receipt of an operation of this scope, or None."""
        return await self._store.receipt(self._scope, self._check_id(operation_id, "operation_id"))

    async def list(
        self,
        *,
        kind: Kind | None = None,
        origin: Origin | None = None,
        status: Status | None = "active",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page:
        """A page of unexpired records in order of creation, newest first.

        Args:
            kind: Only this kind.
            origin: Only this origin.
            status: Only this status; None: all.
            cursor: Of the page before, with the same filters.
            limit: How many, 1 to 1,000.

        Raises:
            InvalidRequestError: For a wrong argument, or a cursor of another scope or other filters.
        """
        limit = arguments.check_listing(kind, origin, status, limit)
        filters = (kind, origin, status)
        before = None if cursor is None else cursors.read(cursor, self._scope.key, filters)
        records, more = await self._store.list(self._scope, Listing(kind, origin, status, before, limit))
        return Page(tuple(records), None if more is None else cursors.make(more, self._scope.key, filters))

    async def count(self) -> int:
        """How many records are active and unexpired."""
        return await self._store.count(self._scope)

    async def scope_revision(self) -> int:
        """How many operations were committed in the scope."""
        return await self._store.scope_revision(self._scope)

    # --- the store's vectors --------------------------------------------------------------------------------------

    async def reembed(
        self,
        *,
        embedder: Any,
        model_id: str,
        dims: int,
        batch_size: int = 64,
        concurrency: int = 1,
        progress: Callable[[int, int], Any] | None = None,
    ) -> ReembedResult:
        """Move the whole store, every scope, to another embedding model; or fill what the active one lacks.

        Vectors of the new model are prepared while everybody goes on searching with the old one, in up to three
        passes; records that are revised meanwhile are done again. Once no record lacks its vector, the store switches
        at once, the old vectors go, and this session embeds with the new embedder. With the model the store has, what
        is missing (imports, failures) is filled in place.

        The job may end at any point: by an error, a budget, cancellation, a kill. What was stored stays; call again
        with the same model and size to go on, and at most the batches that were in flight are paid again.

        A store prepares one model at a time. If the new one turns out to be broken, call ``reembed`` with the model
        the store has, or with a third one: that gives up the pending vectors, and no search ever saw them.

        One text that the embedder cannot take does not stop the job: the rest of its batch is embedded, and its
        record is named in the result, never its text. It keeps the store from switching; revise or forget the record,
        or mark it with ``store.embeddings.put(generation, [(record_id, revision, None)])`` and call again.

        Args:
            embedder: The new embedder.
            model_id: The model id that its ``Embeddings`` carry; its calls are reserved under it too.
            dims: Its size, 1 to 65,536.
            batch_size: Texts a call, 1 to 1,000.
            concurrency: Calls at a time, 1 to 100.
            progress: Called with (records done, records in all) after each batch, at first with 0; plain or async.

        Raises:
            InvalidRequestError: For a wrong argument, before anything is written; or if the embedder answers anything
                but one row of numbers a text.
            EmbeddingMismatchError: If it answers with another model or size, such as the old ones.
            BudgetExceededError: If the ledger refuses a call.

        >>> from vmem_core import Embeddings, InMemoryStore, MemorySession, Scope
        >>> def count_letters(texts, *, purpose):
        ...     return Embeddings([[text.count("a"), text.count("e"), 1] for text in texts], "letters-2")
        >>> memory = MemorySession(InMemoryStore(), Scope(user_id="ada")).sync
        >>> _ = memory.remember("Ada likes tea.")
        >>> memory.reembed(embedder=count_letters, model_id="letters-2", dims=3).activated
        True
        """
        from vmem_core import reembed

        order = reembed.check_order(embedder, model_id, dims, batch_size, concurrency, progress)
        return await reembed.run(self._store, self._calls, order)

    # --- checks and parts of operations ---------------------------------------------------------------------------

    async def _write(self, operation: Remember | Revise, operation_id: str | None) -> Outcome:
        return await writes.embed_and_run(self._store, self._calls, operation, is_retry=operation_id is not None)

    def _operation(self, operation_id: str | None) -> dict[str, Any]:
        """What every operation has."""
        made = default_new_id() if operation_id is None else self._check_id(operation_id, "operation_id")
        return {"scope": self._scope, "operation_id": made, "salt": new_salt()}

    def _on_record(self, record_id: str, expected_revision: int | None, operation_id: str | None) -> dict[str, Any]:
        if expected_revision is not None:
            check_integer(expected_revision, "expected_revision", least=1)
        record_id = self._check_id(record_id)
        return {
            **self._operation(operation_id), "record_id": record_id, "expected_revision": expected_revision
        }  # fmt: skip

    def _check_id(self, value: str, path: str = "record_id") -> str:
        checked = check_text(value, path)
        self._limits.check_id(checked, path)
        return checked

    def _record_id(self, draft: Draft) -> str:
        return draft.id if draft.id is not None else self._made_id()

    def _check_mode(
        self, supersede: object, top_k: int, instructions: str | None
    ) -> tuple[arguments.Supersede, dict[str, Any]]:
        return arguments.check_mode(supersede, top_k, instructions, has_llm=self._calls.llm is not None)

    def _planner(self, top_k: int, instructions: str | None) -> Planner:
        from vmem_core import planning

        return planning.Planner(
            self._store, self._calls, self._limits, self._attempts, self._made_id, top_k, instructions
        )

    def _told(self, span: tracing.Span, outcome: Outcome, retries: int = 0) -> WriteResult:
        """What the caller and the span are told of a write."""
        span.record(records=len(outcome.records), retries=retries, generation=self._generation_number())
        return writes.result_of(outcome, retries)

    def _made_id(self) -> str:
        return self._check_id(self._new_id(), "new_id()")

    def _generation_number(self) -> int | None:
        generation = self._store.known_generation
        return None if generation is None else generation.number
