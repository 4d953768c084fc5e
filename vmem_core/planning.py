"""Writes that are planned before they are committed: read, ask, plan, commit; and again when others came first.

Owns the order of the calls: what is asked of a model, when, and how often. No transaction, connection or lock is
held meanwhile. Does not own any decision (``reconcile.py``, ``edits.py``, ``messages.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple

from vmem_core import extract, reconcile, writes
from vmem_core.edits import ApplyEdits, Extract, ReconciledRemember
from vmem_core.errors import RevisionConflictError
from vmem_core.extract import Fact
from vmem_core.limits import Limits
from vmem_core.messages import ExtractionPolicy, Message, Reading, read_messages
from vmem_core.models import ModelCalls, Prompt
from vmem_core.operations import Remember, equal_records, host_source
from vmem_core.plan import Outcome, Survey, Vectors
from vmem_core.reconcile import Edits, Template
from vmem_core.records import Kind, Link, Record, Scope
from vmem_core.replies import Reply, read_decisions, read_facts
from vmem_core.store import QueryVector, Search, Store
from vmem_core.text import text_key


class Planned(NamedTuple):
    """What a write came to: the store's answer, and how often it was planned again."""

    outcome: Outcome
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionJob:
    """One ``extract``, checked.

    Args:
        scope: Whose memory it is.
        operation_id: Of the operation.
        salt: For the digest of its request.
        canonical_request: Its canonical form.
        messages: The conversation.
        policy: What may be read of it.
        kind: Of all records, or None.
        ttl: Time to live of all records.
        links: Of all records.
        reconciles: Whether facts meet similar records.
        infer: Whether a model makes facts.
    """

    scope: Scope
    operation_id: str
    salt: bytes
    canonical_request: str
    messages: tuple[Message, ...]
    policy: ExtractionPolicy
    kind: Kind | None
    ttl: timedelta | None
    links: tuple[Link, ...]
    reconciles: bool
    infer: bool

    def operation(self, **more: Any) -> Extract:
        """The operation that commits it; ``more`` are its other fields."""
        return Extract(
            scope=self.scope,
            operation_id=self.operation_id,
            salt=self.salt,
            canonical_request=self.canonical_request,
            **more,
        )


@dataclass(frozen=True, slots=True)
class _Facts:
    """What an extraction found: its facts, the notes so far, and the messages that count as read."""

    facts: tuple[Fact, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)
    message_ids: tuple[str, ...] = ()


class Planner:
    """Plans the writes of one call of a session.

    Args:
        store: Where memory is kept.
        calls: The way to the models.
        limits: The largest values.
        attempts: How often a write is planned in all.
        new_id: Makes record ids.
        top_k: How many similar records a fact is compared with.
        instructions: The host's, appended to the prompt of the verb.
    """

    def __init__(
        self,
        store: Store,
        calls: ModelCalls,
        limits: Limits,
        attempts: int,
        new_id: Callable[[], str],
        top_k: int,
        instructions: str | None,
    ) -> None:
        self._store, self._calls, self._limits, self._attempts = store, calls, limits, attempts
        self._new_id, self._top_k, self._instructions = new_id, top_k, instructions

    async def remember(self, operation: Remember, is_retry: bool) -> Planned:
        """Reconcile one host text and commit it.

        Args:
            operation: The plain add it would be without a model.
            is_retry: Whether the caller gave the operation id, so that it may have been committed before.
        """
        if is_retry and (replayed := await self._store.replay(operation)) is not None:
            return Planned(replayed)
        draft = operation.drafts[0]
        fact = Fact(draft.text, draft.sources or (host_source(draft.text),), draft.kind, draft.importance)
        template = Template(
            operation.origin, self._new_id, draft.links, draft.metadata, draft.ttl, draft.id, draft.kind,
            self._limits.text_chars, is_said=True,
        )  # fmt: skip
        base = ReconciledRemember(
            scope=operation.scope,
            operation_id=operation.operation_id,
            salt=operation.salt,
            canonical_request=operation.request(),
            origin=operation.origin,
        )
        return await self._reconcile(base, [fact], template)

    async def extract(self, job: ExtractionJob, is_retry: bool) -> Planned:
        """Read a conversation, make facts of it, and commit them.

        Args:
            job: The extraction.
            is_retry: Whether the caller gave the operation id, so that it may have been committed before.
        """
        if is_retry and (replayed := await self._store.replay(job.operation())) is not None:
            return Planned(replayed)
        self._check_ids(job.messages)
        found = await self._facts(job, await self._reading(job))
        base = job.operation(notes=found.notes, message_ids=found.message_ids)
        template = Template(
            "inferred", self._new_id, job.links, {}, job.ttl, None, job.kind, self._limits.text_chars
        )  # fmt: skip
        if job.reconciles and found.facts:
            return await self._reconcile(base, found.facts, template)
        edits = reconcile.add_all(found.facts, template)
        return Planned(await self._commit(replace(base, edits=tuple(edits.edits)), None))

    def _check_ids(self, messages: Sequence[Message]) -> None:
        """Refuse ids and names that are too long for a source."""
        for index, message in enumerate(messages):
            for name in ("id", "run_id", "tool_call_id"):
                self._limits.check_id(getattr(message, name), f"messages[{index}].{name}")
            for place, call in enumerate(message.tool_calls):
                self._limits.check_id(call.name, f"messages[{index}].tool_calls[{place}].name")

    async def _reading(self, job: ExtractionJob) -> Reading:
        """What of the conversation may be read and was not read before."""
        ids = [message.id for message in job.messages]
        processed = await self._store.processed(job.scope, ids) if ids else frozenset()
        most = self._limits.message_chars
        if not job.infer:  # what is read becomes the text of a record as it is
            most = min(most, self._limits.text_chars)
        return read_messages(job.messages, job.policy, job.scope, most_chars=most, processed=processed)

    async def _facts(self, job: ExtractionJob, reading: Reading) -> _Facts:
        """The facts of what was read: one model call, once more if its reply is unreadable."""
        notes = Counter(reading.notes)
        if not reading.sources:
            notes["nothing_readable"] += 1
            return _Facts(notes=notes)
        if not job.infer:
            facts = extract.facts_as_read(reading, job.kind)
            return _Facts(tuple(facts), notes, reading.read_ids)
        prompt = extract.extraction_prompt(reading.sources, self._instructions)
        reply = await self._ask(prompt, read_facts)
        if reply.outcome != "read":
            notes[reply.outcome] += 1
            return _Facts(notes=notes, message_ids=reading.read_ids if reply.outcome == "refused" else ())
        facts, more = extract.facts_of_reply(reply, reading.sources, job.kind, self._limits)
        return _Facts(tuple(facts), notes + more, reading.read_ids)

    async def _ask(self, prompt: Prompt, read: Callable[[object], Reply[Any]]) -> Reply[Any]:
        reply = read(await self._calls.ask(prompt))
        if reply.outcome == "unparsed":
            reply = read(await self._calls.ask(prompt))
        return reply

    # --- reconciliation ---------------------------------------------------------------------------------------

    async def _reconcile(self, base: ApplyEdits, facts: Sequence[Fact], template: Template) -> Planned:
        """Plan against the scope as it is and commit; when it moved meanwhile, read and plan again."""
        vectors = await self._calls.embed_documents([fact.text for fact in facts])
        for attempt in range(1, self._attempts + 1):
            vectors, survey = await self._survey(base.scope, facts, vectors)
            operation = await self._plan(base, facts, template, survey)
            try:
                return Planned(await self._commit(operation, vectors), attempt - 1)
            except RevisionConflictError as conflict:
                if attempt == self._attempts:
                    raise RevisionConflictError(conflict.expected_revision, conflict.actual_revision, attempt) from None
            base, facts = await self._still_unread(base, facts)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _still_unread(self, base: ApplyEdits, facts: Sequence[Fact]) -> tuple[ApplyEdits, Sequence[Fact]]:
        """The facts, but those whose every message another writer has read meanwhile: they are noted."""
        if not base.message_ids:
            return base, facts
        processed = await self._store.processed(base.scope, base.message_ids)
        kept = [fact for fact in facts if not processed.issuperset(reconcile.messages_of(fact))]
        gone = Counter(already_processed=len(facts) - len(kept))
        return replace(base, notes=Counter(base.notes) + gone), kept

    async def _survey(
        self, scope: Scope, facts: Sequence[Fact], vectors: Vectors | None
    ) -> tuple[Vectors | None, Survey]:
        """Similar and equal records of all facts, from one read; and the vectors they were found by."""
        made = [vectors]  # for the first attempt

        async def attempt() -> tuple[Vectors | None, Survey]:
            used = made.pop() if made else await self._calls.embed_documents([fact.text for fact in facts])
            return used, await self._survey_with(scope, facts, used)

        return await self._calls.following(attempt)

    async def _survey_with(self, scope: Scope, facts: Sequence[Fact], vectors: Vectors | None) -> Survey:
        generation = self._store.known_generation
        if vectors is not None and generation is None:
            generation = await self._store.embeddings.active()
        searches = []
        for fact in facts:
            vector = None
            if vectors is not None and generation is not None:
                vector = QueryVector(vectors.model, vectors.dims, vectors.of(fact.text))
            searches.append(Search(text=fact.text, vector=vector, top_k=self._top_k))
        return await self._store.survey(scope, searches, [text_key(fact.text) for fact in facts])

    async def _plan(self, base: ApplyEdits, facts: Sequence[Fact], template: Template, survey: Survey) -> ApplyEdits:
        equals = {fact.text: equal_records(fact.text, survey.equals) for fact in facts}
        open_facts, done = reconcile.settle_equals(facts, equals, template)
        existing = _union(survey.similar, [f.text in {o.text for o in open_facts} for f in facts])
        if open_facts and existing:
            decided, parsed = await self._decide(open_facts, existing, template)
        else:
            decided, parsed = reconcile.add_all(open_facts, template), True
        return replace(
            base,
            edits=(*done.edits, *decided.edits),
            notes=Counter(base.notes) + done.notes + decided.notes,
            expected_scope_revision=survey.scope_revision,
            # What an unreadable reply left undone is read again when the conversation comes again.
            message_ids=base.message_ids if parsed else (),
            met=(*done.met, *decided.met),
            skip_equal=template.origin == "inferred",
        )

    async def _decide(
        self, facts: Sequence[Fact], existing: Sequence[Record], template: Template
    ) -> tuple[Edits, bool]:
        """A model's decisions as edits, and whether its reply could be read."""
        instructions = self._instructions if template.is_said else None
        reply = await self._ask(reconcile.reconciliation_prompt(facts, existing, instructions), read_decisions)
        if reply.outcome == "read":
            return reconcile.apply_decisions(reply, facts, existing, template), True
        # Nothing of the model is applied; what the host said itself is stored all the same.
        edits = reconcile.add_all(facts, template) if template.is_said else Edits()
        edits.notes[reply.outcome] += 1
        return edits, False

    async def _commit(self, operation: ApplyEdits, known: Vectors | None) -> Outcome:
        """Run it with the vectors of its final texts; with others if the store has just moved to the next model."""
        made = [known]  # for the first attempt

        async def attempt() -> Outcome:
            vectors = await self._embed(operation, made.pop() if made else None)
            return await self._store.run(operation.with_vectors(vectors))

        return await writes.commit(self._store, self._calls, operation.texts(), attempt)

    async def _embed(self, operation: ApplyEdits, known: Vectors | None) -> Vectors | None:
        """The vectors of the final texts; those that are known are not paid for again."""
        texts = [text for text in operation.texts() if known is None or text not in known.by_text]
        made = await self._calls.embed_documents(texts)
        if made is None or known is None:
            return made or known
        if (made.model, made.dims) != (known.model, known.dims):
            return await self._calls.embed_documents(operation.texts())
        return replace(made, by_text={**known.by_text, **made.by_text})


def _union(similar: Sequence[Sequence[Record]], wanted: Sequence[bool]) -> list[Record]:
    """The similar records of the wanted facts, each once, in the order of the facts."""
    found: dict[str, Record] = {}
    for records, is_wanted in zip(similar, wanted, strict=True):
        for record in records if is_wanted else ():
            found.setdefault(record.id, record)
    return list(found.values())
