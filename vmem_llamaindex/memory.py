"""The chat memory of LlamaIndex's agents and chat engines: recall before the model, extraction after the turn.

Owns the hooks that LlamaIndex calls, what is kept of a memory with a saved context (references and ids, no text of a
record), and that a memory serves one scope alone. Does not own where messages are kept (``memory_history.py``), what
is read of them (``conversation.py``, ``memory_learning.py``) or how a context is made (``memory_recall.py``).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import InsertMethod, Memory
from llama_index.core.memory.memory import DEFAULT_FLUSH_SIZE, DEFAULT_TOKEN_LIMIT
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.utils import get_tokenizer
from pydantic import PrivateAttr

from vmem_core import (
    ContextBudget,
    ContextPackage,
    InvalidRequestError,
    MemorySession,
    UnsupportedError,
    WriteResult,
    aresolve_session,
    run_sync,
    text_digest,
)
from vmem_llamaindex.binding import LOG, MemoryRequest, bound_session
from vmem_llamaindex.conversation import Kept, Mark, as_past, ends_turn, kept, marked, plain, said, text_of
from vmem_llamaindex.memory_history import (
    Conversation,
    ProcessChatStore,
    bound_chat_store,
    conversation_of,
    give_chat_store,
)
from vmem_llamaindex.memory_learning import Learner, make_policy
from vmem_llamaindex.memory_recall import fit, with_context, without_context, wrapped
from vmem_llamaindex.memory_run import (
    drops_system_message,
    mark_results,
    memory_of_start,
    note_history,
    note_put,
    note_turn,
    put_of_run,
    step_context,
    turn_of_run,
)
from vmem_llamaindex.memory_saved import SAVED, bind, check_bound, check_whose, is_another_store, unfinished_of
from vmem_llamaindex.memory_settings import check_method, check_names, check_settings
from vmem_llamaindex.memory_speaker import asked_by_model, begins_run, in_tool_step, speakers

_MOST_OF_A_MARK: Final = 16  # characters of a scope's digest that each stored message carries


class VersionedMemory(Memory):
    """A chat memory that remembers beyond the chat. Made by :meth:`from_session`.

    Recall happens once a turn, however often the framework asks, and is put among the messages when they are read:
    never into the chat history. Extraction happens once a turn, when the assistant has answered; it reads the user's
    words and results of tools that you trust, by the call that they answer. Assistant text is never read, nor what a
    ``ReActAgent`` observed. A turn that failed, was cancelled or ran out of iterations is read when the next begins.

    Saved with a context (``Context.to_dict``) are the name of its binding, ids and limits, no text of a record and no
    credential. A process that restores the context binds the same name first, see ``bind_session``.

    >>> from llama_index.core.llms import ChatMessage
    >>> from vmem_core import InMemoryStore, Scope
    >>> def obedient(prompt):
    ...     return '{"facts": [{"text": "Ada likes tea.", "sources": ["s0"]}]}'
    >>> session = MemorySession(InMemoryStore(), Scope(user_id="ada"), llm=obedient)
    >>> memory = VersionedMemory.from_session(session, binding="tea-of-ada")
    >>> memory.put(ChatMessage(role="user", content="I like tea."))
    >>> memory.put(ChatMessage(role="assistant", content="Noted."))
    >>> [record.text for record in session.sync.list().records]
    ['Ada likes tea.']
    """

    binding: str
    scope_digest: str
    store_digest: str = ""
    trusted_tools: tuple[str, ...] = ()
    extract: str = "after_turn"
    on_error: str = "log"
    top_k: int = 8
    max_tokens: int = 1000

    _given: MemorySession | None = PrivateAttr(default=None)
    _conversation: Conversation = PrivateAttr()
    _learner: Learner = PrivateAttr()
    _budget: ContextBudget = PrivateAttr()
    _is_new: bool = PrivateAttr(default=True)
    _made_in_tool: bool = PrivateAttr(default=False)

    def __init__(self, **data: Any) -> None:
        data.setdefault("sql_store", ProcessChatStore())
        super().__init__(**data)
        whose = self.binding, self.scope_digest, self.store_digest
        self._conversation, self._is_new = conversation_of(
            *whose, self.session_id, lambda: Conversation(ProcessChatStore())
        )
        bound = bound_chat_store(*whose)
        if bound is not None and isinstance(self._conversation.store, ProcessChatStore):  # it may be bound since
            self._conversation.store = bound
        self.sql_store = self._conversation.store
        self.tokenizer_fn = self._conversation.tokenizer or self.tokenizer_fn
        self._learner = Learner(self._conversation, self.session_id, make_policy(self.trusted_tools))
        self._budget = ContextBudget(self.top_k, self.max_tokens, self._count)

    # --- making -----------------------------------------------------------------------------------------------

    @classmethod
    def class_name(cls) -> str:
        """Return the class name."""
        return "VersionedMemory"

    @classmethod
    def from_session(
        cls,
        session: MemorySession,
        *,
        binding: str,
        session_id: str | None = None,
        trusted_tools: Collection[str] = (),
        extract: Literal["after_turn", "manual", "off"] = "after_turn",
        chat_store: AsyncDBChatStore | None = None,
        top_k: int = 8,
        max_tokens: int = 1000,
        token_limit: int = DEFAULT_TOKEN_LIMIT,
        token_flush_size: int = DEFAULT_FLUSH_SIZE,
        chat_history_token_ratio: float = 0.7,
        insert_method: InsertMethod | Literal["system", "user"] = InsertMethod.SYSTEM,
        tokenizer_fn: Callable[[str], list[Any]] | None = None,
        on_error: Literal["log", "raise"] = "log",
    ) -> VersionedMemory:
        """A chat memory of a session.

        Args:
            session: Whose memory it is. It needs an ``llm`` to learn.
            binding: The name under which a saved context finds the session again, see ``bind_session``; it is bound
                here, unless a resolver has the name already.
            session_id: The conversation's key in the chat store; None: a new conversation.
            trusted_tools: Names of tools whose results may become memory. With none, the session's own ``extraction``
                policy holds. A ``ReActAgent`` stores no results, so none of its are read.
            extract: ``"after_turn"``; ``"manual"``: only by ``aflush``; ``"off"``: never.
            chat_store: Where messages are kept, such as ``SQLAlchemyChatStore``; it is used from the library's own
                event loop. None: the one that was bound to the name, else in this process: another process that
                restores the context then starts with the unfinished turn alone.
            top_k: How many records are recalled at most, 1 to 1,000.
            max_tokens: What their text may take.
            token_limit: What messages and records may take together; records are left out first, each as a whole.
            token_flush_size: What is archived of the messages at once.
            chat_history_token_ratio: The part of the limit beyond which messages are archived.
            insert_method: Where records are shown: in the system message, or in the user's last. A ``ReActAgent`` drops
                a system message, so there it is always the user's last.
            tokenizer_fn: Counts tokens; None: LlamaIndex's own. It is not saved with a context.
            on_error: ``"log"``: a failure of recall or extraction is logged by ``vmem_llamaindex``, by the error's
                class alone, and the run goes on. ``"raise"``: it ends the run.

        Raises:
            InvalidRequestError: For a wrong argument, or a binding that stands for another scope or another store.
        """
        if not isinstance(session, MemorySession):
            raise InvalidRequestError("must be a MemorySession (not its .sync)", path="session")
        trusted = check_names(trusted_tools)
        check_settings(extract, on_error, session_id, token_limit, token_flush_size, chat_history_token_ratio)
        ContextBudget(top_k, max_tokens, None)
        if tokenizer_fn is not None and not callable(tokenizer_fn):
            raise InvalidRequestError("must be a callable from a text to its tokens", path="tokenizer_fn")
        method = check_method(insert_method)
        scope, store = bind(binding, session)
        if chat_store is not None:
            give_chat_store(binding, scope, store, chat_store)
        made = cls(
            binding=binding,
            scope_digest=scope,
            store_digest=store,
            session_id=session_id or str(uuid.uuid4()),
            trusted_tools=trusted,
            extract=extract,
            on_error=on_error,
            top_k=top_k,
            max_tokens=max_tokens,
            token_limit=token_limit,
            token_flush_size=token_flush_size,
            chat_history_token_ratio=chat_history_token_ratio,
            insert_method=method,
            tokenizer_fn=tokenizer_fn or get_tokenizer(),
        )
        made._given, made._conversation.tokenizer = session, tokenizer_fn
        made._made_in_tool = in_tool_step()
        if chat_store is not None:
            made.sql_store = made._conversation.store = bound_chat_store(binding, scope, store) or made.sql_store
        return made

    @classmethod
    def from_defaults(cls, *args: Any, **kwargs: Any) -> Memory:
        """Not offered: this memory needs a session.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError("use VersionedMemory.from_session(session, binding=...)")

    # --- saving -----------------------------------------------------------------------------------------------

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """What is saved with a context, as JSON: names, ids and limits.

        No text of a record is in it. Of the messages only those of an unfinished turn are, and only if the chat history
        is kept in this process: without them the run could not be resumed by another one.
        """
        saved: dict[str, Any] = {name: getattr(self, name) for name in SAVED}
        saved["trusted_tools"] = list(self.trusted_tools)
        recalled = self._conversation.recalled.current
        saved |= {
            "class_name": self.class_name(),
            "store_digest": self.store_digest,
            "insert_method": self.insert_method.value,
            "history": "given",
            "read_to": self._conversation.read_to,
            "recalled": None if recalled is None else {"turn": recalled[0], "package": recalled[1].to_json()},
        }
        if isinstance(self.sql_store, ProcessChatStore):
            rows = self.sql_store.rows(self.session_id)
            saved |= {"history": "process", "messages": len(rows), "unfinished": unfinished_of(rows)}
        return saved

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> VersionedMemory:
        """The memory of a saved context, with the session that its binding stands for in this process.

        Raises:
            InvalidRequestError: If it is no saved memory, if the binding stands for nothing here, for another scope or
                for another store, or if the chat store that the history is in was not bound here.
        """
        settings = {"store_digest": check_bound(data), **{name: data[name] for name in SAVED}}
        made = cls(**settings, insert_method=InsertMethod(data["insert_method"]), tokenizer_fn=get_tokenizer())
        if made._is_new:
            made._take_over(data)
        return made

    def _take_over(self, data: dict[str, Any]) -> None:
        """Go on where another process stopped."""
        self._conversation.read_to = data.get("read_to")
        recalled = data.get("recalled")
        if recalled is not None:
            self._conversation.recalled.restore(recalled["turn"], ContextPackage.from_json(recalled["package"]))
        if isinstance(self.sql_store, ProcessChatStore):
            unfinished = data.get("unfinished") or []
            self.sql_store.add(self.session_id, unfinished)
            if int(data.get("messages") or 0) > len(unfinished):
                LOG.warning("versioned memory: the chat history was kept in another process; give it a chat_store")

    def __deepcopy__(self, memo: Any = None) -> VersionedMemory:
        return self.model_copy()

    def __reduce__(self) -> Any:
        return (type(self).from_dict, (self.to_dict(),))

    # --- reading ----------------------------------------------------------------------------------------------

    async def aget(self, input: str | ChatMessage | None = None, **block_kwargs: Any) -> list[ChatMessage]:
        """The messages of the chat, with what is known for the turn.

        Args:
            input: What the turn is about; None: the user's last message.
            block_kwargs: ``initial_token_count``: what else the prompt will hold.
        """
        session = await self._session()
        stored = kept(await self.sql_store.get_messages(self.session_id, status=MessageStatus.ACTIVE))
        self._check_scope_of(stored)
        history = [one.message for one in stored]
        used = sum(self._estimate_token_count(one) for one in history) + int(block_kwargs.get("initial_token_count", 0))
        text = await self._context(session, stored, input)
        fitting = fit(text, self.token_limit - used, lambda one: self._count(wrapped(one))) if text else ""
        into_user = self.insert_method is InsertMethod.USER or drops_system_message()
        return with_context(history, wrapped(fitting) if fitting else "", into_user=into_user)

    async def aget_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        """The messages of the chat, archived ones as well, without what is known."""
        await self._session()
        stored = kept(await self.sql_store.get_messages(self.session_id, status=status))
        self._check_scope_of(stored)
        return [one.message for one in stored]

    async def _context(self, session: MemorySession, stored: Sequence[Kept], asked: str | ChatMessage | None) -> str:
        """What is known for the turn: recalled once, rendered each time, without what was forgotten since."""
        last = next((one for one in reversed(stored) if one.begins_turn), None)
        query = text_of(asked) if isinstance(asked, ChatMessage) else asked
        if not query:
            query = text_of(last.message) if last is not None else ""
        if not query.strip():
            return ""
        turn = "" if last is None else last.id
        key = f"{turn}:{text_digest(f'{turn}:{query}')}"
        try:
            package = await self._conversation.recalled.once(key, lambda: self._budget.compile(session, query))
            return await session.render(package)
        except Exception as error:  # noqa: BLE001 - whatever a host's store or model raises
            self._failed(error, "recall")
            return ""

    # --- writing ----------------------------------------------------------------------------------------------

    async def aput(self, message: ChatMessage) -> None:
        """Add a message. With the assistant's answer the turn is over, and read."""
        await self.aput_messages([message])

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages. The assistant's answer ends a turn, the user's words those before: what has ended is read."""
        session = await self._session()
        cleaned = [clean for one in messages if (clean := without_context(one)) is not None]
        if not cleaned:
            return
        stored = kept(await self.sql_store.get_messages(self.session_id, status=MessageStatus.ACTIVE))
        self._check_scope_of(stored)
        new = await self._marked(cleaned, stored)
        if new:
            with self._conversation.lock:
                self._conversation.own |= {one.id for one in kept(new)}
            await self.sql_store.add_messages(self.session_id, new, status=MessageStatus.ACTIVE)
            await self._manage_queue()
        is_over = ends_turn(cleaned[-1])
        if self.extract == "after_turn" and (is_over or any(one.begins_turn for one in kept(new))):
            await self._learn(session, last=is_over)

    async def _marked(self, messages: Sequence[ChatMessage], stored: Sequence[Kept]) -> list[ChatMessage]:
        """Messages with their marks; none, if a run that is resumed puts once more what is there."""
        who = speakers(messages, stored, made_in_tool=self._made_in_tool)
        new = [self._mark(opens=one.opens, written=one.written) for one in who]
        if len(messages) == 1 and Kept(messages[0], new[0]).begins_turn:
            return await self._opening(messages[0], new[0], stored)
        tail = stored[-len(messages) :]
        if [one.id for one in tail] == await put_of_run() and list(map(said, messages)) == [
            said(one.message) for one in tail
        ]:
            return []
        marks = await mark_results(messages, new)
        await note_put([mark.id for mark in marks])
        return [marked(message, mark) for message, mark in zip(messages, marks, strict=True)]

    async def _opening(self, message: ChatMessage, mark: Mark, stored: Sequence[Kept]) -> list[ChatMessage]:
        if in_tool_step():  # which is no turn of the run that it belongs to
            return [marked(message, mark)]
        again = await turn_of_run(message)
        if again is not None and any(one.id == again for one in stored):
            if stored[-1].id == again:
                return []
            again = None  # the user says the same once more
        mark = replace(mark, id=again or mark.id)
        await note_turn(message, mark.id)
        return [marked(message, mark)]

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Put a chat history in the place of the one that is there.

        What was there before is known again and keeps what was read of it. The rest is the past, which is not read;
        only a question at its end that nobody has answered is new.
        """
        session = await self._session()
        before = await self._stored(older=True)
        cleaned = [clean for one in messages if (clean := without_context(one)) is not None]
        fresh = [self._mark(past=True, opens=begins_run()) for _ in cleaned]
        made = as_past(cleaned, before, fresh, written=asked_by_model(self._made_in_tool))
        await self.sql_store.set_messages(self.session_id, made, status=MessageStatus.ACTIVE)
        await note_history()
        self._conversation.recalled.drop()
        if self.extract == "after_turn":  # a turn that was left may not be in the new history
            await self._learn(session, last=True, found=before)

    async def areset(self, status: MessageStatus | None = None) -> None:
        """Delete the messages of the chat. What was learned from them stays; a turn that was not read is lost."""
        await self._session()
        await self.sql_store.delete_messages(self.session_id, status=status)
        self._conversation.recalled.drop()
        with self._conversation.lock:
            self._conversation.own.clear()

    # --- learning ---------------------------------------------------------------------------------------------

    async def aflush(self) -> WriteResult | None:
        """Read all turns that were not read, also one that has no answer yet.

        Returns:
            What the last operation wrote; None if there was nothing to read.

        Raises:
            UnsupportedError: With ``extract="off"``.
        """
        if self.extract == "off":
            raise UnsupportedError('this memory was made with extract="off"')
        return await self._learner.learn(await self._session(), await self._stored(older=True), last=True)

    def flush(self) -> WriteResult | None:
        """Read all turns that were not read. See :meth:`aflush`."""
        return run_sync(self.aflush())

    async def _learn(self, session: MemorySession, *, last: bool, found: Sequence[Kept] | None = None) -> None:
        try:
            await self._learner.learn(session, await self._stored() if found is None else found, last=last)
        except Exception as error:  # noqa: BLE001 - whatever a host's store or model raises
            self._failed(error, "extract")

    async def _stored(self, *, older: bool = False) -> list[Kept]:
        """The messages of the chat; archived ones as well, if some of them may be unread."""
        found = kept(await self.sql_store.get_messages(self.session_id, status=MessageStatus.ACTIVE))
        if older or self._learner.needs_older(found):
            found = kept(await self.sql_store.get_messages(self.session_id, status=None))
        self._check_scope_of(found)
        return found

    def _failed(self, error: Exception, what: str) -> None:
        """Log an error by its class alone: its message may quote what was to be remembered."""
        if self.on_error == "raise":
            raise error
        if isinstance(error, InvalidRequestError) and error.path == "infer":
            if not self._conversation.told:
                LOG.warning('versioned memory: the session has no llm, so no turn is read; or set extract="off"')
            self._conversation.told = True
            return
        LOG.warning("versioned memory: %s failed with %s", what, type(error).__name__)

    # --- one scope alone --------------------------------------------------------------------------------------

    async def _session(self) -> MemorySession:
        """The session, which must be of the scope that this memory was made for."""
        self._check_start()
        found = self._given or await aresolve_session(
            bound_session(self.binding), MemoryRequest(step_context(), self.binding, self.session_id)
        )
        if found is None:
            raise InvalidRequestError("the resolver found no session for this run", path="session")
        return check_whose(found, self.scope_digest, self.store_digest)

    def _check_start(self) -> None:
        """Refuse a run that was started with another memory than its context holds: the framework would ignore it."""
        given = memory_of_start()
        if given is None or given is self:
            return
        if (
            not isinstance(given, VersionedMemory)
            or given.scope_digest != self.scope_digest
            or is_another_store(self.store_digest, given.store_digest)
        ):
            raise InvalidRequestError(
                "is of another scope or store than the memory that this context holds; start with a new Context",
                path="memory",
            )
        if given.session_id != self.session_id and given.session_id not in self._conversation.ignored:
            self._conversation.ignored.add(given.session_id)
            LOG.warning(
                "versioned memory: the context goes on with the conversation that it holds, not with that of the "
                "memory= that this run was given; start another conversation with a new Context"
            )

    def _check_scope_of(self, stored: Sequence[Kept]) -> None:
        """Refuse a chat history that another scope wrote."""
        own = self._mark().scope
        if any(one.mark.scope not in ("", own) for one in stored):
            raise InvalidRequestError("is the chat history of another scope; choose another", path="session_id")

    def _mark(self, *, past: bool = False, opens: bool = False, written: bool = False) -> Mark:
        scope = self.scope_digest.removeprefix("sha256:")[:_MOST_OF_A_MARK]
        return Mark(f"vmem-msg-1:{uuid.uuid4().hex}", scope, past=past, opens=opens, written=written)

    # --- tokens -----------------------------------------------------------------------------------------------

    def _count(self, text: str) -> int:
        return len(self.tokenizer_fn(text))

    def _estimate_token_count(self, message_or_blocks: Any) -> int:
        """LlamaIndex's own count, of what a model sees."""
        if isinstance(message_or_blocks, ChatMessage):
            return super()._estimate_token_count(plain(message_or_blocks))
        return super()._estimate_token_count(message_or_blocks)

    # --- the same for sync code -------------------------------------------------------------------------------

    def get(self, input: str | ChatMessage | None = None, **block_kwargs: Any) -> list[ChatMessage]:
        """The messages of the chat, with what is known for the turn. See :meth:`aget`."""
        return run_sync(self.aget(input, **block_kwargs))

    def get_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        """The messages of the chat. See :meth:`aget_all`."""
        return run_sync(self.aget_all(status))

    def put(self, message: ChatMessage) -> None:
        """Add a message. See :meth:`aput`."""
        run_sync(self.aput(message))

    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages. See :meth:`aput_messages`."""
        run_sync(self.aput_messages(messages))

    def set(self, messages: list[ChatMessage]) -> None:
        """Put a chat history in the place of the one that is there. See :meth:`aset`."""
        run_sync(self.aset(messages))

    def reset(self) -> None:
        """Delete the messages of the chat. See :meth:`areset`."""
        run_sync(self.areset())
