"""Many processes on one store, some of them killed; and that the check of what is left sees every kind of fault."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import many_writers
import pytest
from fakes import Clock, FakeEmbedder
from histories import COMMITTED, LOST, Attempt, Call, Seen, check
from many_writers import Embedder, look, perform, word
from postgres_server import server_uri

from vmem_core import Change, InMemoryStore, MemorySession, Scope, VmemError

# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_processes_that_fight_for_records_and_are_killed_leave_one_true_history(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--processes", "2", "--operations", "90", "--tasks", "2", "--scopes", "2", "--kills", "1"]
    dsn = ["--dsn", server_uri()] if store == "postgres" else []
    many_writers.main(["--store", store, *sizes, *dsn])
    printed = capsys.readouterr().out
    assert f"{store}: 2 processes of 2 tasks on 2 scopes, 2 kills" in printed
    assert "verdict: every acknowledged operation is there once, and nothing else" in printed
    for answer in ("  committed ", "  never answered ", "  refused: "):  # which refusals, the race decides
        assert answer in printed


def test_a_fault_is_printed_and_ends_the_command_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(many_writers, "check", lambda attempts, seen: ["s0: something is wrong"])
    with pytest.raises(SystemExit) as caught:
        many_writers.main(["--processes", "1", "--operations", "4"])
    assert caught.value.code == 1
    assert "  FAULT  s0: something is wrong\nverdict: 1 faults" in capsys.readouterr().out


def test_sizes_below_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        many_writers.main(["--tasks", "0"])
    assert "must be 1 or more" in capsys.readouterr().err


def test_every_number_has_a_word_of_its_own() -> None:
    assert len({word(number) for number in (*range(3000), *range(10**9, 10**9 + 3000))}) == 6000


# --- the check -----------------------------------------------------------------------------------------------------

TEXTS = [word(number) for number in range(20)]
CALLS = (
    ("ann", "o1", "remember", "r1", TEXTS[1], None),
    ("bob", "o2", "remember", "r2", TEXTS[2], None),
    ("bob", "o3", "revise", "r1", TEXTS[3], 1),
    ("ann", "o4", "revise", "r1", TEXTS[4], 1),  # stale
    ("ann", "o5", "retract", "r1", None, 2),
    ("ann", "o5", "retract", "r1", None, 2),  # again
    ("bob", "o6", "retract", "r1", None, None),  # of a retracted one
    ("bob", "o7", "remember", "r3", TEXTS[7], None),
    ("ann", "o8", "forget", "r3", None, None),
    ("ann", "o9", "remember", "r3", TEXTS[9], None),  # forgotten
    ("bob", "o10", "retract", "nobody", None, None),
    ("bob", "o2", "remember", "r2", TEXTS[11], None),  # another request
    ("bob", "o12", "revise", "r2", TEXTS[12], None),
    ("ann", "o13", "forget", "nobody", None, None),
)


@pytest.fixture
async def story() -> tuple[list[Attempt], Seen]:
    """An honest history of two writers, as an honest store tells it."""
    clock = Clock()
    store = InMemoryStore(clock=clock)
    memory = MemorySession(store, Scope(user_id="s"), embedder=Embedder())
    attempts = []
    for writer, *rest in CALLS:
        call = Call(writer, "s", *rest)  # type: ignore[arg-type]
        clock.step(seconds=1)
        try:
            result = await perform(memory, call)
        except VmemError as error:
            attempts.append(Attempt(call, error.code, None, getattr(error, "actual_revision", None)))
        else:
            attempts.append(Attempt(call, "replayed" if result.replayed else COMMITTED, result.receipt))
    return attempts, (await look(store, attempts))["s"]


Story = tuple[list[Attempt], Seen]


def faults_of(story: Story) -> list[str]:
    return check(story[0], {"s": story[1]})


def test_an_honest_history_has_no_fault(story: Story) -> None:
    assert faults_of(story) == []
    assert [attempt.answer for attempt in story[0]] == [
        COMMITTED, COMMITTED, COMMITTED, "revision_conflict", COMMITTED, "replayed", COMMITTED, COMMITTED, COMMITTED,
        "record_conflict", "record_not_found", "operation_conflict", COMMITTED, COMMITTED,
    ]  # fmt: skip


def test_an_operation_without_an_answer_may_be_there_or_not(story: Story) -> None:
    attempts, seen = story
    for place in (12, 13):  # there, and told by nobody; there, and told when it was asked for again
        attempts[place] = Attempt(attempts[place].call, LOST)
    attempts.append(Attempt(attempts[13].call, "replayed", seen.receipts["o13"]))
    absent = Call("cleo", "s", "o20", "remember", "r20", TEXTS[15])
    attempts.append(Attempt(absent, LOST))
    seen.receipts = {**seen.receipts, "o20": None}
    seen.histories = {**seen.histories, "r20": []}
    seen.by_words = {**seen.by_words, TEXTS[15]: []}
    assert faults_of(story) == []


def test_a_scope_that_was_never_looked_at_is_a_fault(story: Story) -> None:
    assert check(story[0], {}) == ["s: was never looked at"]


# --- what a store could get wrong. Each takes an honest history and makes it one that must not pass. ------------------


def acknowledged_and_lost(attempts: list[Attempt], seen: Seen) -> None:
    seen.receipts = {**seen.receipts, "o12": None}


def acknowledged_with_another_receipt(attempts: list[Attempt], seen: Seen) -> None:
    kept = seen.receipts["o12"]
    assert kept is not None
    seen.receipts = {**seen.receipts, "o12": replace(kept, changes=())}


def an_operation_of_nobody(attempts: list[Attempt], seen: Seen) -> None:
    seen.scope_revision += 1


def two_at_one_scope_revision(attempts: list[Attempt], seen: Seen) -> None:
    change_receipt(attempts, seen, 12, scope_revision=8)
    change_receipt(attempts, seen, 13, scope_revision=8)


def told_twice_as_new(attempts: list[Attempt], seen: Seen) -> None:
    attempts[5] = replace(attempts[5], answer=COMMITTED)


def told_as_a_replay_alone(attempts: list[Attempt], seen: Seen) -> None:
    attempts[12] = replace(attempts[12], answer="replayed")


def told_in_two_ways(attempts: list[Attempt], seen: Seen) -> None:
    receipt = attempts[5].receipt
    assert receipt is not None
    attempts[5] = replace(attempts[5], receipt=replace(receipt, committed_at=receipt.committed_at + timedelta(1)))


def refused_and_there(attempts: list[Attempt], seen: Seen) -> None:
    seen.receipts = {**seen.receipts, "o4": seen.receipts["o3"]}


def refused_and_found(attempts: list[Attempt], seen: Seen) -> None:
    seen.by_words = {**seen.by_words, TEXTS[4]: ["r1"]}


def refused_and_in_a_history(attempts: list[Attempt], seen: Seen) -> None:
    seen.histories = {**seen.histories, "nobody": seen.histories["r2"]}


def refused_and_listed(attempts: list[Attempt], seen: Seen) -> None:
    seen.current = [*seen.current, replace(seen.current[0], id="nobody")]


def a_fork(attempts: list[Attempt], seen: Seen) -> None:
    change_receipt(attempts, seen, 4, changes=(Change("r1", 2, "retract"),))


def a_gap(attempts: list[Attempt], seen: Seen) -> None:
    change_receipt(attempts, seen, 12, changes=(Change("r2", 3, "revise"),))


def a_lost_update(attempts: list[Attempt], seen: Seen) -> None:
    attempts[12] = replace(attempts[12], call=replace(attempts[12].call, expected=7))


def an_id_created_twice(attempts: list[Attempt], seen: Seen) -> None:
    change_receipt(attempts, seen, 12, changes=(Change("r2", 1, "create"),))


def a_change_of_what_was_forgotten(attempts: list[Attempt], seen: Seen) -> None:
    change_receipt(attempts, seen, 12, changes=(Change("r3", 2, "revise"),))


def a_forget_of_another_revision(attempts: list[Attempt], seen: Seen) -> None:
    change_receipt(attempts, seen, 8, changes=(Change("r3", 2, "forget"),))


def nothing_done(attempts: list[Attempt], seen: Seen) -> None:
    change_receipt(attempts, seen, 12, changes=())


def a_history_cut_short(attempts: list[Attempt], seen: Seen) -> None:
    seen.histories = {**seen.histories, "r1": seen.histories["r1"][:-1]}


def a_history_with_a_hole(attempts: list[Attempt], seen: Seen) -> None:
    seen.histories = {**seen.histories, "r1": [seen.histories["r1"][0], seen.histories["r1"][2]]}


def a_text_of_another(attempts: list[Attempt], seen: Seen) -> None:
    first, *rest = seen.histories["r1"]
    seen.histories = {**seen.histories, "r1": [replace(first, text=TEXTS[2]), *rest]}


def a_head_left_behind(attempts: list[Attempt], seen: Seen) -> None:
    seen.current = [seen.histories["r2"][0] if record.id == "r2" else record for record in seen.current]


def a_record_not_listed(attempts: list[Attempt], seen: Seen) -> None:
    seen.current = seen.current[1:]


def counted_wrong(attempts: list[Attempt], seen: Seen) -> None:
    seen.count += 1


def forgotten_and_still_there(attempts: list[Attempt], seen: Seen) -> None:
    seen.histories = {**seen.histories, "r3": [replace(seen.histories["r2"][0], id="r3")]}


def forgotten_without_a_tombstone(attempts: list[Attempt], seen: Seen) -> None:
    seen.taken = frozenset()


def forgotten_and_not_redacted(attempts: list[Attempt], seen: Seen) -> None:
    kept = seen.receipts["o7"]
    assert kept is not None
    seen.receipts = {**seen.receipts, "o7": replace(kept, redacted=False)}


def redacted_for_nothing(attempts: list[Attempt], seen: Seen) -> None:
    kept = seen.receipts["o6"]
    assert kept is not None
    seen.receipts = {**seen.receipts, "o6": replace(kept, redacted=True)}


def not_found_by_words(attempts: list[Attempt], seen: Seen) -> None:
    seen.by_words = {**seen.by_words, TEXTS[12]: []}


def an_old_text_still_found(attempts: list[Attempt], seen: Seen) -> None:
    seen.by_words = {**seen.by_words, TEXTS[2]: ["r2"]}


def not_found_by_its_vector(attempts: list[Attempt], seen: Seen) -> None:
    seen.by_meaning = {**seen.by_meaning, TEXTS[12]: ("r2", "lexical")}


def another_is_nearer(attempts: list[Attempt], seen: Seen) -> None:
    seen.by_meaning = {**seen.by_meaning, TEXTS[12]: ("r1", "hybrid")}


def out_of_its_writers_order(attempts: list[Attempt], seen: Seen) -> None:
    attempts[1], attempts[2] = attempts[2], attempts[1]


def stamped_before_its_forerunner(attempts: list[Attempt], seen: Seen) -> None:
    receipt = attempts[0].receipt
    assert receipt is not None
    change_receipt(attempts, seen, 13, committed_at=receipt.committed_at)


def a_conflict_with_what_never_was(attempts: list[Attempt], seen: Seen) -> None:
    attempts[3] = replace(attempts[3], actual=9)


def a_conflict_with_itself(attempts: list[Attempt], seen: Seen) -> None:
    attempts[3] = replace(attempts[3], actual=1)


def a_conflict_out_of_its_time(attempts: list[Attempt], seen: Seen) -> None:
    attempts[3] = replace(attempts[3], actual=3)  # which its own writer makes only later


def not_found_and_there(attempts: list[Attempt], seen: Seen) -> None:
    attempts[10] = replace(attempts[10], call=replace(attempts[10].call, record_id="r1"))


def taken_by_nobody(attempts: list[Attempt], seen: Seen) -> None:
    attempts[9] = replace(attempts[9], call=replace(attempts[9].call, record_id="r9"))


def an_unused_operation_in_conflict(attempts: list[Attempt], seen: Seen) -> None:
    attempts[10] = replace(attempts[10], answer="operation_conflict")


def an_error_that_no_call_may_end_in(attempts: list[Attempt], seen: Seen) -> None:
    attempts[10] = replace(attempts[10], answer="unsupported")


def change_receipt(attempts: list[Attempt], seen: Seen, place: int, **changes: object) -> None:
    """What the writer was told and what the store holds, changed alike."""
    receipt = attempts[place].receipt
    assert receipt is not None
    changed = replace(receipt, **changes)  # type: ignore[arg-type]
    attempts[place] = replace(attempts[place], receipt=changed)
    seen.receipts = {**seen.receipts, receipt.operation_id: changed}


CORRUPTIONS: dict[Callable[[list[Attempt], Seen], None], str] = {
    acknowledged_and_lost: "o12 was acknowledged and is not there",
    acknowledged_with_another_receipt: "o12 has another receipt than was told",
    an_operation_of_nobody: "missing [10]",
    two_at_one_scope_revision: "missing [9], doubled [8]",
    told_twice_as_new: "o5 was told 2 times as new",
    told_as_a_replay_alone: "o12 was told as a replay and never as new",
    told_in_two_ways: "o5 has two receipts",
    refused_and_there: "o4 was refused and has a receipt",
    refused_and_found: f"{TEXTS[4]!r} finds ['r1'] by its words, not []",
    refused_and_in_a_history: "nobody holds 2 revisions that are not the 0",
    refused_and_listed: "nobody is listed in another state",
    a_fork: "o5 (retract r1 2): the revision before it was 2: a gap or a fork",
    a_gap: "o12 (revise r2 3): the revision before it was 1: a gap or a fork",
    a_lost_update: "o12 was applied to another revision than it expected",
    an_id_created_twice: "o12 (create r2 1): the id was taken",
    a_change_of_what_was_forgotten: "o12 (revise r3 2): there was no such record then",
    a_forget_of_another_revision: "o8 (forget r3 2): the last revision was 1",
    nothing_done: "o12 changed nothing, and it should have",
    a_history_cut_short: "r1 holds 2 revisions that are not the 3",
    a_history_with_a_hole: "r1 holds revisions [1, 3]",
    a_text_of_another: "r1 holds 3 revisions that are not the 3",
    a_head_left_behind: "r2 is listed in another state",
    a_record_not_listed: "is listed in another state",
    counted_wrong: "2 records are counted and 1 are active",
    forgotten_and_still_there: "r3 holds 1 revisions that are not the 0",
    forgotten_without_a_tombstone: "r3 was forgotten and has no tombstone",
    forgotten_and_not_redacted: "o7 is not redacted",
    redacted_for_nothing: "o6 is redacted",
    not_found_by_words: f"{TEXTS[12]!r} finds [] by its words, not ['r2']",
    an_old_text_still_found: f"{TEXTS[2]!r} finds ['r2'] by its words, not []",
    not_found_by_its_vector: f"{TEXTS[12]!r} finds ('r2', 'lexical') first",
    another_is_nearer: f"{TEXTS[12]!r} finds ('r1', 'hybrid') first",
    out_of_its_writers_order: "o2 comes before an operation that its writer made earlier",
    stamped_before_its_forerunner: "an operation is stamped before one that it follows",
    a_conflict_with_what_never_was: "o4 was refused with revision_conflict, which was never true",
    a_conflict_with_itself: "o4 was refused with revision_conflict, which was never true",
    a_conflict_out_of_its_time: "o4 was refused with revision_conflict, which was never true",
    not_found_and_there: "o10 was refused with record_not_found, which was never true",
    taken_by_nobody: "o9 was refused with record_conflict, which was never true",
    an_unused_operation_in_conflict: "o10 was refused with operation_conflict, which was never true",
    an_error_that_no_call_may_end_in: "o10 was refused with unsupported, which was never true",
}


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_the_check_sees(story: Story, corrupt: Callable[[list[Attempt], Seen], None]) -> None:
    attempts, seen = story[0], copy.copy(story[1])
    corrupt(attempts, seen)
    faults = check(attempts, {"s": seen})
    assert any(CORRUPTIONS[corrupt] in fault for fault in faults), faults


async def test_a_vector_that_is_missing_in_the_store_is_seen() -> None:
    store, call = InMemoryStore(), Call("ann", "s", "o1", "remember", "r1", TEXTS[1])
    result = await perform(MemorySession(store, Scope(user_id="s")), call)
    near = Call("ann", "s", "o2", "remember", "r2", TEXTS[2])
    embedder = FakeEmbedder("made", many_writers.DIMS)
    other = await perform(MemorySession(store, Scope(user_id="s"), embedder=embedder), near)
    attempts = [Attempt(call, COMMITTED, result.receipt), Attempt(near, COMMITTED, other.receipt)]
    assert [fault for fault in check(attempts, await look(store, attempts)) if TEXTS[1] in fault] != []
