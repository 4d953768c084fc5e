"""Turns of a conversation: where each begins, which are read together, and under which operation id.

Owns that a user's message begins a turn, how many short turns one call of a model reads, the operation id of an
extraction, and what is done when the model's reply could not be read. Pure, but for the call of a session. Does not own
what a framework's messages are (the adapters) or what of them is read (``messages.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from vmem_core.errors import OperationConflictError
from vmem_core.messages import ExtractionPolicy, Message
from vmem_core.records import Scope
from vmem_core.results import WriteResult
from vmem_core.text import derived_id

if TYPE_CHECKING:
    from vmem_core.session import MemorySession

T = TypeVar("T")
_MOST_TOGETHER: Final = 50  # messages that one extraction reads, unless a single turn has more
_ATTEMPTS: Final = 2  # how many hooks ask again when the model's reply could not be read
# What a text-only loop feeds back in the user's role. Such a message begins no turn, so that the request for it always
# stands in the same conversation. Looser than the test of messages.py: what it takes too much costs nothing.
_OBSERVED: Final = re.compile(r"\W*observations?\b", re.IGNORECASE)


def looks_observed(text: str) -> bool:
    """Whether a text in the user's role begins as what a text-only loop feeds back there: a tool's words.

    >>> looks_observed("Observation: 21 degrees"), looks_observed("I like tea.")
    (True, False)
    """
    return _OBSERVED.match(text) is not None


def split_turns(conversation: Iterable[T], begins: Callable[[T], bool]) -> list[list[T]]:
    """A conversation in turns: each begins where the user speaks. What comes before that belongs to the first.

    Args:
        conversation: Its messages, in order.
        begins: Whether a message begins a turn.

    >>> split_turns(["hello", "U: tea?", "yes", "U: thanks"], lambda said: said.startswith("U: "))
    [['hello', 'U: tea?', 'yes'], ['U: thanks']]
    """
    found: list[list[T]] = []
    spoke = False
    for one in conversation:
        is_first = begins(one)
        if not found or (is_first and spoke):
            found.append([])
        found[-1].append(one)
        spoke = spoke or is_first
    return found


def batch_turns(
    turns: Iterable[Sequence[T]], calls_of: Callable[[T], Collection[str]], stands_alone: Callable[[T], bool]
) -> Iterator[list[T]]:
    """Turns put together, so that many short ones are read by few calls of a model.

    Ids of tool calls that a provider uses again in each turn keep turns apart: in one reading they would be ambiguous,
    and no result of theirs would be trusted.

    Args:
        turns: In order.
        calls_of: The ids of the calls that a message makes.
        stands_alone: Whether nothing may be read before a turn that begins with this message: it only looks like an
            observation, and before it no request may stand.

    >>> list(batch_turns([["a", "b"], ["c"], ["a"]], lambda one: [one], lambda one: False))
    [['a', 'b', 'c'], ['a']]
    """
    batch: list[T] = []
    used: set[str] = set()
    for turn in turns:
        calls = {call_id for one in turn for call_id in calls_of(one)}
        is_full = len(batch) + len(turn) > _MOST_TOGETHER
        if batch and (is_full or calls & used or stands_alone(turn[0])):
            yield batch
            batch, used = [], set()
        batch.extend(turn)
        used |= calls
    if batch:
        yield batch


def extraction_id(
    messages: Sequence[Message], scope: Scope, conversation: str, policy: ExtractionPolicy | None, attempt: int = 1
) -> str:
    """The operation id of an extraction: the same when it is done again after a crash, else another one.

    Args:
        messages: What is read.
        scope: Of the session.
        conversation: Its id; empty: it has none.
        policy: What may be read; None: as the session says.
        attempt: Counts on when the model's reply could not be read.

    >>> extraction_id([Message("m1", "user", "Tea, please.")], Scope(user_id="ada"), "chat-1", None)[:12]
    'vmem-turn-1:'
    """
    trusted = None if policy is None else [sorted(policy.trusted_tools), policy.read_assistant]
    return derived_id("vmem-turn-1", scope.key, conversation, [one.id for one in messages], trusted, attempt)


def is_unparsed(written: WriteResult) -> bool:
    """Whether the model's reply could not be read, so that the messages were left unread."""
    return any(note.code == "unparsed" for note in written.receipt.notes)


async def read_turns(
    session: MemorySession, messages: Sequence[Message], *, conversation: str, policy: ExtractionPolicy | None
) -> tuple[WriteResult | None, bool]:
    """Read turns in one operation, for a hook that comes again: what could not be read is left to the next one.

    Args:
        session: Whose memory it is.
        messages: The turns.
        conversation: Its id; empty: it has none.
        policy: What may be read; None: as the session says.

    Returns:
        What was written, and whether the turns are done; not if the model's reply could not be read, the first time.
    """
    written: WriteResult | None = None
    for attempt in range(1, _ATTEMPTS + 1):
        operation_id = extraction_id(messages, session.scope, conversation, policy, attempt)
        try:
            written = await session.extract(messages, policy=policy, operation_id=operation_id)
        except OperationConflictError:  # it was read, and a message was edited or redacted since
            return None, True
        if not is_unparsed(written):
            return written, True
        if not written.replayed:
            return written, attempt == _ATTEMPTS
    return written, True
