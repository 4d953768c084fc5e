"""What a chat memory recalls for a turn, and the text of it among the messages.

Owns that a turn recalls once, whoever asks how often; that whole records are left out when the budget is short; and how
the text is put in and taken out again. Does not own which question a turn is about (``memory.py``, ``block.py``).
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock

from vmem_core import ContextPackage, without_rendered

_OPEN: Final = "<versioned_memory>\n"
_CLOSE: Final = "\n</versioned_memory>"
_MARK: Final = re.compile(r"<(?=/?versioned_memory)")
_MARKED: Final = re.compile(
    r"(?P<before>(?:\r?\n)?)<versioned_memory>\r?\n(?P<text>(?:(?!<versioned_memory>).)*?)\r?\n</versioned_memory>"
    r"(?P<after>(?:\r?\n)?)",
    re.DOTALL,
)


class Recalled:
    """What was recalled for the newest turn: once, though several ask at the same moment.

    Who asks from another event loop while it is being recalled recalls as well: it may be what the first one waits for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: tuple[str, Future[ContextPackage | None]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of who recalls

    @property
    def current(self) -> tuple[str, ContextPackage] | None:
        """The turn and its package, if it is there already."""
        with self._lock:
            current = self._current
        package = current[1].result() if current is not None and current[1].done() else None
        return None if current is None or package is None else (current[0], package)

    def restore(self, turn: str, package: ContextPackage) -> None:
        """Take over what an earlier process recalled."""
        future: Future[ContextPackage | None] = Future()
        future.set_result(package)
        with self._lock:
            self._current = (turn, future)

    def drop(self) -> None:
        """Forget it."""
        with self._lock:
            self._current = None

    async def once(self, turn: str, recall: Callable[[], Coroutine[Any, Any, ContextPackage]]) -> ContextPackage:
        """The package for a turn: recalled by the first who asks, who also fails alone; another one then tries.

        Args:
            turn: What tells the turn from others.
            recall: Recalls.
        """
        while True:
            with self._lock:
                is_first = self._current is None or self._current[0] != turn
                if is_first:
                    self._current, self._loop = (turn, Future()), asyncio.get_running_loop()
                assert self._current is not None
                future = self._current[1]
            if is_first:
                return await self._recall(future, recall)
            if not future.done() and self._loop is not asyncio.get_running_loop():
                return await recall()  # to wait for another loop may be to wait for one that waits for us
            # Shielded: who is cancelled while waiting cancels nobody else.
            package = await asyncio.shield(asyncio.wrap_future(future))
            if package is not None:
                return package

    async def _recall(
        self, future: Future[ContextPackage | None], recall: Callable[[], Coroutine[Any, Any, ContextPackage]]
    ) -> ContextPackage:
        try:
            package = await recall()
        except BaseException:
            with self._lock:
                if self._current is not None and self._current[1] is future:
                    self._current = None
            future.set_result(None)
            raise
        future.set_result(package)
        return package


# --- the text -----------------------------------------------------------------------------------------------------


def fit(text: str, room: int, count_tokens: Callable[[str], int]) -> str:
    r"""A rendered context without its last records, so far as it must be; empty if none fits. No record is cut.

    Args:
        text: A heading, and one record a line, best first.
        room: The tokens that it may take.
        count_tokens: Counts the tokens of a text.

    >>> fit("Records:\n[r1] tea\n[r2] coffee", 4, lambda text: len(text.split()))
    'Records:\n[r1] tea'
    """
    lines = text.split("\n")
    while len(lines) > 1 and count_tokens("\n".join(lines)) > room:
        lines.pop()
    return "\n".join(lines) if len(lines) > 1 else ""


def wrapped(text: str) -> str:
    """A context with the marks by which it is found again; no text inside can hold either of them."""
    return f"{_OPEN}{_MARK.sub(r'< ', text)}{_CLOSE}"


def with_context(history: Sequence[ChatMessage], text: str, *, into_user: bool) -> list[ChatMessage]:
    """Messages with a context in them; none of those given is changed.

    Args:
        history: The conversation.
        text: The context, wrapped; empty: nothing is put in.
        into_user: Into the user's last message, before what it says; else into the system message, after what it says:
            what comes before stays as it can be cached.
    """
    found = list(history)
    if not text:
        return found
    block = TextBlock(text=text)
    if into_user:
        places = [place for place, one in enumerate(found) if one.role == MessageRole.USER]
        if places:
            one = found[places[-1]]
            found[places[-1]] = one.model_copy(update={"blocks": [block, *one.blocks]})
            return found
    places = [place for place, one in enumerate(found) if one.role == MessageRole.SYSTEM]
    if places:
        one = found[places[0]]
        found[places[0]] = one.model_copy(update={"blocks": [*one.blocks, block]})
        return found
    return [ChatMessage(role=MessageRole.SYSTEM, blocks=[block]), *found]


def without_context(message: ChatMessage) -> ChatMessage | None:
    """A message without the context that was put into it, if a host gives back what it got. None: nothing is left.

    A host that keeps roles and texts alone gives it back in one text with what stood beside it. Only what has both the
    marks and the form of a context is taken out: a user may write about the marks.
    """
    if message.role not in (MessageRole.SYSTEM, MessageRole.USER):
        return message
    cut = [_cut(block) for block in message.blocks]
    if all(new is old for new, old in zip(cut, message.blocks, strict=True)):
        return message
    left = [block for block in cut if block is not None]
    if not left and message.role == MessageRole.SYSTEM:
        return None
    return message.model_copy(update={"blocks": left or [TextBlock(text="")]})  # the user's turn stays


def _cut(block: Any) -> Any:
    """A block without contexts in its text; the same one if there are none, None if there is nothing else."""
    if not isinstance(block, TextBlock):
        return block
    text = _MARKED.sub(_beside, block.text)
    if text == block.text:
        return block
    return block.model_copy(update={"text": text}) if text else None


def _beside(found: re.Match[str]) -> str:
    """What stays of a context: the line break between what stood before it and after it."""
    if without_rendered(found["text"]).strip():
        return found[0]
    is_first, is_last = found.start() == 0, found.end() == len(found.string)
    return "" if is_first or is_last else found["before"] or found["after"]
