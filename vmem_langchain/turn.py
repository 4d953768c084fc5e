"""A turn of an agent, as a hook of the middleware finds it in the graph's state.

Owns what is still to be read of a conversation, which question a turn is about, and what was seen of it before it was
summarized. Does not own what the hooks do with it (``middleware.py``).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, Final

from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import ensure_config

from vmem_langchain.conversation import Read, read, turns
from vmem_langchain.identity import MemoryRequest, request_of

_NAMESPACE_SEPARATOR: Final = "|"  # LangGraph's, between the graphs that a run is inside of
_MOST_CONVERSATIONS: Final = 256


class Turn:
    """A turn.

    Args:
        state: The graph's. What else is asked for comes from the run that we are in.
    """

    def __init__(self, state: Any) -> None:
        config = ensure_config()
        self.request: MemoryRequest = request_of(config)
        self.thread_id = self.request.thread_id
        self.is_nested = _NAMESPACE_SEPARATOR in str((config.get("configurable") or {}).get("checkpoint_ns") or "")
        self._messages: Sequence[BaseMessage] = state.get("messages") or ()
        found = state.get("vmem_context")
        self.context: dict[str, Any] = found if isinstance(found, dict) else {}
        self._extracted = state.get("vmem_extracted")

    @property
    def key(self) -> str | None:
        """The conversation, or without a thread the question that this run is about."""
        return self.thread_id or self.context.get("message_id")

    @cached_property
    def question(self) -> Read | None:
        """The user's last message."""
        return next((one for one in reversed(self._tail) if one.begins_turn), None)

    @property
    def is_summarized(self) -> bool:
        """Whether a summary stands in the place of messages."""
        return any(one.type == "human" and one.additional_kwargs.get("lc_source") for one in self._messages)

    @property
    def present(self) -> set[str | None]:
        """The ids of all messages that are there."""
        return {one.id for one in self._messages}

    @cached_property
    def undone(self) -> list[Read]:
        """The turns that were not read, or not all of them.

        A turn that was read in part comes whole: what it began with decides what of the rest is trusted.
        """
        place, left = 0, []
        ids = [one.id for one in self._tail]
        start = ids.index(self._extracted) + 1 if self._extracted in ids else 0
        for one in turns(self._tail):
            place += len(one)
            if place > start:
                left.extend(one)
        return left

    @cached_property
    def _tail(self) -> list[Read]:
        """The conversation from the beginning of the turn that was read last: what is older is done."""
        start = next((n for n, one in enumerate(self._messages) if one.id == self._extracted), 0)
        while start > 0 and not read([self._messages[start]], None)[0].begins_turn:
            start -= 1
        return read(self._messages[start:], self.thread_id)


class Seen:
    """Messages of turns that were not read yet, as they were last seen: a long turn can be summarized before it ends.

    In this process alone, and for the conversations that came last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, list[Read]] = OrderedDict()

    def keep(self, key: str | None, messages: list[Read], is_summarized: bool) -> None:
        """Keep what is there and, with a summary in the place of messages, what was there before."""
        if key is None:
            return
        with self._lock:
            ids = {one.id for one in messages}
            lost = [one for one in self._kept.get(key, ()) if one.id not in ids] if is_summarized else []
            self._kept[key] = [*lost, *messages]
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_CONVERSATIONS:
                self._kept.popitem(last=False)

    def lost(self, key: str | None, present: Collection[str | None]) -> list[Read]:
        """What was seen and is not there any more."""
        with self._lock:
            return [one for one in self._kept.get(key or "", ()) if one.id not in present]

    def drop(self, key: str | None) -> None:
        """Forget a conversation: it was read."""
        with self._lock:
            self._kept.pop(key or "", None)
