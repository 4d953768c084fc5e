"""Turns of a chat memory, read once.

Owns which turns are still to be read, and that nobody else reads them meanwhile. Does not own when it happens
(``memory.py``), what of a message is read (``conversation.py``), or what is done when the model's reply could not be
read (``vmem_core``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vmem_core import ExtractionPolicy, MemorySession, WriteResult, read_turns
from vmem_llamaindex.conversation import HANDOFF, Kept, as_read, batches, turns
from vmem_llamaindex.memory_history import Conversation


def make_policy(trusted_tools: Collection[str]) -> ExtractionPolicy | None:
    """What may be read; None: as the session says.

    Raises:
        InvalidRequestError: For anything but a collection of names.
    """
    policy = ExtractionPolicy(trusted_tools)
    names = frozenset(policy.trusted_tools) - {HANDOFF}
    return ExtractionPolicy(names) if names else None


class Learner:
    """Reads the turns of a conversation.

    Args:
        conversation: What this process knows of it.
        conversation_id: Its key in the chat store.
        policy: What may be read; None: as the session says.
    """

    def __init__(self, conversation: Conversation, conversation_id: str, policy: ExtractionPolicy | None) -> None:
        self._conversation, self._id, self._policy = conversation, conversation_id, policy

    def needs_older(self, found: Sequence[Kept]) -> bool:
        """Whether something before these messages may be unread: the first of them is."""
        self._take_over(found)
        with self._conversation.lock:
            return bool(found) and not self._is_done(found[0])

    async def learn(self, session: MemorySession, found: Sequence[Kept], *, last: bool) -> WriteResult | None:
        """Read what was not read.

        Args:
            session: Whose memory it is.
            found: The conversation, or the newer part of it.
            last: Whether the last turn is over, too.

        Returns:
            What the last operation wrote; None if there was nothing to read.
        """
        self._take_over(found)
        whole = turns(found)
        claimed = self._claim(whole if last else whole[:-1])
        written: WriteResult | None = None
        try:
            for batch in batches(claimed):
                written, finished = await read_turns(
                    session, as_read(batch), conversation=self._id, policy=self._policy
                )
                if not finished:
                    break
                with self._conversation.lock:
                    self._conversation.done |= {one.id for one in batch}
        finally:
            with self._conversation.lock:
                self._conversation.claimed -= {one.id for turn in claimed for one in turn}
                self._note_progress(found)
        return written

    def _take_over(self, found: Sequence[Kept]) -> None:
        """What an earlier process read is done; not what came in this one, wherever a clock has put it."""
        with self._conversation.lock:
            ids = [one.id for one in found]
            if self._conversation.read_to in ids:
                earlier = set(ids[: ids.index(self._conversation.read_to) + 1])
                self._conversation.done |= earlier - self._conversation.own

    def _claim(self, found: Sequence[Sequence[Kept]]) -> list[Sequence[Kept]]:
        """Turns that nobody read or is reading, now ours.

        A turn that was read in part comes whole: what it began with decides what of the rest is trusted.
        """
        with self._conversation.lock:
            undone = [turn for turn in found if not all(self._is_done(one) for one in turn)]
            free = [turn for turn in undone if not any(one.id in self._conversation.claimed for one in turn)]
            self._conversation.claimed |= {one.id for turn in free for one in turn}
            return free

    def _is_done(self, one: Kept) -> bool:
        return one.mark.past or one.id in self._conversation.done

    def _note_progress(self, found: Sequence[Kept]) -> None:
        if not self._conversation.own <= self._conversation.done:
            return  # a message that is still to be read may stand before these: others write meanwhile
        for one in found:
            if not self._is_done(one):
                return
            self._conversation.read_to = one.id
