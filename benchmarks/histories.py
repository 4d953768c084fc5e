"""What many writers were told, against what a store holds afterwards: pure.

Owns the rules of a true history. The receipts alone are replayed, scope by scope; what the replay says must be what
the store answers, no more and no less, and every refusal must have been right at some moment of its call. Knows no
store, process or file: ``many_writers.py`` runs the writers and looks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from vmem_core import Change, Receipt, Record

COMMITTED, REPLAYED, LOST = "committed", "replayed", "lost"
UNSURE = (LOST, "store_unavailable")  # it may have been applied or not: the store is asked


@dataclass(frozen=True, slots=True)
class Call:
    """What a writer asked for.

    Args:
        writer: Who. The calls of one writer follow each other.
        scope: Whose memory, by name.
        operation_id: Its operation.
        verb: ``remember``, ``revise``, ``retract`` or ``forget``.
        record_id: The record it aims at; None: a new one, whose id is made.
        text: What it would write; no other call of another operation has the same.
        expected: The revision it expects.
    """

    writer: str
    scope: str
    operation_id: str
    verb: str
    record_id: str | None = None
    text: str | None = None
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call and what its writer was told.

    Args:
        call: The call.
        answer: ``committed``, ``replayed``, the code of an error, or ``lost``: the writer died before it was told.
        receipt: Of a call that was acknowledged.
        actual: The revision that a conflict named.
    """

    call: Call
    answer: str
    receipt: Receipt | None = None
    actual: int | None = None


@dataclass(slots=True)
class Seen:
    """What a store answers of one scope, when all writers have ended.

    Args:
        scope_revision: Of the scope.
        receipts: By every operation id that was ever used.
        histories: By every record id that was ever named.
        current: Every record that can be listed.
        count: How many are active.
        by_words: By every text that was ever sent: ids of what a recall by its words finds.
        by_meaning: By every current text: id and match of the first hit of a recall by words and meaning.
        taken: Ids that nobody can create, of those that were forgotten.
    """

    scope_revision: int
    receipts: Mapping[str, Receipt | None]
    histories: Mapping[str, Sequence[Record]]
    current: Sequence[Record]
    count: int
    by_words: Mapping[str, Sequence[str]]
    by_meaning: Mapping[str, tuple[str, str]]
    taken: frozenset[str]


@dataclass(frozen=True, slots=True)
class Step:
    """One revision, as a receipt tells of it."""

    scope_revision: int
    operation_id: str
    status: str
    text: str | None


@dataclass(slots=True)
class Life:
    """One record, as receipts tell of it: its revisions from 1, and the scope revision that forgot it."""

    steps: list[Step] = field(default_factory=list)
    forgotten: int | None = None

    def during(self, revision: int, last: int) -> range:
        """The scope revisions at which a revision was the current one."""
        if not 1 <= revision <= len(self.steps):
            return range(0)
        ends = self.steps[revision].scope_revision if revision < len(self.steps) else self.forgotten
        return range(self.steps[revision - 1].scope_revision, last + 1 if ends is None else ends)


def check(attempts: Sequence[Attempt], seen: Mapping[str, Seen]) -> list[str]:
    """Every way in which the store and what its writers were told do not agree; empty if they do.

    Args:
        attempts: All calls of all writers, those of one writer in their order.
        seen: By scope.
    """
    by_scope: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_scope[attempt.call.scope].append(attempt)
    return [
        f"{scope}: {fault}"
        for scope in sorted({*by_scope, *seen})
        for fault in (_Scope(by_scope[scope], seen[scope]).faults() if scope in seen else ["was never looked at"])
    ]


class _Scope:
    """The check of one scope."""

    def __init__(self, attempts: Sequence[Attempt], seen: Seen) -> None:
        self.attempts, self.seen = attempts, seen
        self.receipts: dict[str, Receipt] = {}
        self.requests: dict[str, Call] = {}
        self.touched: dict[str, set[str]] = defaultdict(set)  # records by operation
        self.lives: dict[str, Life] = {}

    def faults(self) -> Iterator[str]:
        """All of them. The order matters: what one step learns, the next one needs."""
        yield from self.answers()
        yield from self.line()
        for receipt in sorted(self.receipts.values(), key=lambda receipt: receipt.scope_revision):
            yield from self.replay(receipt)
        yield from self.kept_receipts()
        yield from self.kept_records()
        yield from self.found()
        yield from self.refusals()

    # --- what writers were told of each operation -------------------------------------------------------------------

    def answers(self) -> Iterator[str]:
        """Each operation is told once as new, always the same way, and it is there."""
        groups: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            groups[attempt.call.operation_id].append(attempt)
        for operation_id, group in groups.items():
            kept = self.seen.receipts.get(operation_id)
            told = [_plain(attempt.receipt) for attempt in group if attempt.receipt is not None]
            count = Counter(attempt.answer for attempt in group)
            unsure = any(attempt.answer in UNSURE for attempt in group)
            if count[COMMITTED] > 1:
                yield f"{operation_id} was told {count[COMMITTED]} times as new"
            if count[REPLAYED] and not count[COMMITTED] and not unsure:
                yield f"{operation_id} was told as a replay and never as new"
            if any(one != told[0] for one in told):
                yield f"{operation_id} has two receipts"
            if told and kept is None:
                yield f"{operation_id} was acknowledged and is not there"
            elif told and kept is not None and _plain(kept) != told[0]:
                yield f"{operation_id} has another receipt than was told"
            if not told and kept is not None and not unsure:
                yield f"{operation_id} was refused and has a receipt"
            self.learn(operation_id, group, told[0] if told else kept)

    def learn(self, operation_id: str, group: Sequence[Attempt], receipt: Receipt | None) -> None:
        """Keep what was committed, and the request that it was."""
        if receipt is not None:
            order = {COMMITTED: 0, LOST: 1, "store_unavailable": 1, REPLAYED: 2}
            self.receipts[operation_id] = receipt
            self.requests[operation_id] = min(group, key=lambda attempt: order.get(attempt.answer, 3)).call

    def line(self) -> Iterator[str]:
        """Scope revisions are 1..n, in the order of time and of each writer."""
        line = sorted(self.receipts.values(), key=lambda receipt: receipt.scope_revision)
        numbers = [receipt.scope_revision for receipt in line]
        if numbers != list(range(1, self.seen.scope_revision + 1)):
            counted = Counter(numbers)
            doubled = [number for number, times in counted.items() if times > 1]
            missing = [number for number in range(1, self.seen.scope_revision + 1) if number not in counted]
            beyond = [number for number in numbers if number > self.seen.scope_revision]
            yield f"scope revisions: missing {missing[:5]}, doubled {doubled[:5]}, beyond the last {beyond[:5]}"
        if any(later.committed_at < earlier.committed_at for earlier, later in pairwise(line)):
            yield "an operation is stamped before one that it follows"
        last: dict[str, int] = {}
        for attempt in self.attempts:
            if attempt.answer == COMMITTED and attempt.receipt is not None:
                number, writer = attempt.receipt.scope_revision, attempt.call.writer
                if number <= last.get(writer, 0):
                    yield f"{attempt.call.operation_id} comes before an operation that its writer made earlier"
                last[writer] = max(number, last.get(writer, 0))

    # --- the receipts, one after the other ---------------------------------------------------------------------------

    def replay(self, receipt: Receipt) -> Iterator[str]:
        """Apply what a receipt says to what the receipts before it have made."""
        call = self.requests[receipt.operation_id]
        if not receipt.changes:
            yield from self.nothing_changed(receipt, call)
        for change in receipt.changes:
            self.touched[receipt.operation_id].add(change.record_id)
            if call.record_id not in (None, change.record_id):
                yield f"{receipt.operation_id} changed another record than it was asked to"
            if call.expected is not None and change.action != "forget" and change.revision != call.expected + 1:
                yield f"{receipt.operation_id} was applied to another revision than it expected"
            yield from self.apply(receipt, change, call)

    def nothing_changed(self, receipt: Receipt, call: Call) -> Iterator[str]:
        """Only a retract of what is retracted, and a forget of what is not there, change nothing."""
        life = self.lives.get(call.record_id or "")
        gone = life is None or life.forgotten is not None
        if receipt.kind == "forget" and gone:
            return
        if receipt.kind == "retract" and life is not None and not gone and life.steps[-1].status == "retracted":
            self.touched[receipt.operation_id].add(call.record_id or "")
            return
        yield f"{receipt.operation_id} changed nothing, and it should have"

    def apply(self, receipt: Receipt, change: Change, call: Call) -> Iterator[str]:
        """One change of one record."""
        life = self.lives.get(change.record_id)
        name = f"{receipt.operation_id} ({change.action} {change.record_id} {change.revision})"
        if change.action == "create":
            if life is not None or change.revision != 1:
                yield f"{name}: the id was taken, or it does not begin at revision 1"
                return
            life = self.lives[change.record_id] = Life()
        elif life is None or life.forgotten is not None:
            yield f"{name}: there was no such record then"
            return
        if change.action == "forget":
            life.forgotten = receipt.scope_revision
            if change.revision != len(life.steps):
                yield f"{name}: the last revision was {len(life.steps)}"
            return
        if change.revision != len(life.steps) + 1:
            yield f"{name}: the revision before it was {len(life.steps)}: a gap or a fork"
        text = life.steps[-1].text if change.action == "retract" else call.text
        status = "retracted" if change.action == "retract" else "active"
        life.steps.append(Step(receipt.scope_revision, receipt.operation_id, status, text))

    # --- what the store holds ---------------------------------------------------------------------------------------

    def kept_receipts(self) -> Iterator[str]:
        """A receipt is redacted exactly if a record that it wrote or met was forgotten since."""
        for operation_id, receipt in self.receipts.items():
            kept = self.seen.receipts.get(operation_id)
            lives = [self.lives.get(record_id) for record_id in self.touched[operation_id]]
            gone = any(life is not None and life.forgotten is not None for life in lives)
            if kept is not None and kept.redacted is not (gone and receipt.kind != "forget"):
                yield f"{operation_id} is {'' if kept.redacted else 'not '}redacted, and it should be otherwise"

    def kept_records(self) -> Iterator[str]:
        """Histories, heads, tombstones and the count are what the receipts say."""
        for record_id in {*self.lives, *self.seen.histories}:
            life = self.lives.get(record_id, Life())
            expected = [] if life.forgotten is not None else life.steps
            held = self.seen.histories.get(record_id, ())
            if [record.revision for record in held] != list(range(1, len(held) + 1)):
                yield f"{record_id} holds revisions {[record.revision for record in held]}"
            if [_step(record) for record in held] != expected:
                yield f"{record_id} holds {len(held)} revisions that are not the {len(expected)} of its receipts"
            if life.forgotten is not None and record_id not in self.seen.taken:
                yield f"{record_id} was forgotten and has no tombstone"
        heads = {record_id: life.steps[-1] for record_id, life in self.lives.items() if life.forgotten is None}
        listed = {record.id: _step(record) for record in self.seen.current}
        for record_id in heads.keys() | listed.keys():
            if heads.get(record_id) != listed.get(record_id):
                yield f"{record_id} is listed in another state than its receipts leave it in"
        active = sum(step.status == "active" for step in heads.values())
        if self.seen.count != active:
            yield f"{self.seen.count} records are counted and {active} are active"

    def found(self) -> Iterator[str]:
        """A recall finds each active record by its words and its vector, and nothing that is not there any more."""
        current = {
            life.steps[-1].text: record_id
            for record_id, life in self.lives.items()
            if life.forgotten is None and life.steps[-1].status == "active"
        }
        for text in {*current, *self.seen.by_words} - {None}:
            expected = [current[text]] if text in current else []
            if list(self.seen.by_words.get(text, ())) != expected:
                yield f"{text!r} finds {list(self.seen.by_words.get(text, ()))} by its words, not {expected}"
            if text in current and self.seen.by_meaning.get(text) != (current[text], "hybrid"):
                yield f"{text!r} finds {self.seen.by_meaning.get(text)} first, not {current[text]} by both ways"

    # --- refusals ----------------------------------------------------------------------------------------------------

    def refusals(self) -> Iterator[str]:
        """A refusal was right at some moment between what its writer did before it and after it."""
        first: dict[str, int] = defaultdict(int)
        moments: dict[int, range] = {}
        last: dict[str, int] = {}
        for place, attempt in enumerate(self.attempts):
            writer = attempt.call.writer
            if attempt.receipt is not None:
                first[writer] = max(first[writer], attempt.receipt.scope_revision)
            moments[place] = range(first[writer], 0)
        for place in reversed(range(len(self.attempts))):
            attempt = self.attempts[place]
            end = last.get(attempt.call.writer, self.seen.scope_revision)
            moments[place] = range(moments[place].start, end + 1)
            if attempt.answer == COMMITTED and attempt.receipt is not None:
                last[attempt.call.writer] = attempt.receipt.scope_revision - 1
        for place, attempt in enumerate(self.attempts):
            if attempt.answer not in (COMMITTED, REPLAYED, *UNSURE) and not self.is_right(attempt, moments[place]):
                yield f"{attempt.call.operation_id} was refused with {attempt.answer}, which was never true"

    def is_right(self, attempt: Attempt, moments: range) -> bool:
        """Whether a refusal was true at one of the scope revisions."""
        call, life = attempt.call, self.lives.get(attempt.call.record_id or "")
        end = self.seen.scope_revision
        if attempt.answer == "operation_conflict":
            stored = self.receipts.get(call.operation_id)
            return stored is not None and stored.scope_revision < moments.stop
        if attempt.answer == "record_not_found":
            return life is None or life.steps[0].scope_revision > moments.start
        if attempt.answer == "record_conflict" and life is not None:
            begins = life.steps[0].scope_revision if call.verb == "remember" else life.forgotten
            return begins is not None and begins < moments.stop
        if attempt.answer == "revision_conflict" and life is not None and attempt.actual != call.expected:
            held = life.during(attempt.actual or 0, end)
            return max(held.start, moments.start) < min(held.stop, moments.stop)
        return False


def _plain(receipt: Receipt) -> Receipt:
    """A receipt as it was told first: it may be redacted since."""
    return replace(receipt, redacted=False)


def _step(record: Record) -> Step:
    return Step(record.scope_revision, record.operation_id, record.status, record.text)
