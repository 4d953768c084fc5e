"""Turns of a conversation: where each begins, which are read together, under which operation id, how often."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from vmem_core import (
    ExtractionPolicy,
    InMemoryStore,
    MemorySession,
    Message,
    Prompt,
    Scope,
    batch_turns,
    extraction_id,
    looks_observed,
    read_turns,
    split_turns,
)

ADA = Scope(user_id="ada")
FACT = '{"facts": [{"text": "Ada likes tea.", "sources": ["s0"]}]}'
TALK = [Message("m1", "user", "I like tea."), Message("m2", "assistant", "Noted.")]


def parted(talk: str) -> list[str]:
    """A conversation of single letters, of which the capital ones begin a turn."""
    return ["".join(turn) for turn in split_turns(talk, str.isupper)]


def test_a_turn_begins_where_the_user_speaks_and_what_came_before_belongs_to_the_first() -> None:
    assert parted("abUcVd") == ["abUc", "Vd"]
    assert parted("UV") == ["U", "V"]
    assert parted("abc") == ["abc"]
    assert parted("") == []


def batched(turns: list[str], calls: Collection[str] = (), alone: str = "") -> list[str]:
    found = batch_turns(turns, lambda one: {one} & set(calls), lambda one: one in set(alone))
    return ["".join(batch) for batch in found]


def test_short_turns_are_read_together_up_to_fifty_messages_and_a_long_one_is_not_parted() -> None:
    assert batched(["ab"] * 60) == ["ab" * 25, "ab" * 25, "ab" * 10]
    assert batched(["a", "b" * 120, "c"]) == ["a", "b" * 120, "c"]
    assert batched([]) == []


def test_a_call_id_that_comes_again_in_another_turn_keeps_the_two_apart() -> None:
    assert batched(["ax", "bx", "cy"], calls="xy") == ["ax", "bxcy"]
    assert batched(["axx", "b"], calls="x") == ["axxb"]


def test_nothing_is_read_before_a_turn_that_stands_alone() -> None:
    assert batched(["a", "O", "b"], alone="O") == ["a", "Ob"]


@pytest.mark.parametrize("text", ["Observation: x", "observations", " **Observation 2:** x", "\n> OBSERVATION\nx"])
def test_a_tools_words_in_the_users_role_are_seen(text: str) -> None:
    assert looks_observed(text)


@pytest.mark.parametrize("text", ["", "My observation: x", "Observational study", "tea"])
def test_the_users_own_words_are_no_observation(text: str) -> None:
    assert not looks_observed(text)


def test_an_operation_id_follows_from_messages_conversation_scope_policy_and_attempt() -> None:
    policy = ExtractionPolicy(trusted_tools={"f", "g"})
    given = [
        extraction_id(TALK, ADA, "t1", None),
        extraction_id(TALK[:1], ADA, "t1", None),
        extraction_id(TALK, ADA, "t2", None),
        extraction_id(TALK, ADA, "", None),
        extraction_id(TALK, Scope(user_id="bob"), "t1", None),
        extraction_id(TALK, ADA, "t1", policy),
        extraction_id(TALK, ADA, "t1", ExtractionPolicy(read_assistant=True)),
        extraction_id(TALK, ADA, "t1", None, attempt=2),
    ]
    assert len(set(given)) == len(given)
    assert given[0] == extraction_id(TALK, ADA, "t1", None)
    assert given[5] == extraction_id(TALK, ADA, "t1", ExtractionPolicy(trusted_tools=["g", "f"]))
    edited = [Message("m1", "user", "other"), TALK[1]]
    assert extraction_id(edited, ADA, "t1", None) == given[0]  # of ids alone: an operation id outlives a forget


def test_the_form_of_an_operation_id_stays() -> None:
    # What an earlier version wrote must be known again by a later one.
    digest = "da07074ba5aae9b2bd4a3b8a53528e568b94454f5124e1c43b5175e9b6e2c054"
    assert extraction_id(TALK, ADA, "t1", None) == f"vmem-turn-1:{digest}"


class Answering:
    """A language model that answers one thing after the other, the last one for ever."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.asked = list(replies), 0

    def __call__(self, prompt: Prompt) -> str:
        self.asked += 1
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


async def read(llm: Answering, session: MemorySession, messages: list[Message] = TALK) -> tuple[list[str], bool]:
    written, is_done = await read_turns(session, messages, conversation="t1", policy=None)
    return [] if written is None else [record.text for record in written.records], is_done


async def test_turns_that_were_read_are_done_and_a_repetition_is_a_replay() -> None:
    llm = Answering(FACT)
    session = MemorySession(InMemoryStore(), ADA, llm=llm)
    assert await read(llm, session) == (["Ada likes tea."], True)
    assert await read(llm, session) == (["Ada likes tea."], True)
    assert llm.asked == 1


async def test_an_unreadable_reply_is_left_to_the_next_hook_once_and_then_given_up() -> None:
    llm = Answering("{{{")
    session = MemorySession(InMemoryStore(), ADA, llm=llm)
    assert await read(llm, session) == ([], False)
    assert llm.asked == 2  # an extraction asks once more by itself
    assert await read(llm, session) == ([], True)
    assert llm.asked == 4
    assert await read(llm, session) == ([], True)
    assert llm.asked == 4


async def test_what_the_next_hook_can_read_is_kept() -> None:
    llm = Answering("{{{", "{{{", FACT)
    session = MemorySession(InMemoryStore(), ADA, llm=llm)
    assert await read(llm, session) == ([], False)
    assert await read(llm, session) == (["Ada likes tea."], True)


async def test_turns_whose_message_was_edited_since_they_were_read_are_done() -> None:
    llm = Answering(FACT)
    session = MemorySession(InMemoryStore(), ADA, llm=llm)
    await read(llm, session)
    assert await read(llm, session, [Message("m1", "user", "I like coffee."), TALK[1]]) == ([], True)
    assert llm.asked == 1
