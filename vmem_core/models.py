"""What a host plugs in: embedders and plain callables, sync or async, and one way to call each.

Owns the values that pass between the library and a model, and the check of what comes back. No lock, connection or
transaction is ever held here. Does not own what is done with a vector (``operations.py``, ``index.py``).
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from vmem_core.errors import EmbeddingMismatchError, InvalidRequestError, UnsupportedError
from vmem_core.generations import matrix_of
from vmem_core.ledger import Reservation, UsageLedger
from vmem_core.logs import log
from vmem_core.plan import Vectors
from vmem_core.store import QueryVector
from vmem_core.text import check_text
from vmem_core.values import check_integer

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

T = TypeVar("T")
Purpose = Literal["document", "query"]
_CHARACTERS_A_TOKEN = 4
_REPLY_TOKENS = 256
_MOST_THREADS = 100_000
_MOST_MOVES = 3  # of the store, while one call embeds


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a model call took.

    Args:
        input_tokens: Tokens read, 0 or more.
        output_tokens: Tokens written, 0 or more.

    >>> Usage(12).output_tokens
    0
    """

    input_tokens: int
    output_tokens: int = 0

    def __post_init__(self) -> None:
        check_integer(self.input_tokens, "usage.input_tokens", least=0)
        check_integer(self.output_tokens, "usage.output_tokens", least=0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a language model is asked.

    Args:
        system: Its instructions.
        user: The data it works on. It may hold memory text: do not log it.
        schema: The JSON schema of the reply, for models that offer structured output.
    """

    system: str
    user: str
    schema: Mapping[str, Any] | None = None

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class LLMReply:
    """What a language model answers: its text, what the call took, and the id of the model that ran.

    >>> LLMReply('{"facts": []}', Usage(120, 8)).usage.output_tokens
    8
    """

    text: str | None
    usage: Usage | None = None
    model_id: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """What an embedder answers.

    Args:
        vectors: Shape (n, dims), floats: a numpy array or nested sequences, one row a text, in order. A row that is
            zero, NaN or infinite means "not embeddable": the text is found by its words only.
        model: The model's id. It names the space: two models never share one, even of equal size.
        usage: What the call took, if the model reports it.

    >>> Embeddings([[1.0, 0.0]], "my-model").model
    'my-model'
    """

    vectors: Any
    model: str
    usage: Usage | None = None

    def __post_init__(self) -> None:
        check_text(self.model, "embeddings.model")


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors; ``embed`` may be async. A plain callable of the same arguments does as well."""

    def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embeddings | Awaitable[Embeddings]:
        """Embed texts, either as documents to be found or as queries that look for them."""
        ...


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of it is to be awaited."""
    # An object that is called has its coroutine function on its class.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def caller(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """What a host plugged in, to be awaited: an async callable as it is, a sync one in a thread."""
    return function if is_async(function) else functools.partial(call, function)


async def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call what a host plugged in: an async callable is awaited, a sync one runs in a thread.

    The callable's own exception reaches the caller as it is.
    """
    if is_async(function):
        return await function(*args, **kwargs)
    import asyncio

    run = functools.partial(contextvars.copy_context().run, functools.partial(function, *args, **kwargs))
    result = await asyncio.get_running_loop().run_in_executor(_threads(os.getpid()), run)
    return await result if inspect.isawaitable(result) else result


@functools.cache
def _threads(pid: int) -> ThreadPoolExecutor:
    """Threads for the host's callables, as many as run at once: a thread is made only when none is idle.

    A callable may use ``.sync`` and so wait for another callable of the host. In a pool with an end, enough of them
    would wait for each other for ever.
    """
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(max_workers=_MOST_THREADS, thread_name_prefix="vmem-host")


class Accounted:
    """A language model or an embedder that reports its usage. Made by :func:`accounted`."""

    accounted = True

    def __init__(self, target: Any, model_id: str | None) -> None:
        self.target, self.model_id = target, model_id

    def __repr__(self) -> str:
        return f"accounted({type(self.target).__name__}, model_id={self.model_id!r})"

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, as an embedder if a purpose is given, else as a language model."""
        return await call(_embed_function(self.target) if "purpose" in kwargs else self.target, *args, **kwargs)


def accounted(llm_or_embedder: Any, model_id: str | None = None) -> Accounted:
    """Mark a language model or an embedder as one whose answers carry their ``usage``.

    Args:
        llm_or_embedder: Returns ``LLMReply`` or ``Embeddings`` with ``usage``.
        model_id: The id that its calls are reserved and priced under.

    Raises:
        InvalidRequestError: If it cannot be called.
    """
    if not callable(_embed_function(llm_or_embedder)):
        raise InvalidRequestError("must be a language model or an embedder", path="accounted")
    return Accounted(llm_or_embedder, None if model_id is None else check_text(model_id, "model_id"))


def _embed_function(target: Any) -> Any:
    embed = getattr(target, "embed", None)
    return embed if callable(embed) else target


def check_embedder(embedder: object) -> Any:
    """None, an object with ``embed``, or a callable.

    Raises:
        InvalidRequestError: For anything else.
    """
    if embedder is None or callable(_embed_function(embedder)):
        return embedder
    raise InvalidRequestError("must have embed(texts, *, purpose) or be such a callable", path="embedder")


def check_llm(llm: object) -> Any:
    """None, or a callable that takes a :class:`Prompt`.

    Raises:
        InvalidRequestError: For anything else.
    """
    if llm is None or callable(llm):
        return llm
    raise InvalidRequestError("must be a callable that takes a Prompt; see LangChainLLM for models", path="llm")


@dataclass(slots=True, eq=False, repr=False)
class PluggedEmbedder:
    """An embedder, how it is called, and what it answered last.

    Args:
        target: What the host plugged in, or None.
        model_id: The id that its calls are reserved under.
    """

    target: Any
    model_id: str | None
    call: Any = field(init=False)
    answered: tuple[str, int] | None = field(init=False, default=None)  # model and dims

    def __post_init__(self) -> None:
        check_embedder(self.target)
        self.call = None if self.target is None else caller(_embed_function(self.target))
        self.model_id = self.model_id or getattr(self.target, "model_id", None)


class ModelCalls:
    """The one way to a session's models: through the ledger, if there is one, and checked on the way back.

    Args:
        llm: The language model, or None.
        embedder: The embedder, or None.
        ledger: Where calls are reserved and settled, or None.
        llm_model_id: The id that language model calls are reserved under.
        embedder_model_id: The id that embedding calls are reserved under.
        next_embedder: The one to use once the store has moved to its model, or None.
    """

    def __init__(
        self,
        llm: Any,
        embedder: Any,
        ledger: UsageLedger | None = None,
        llm_model_id: str | None = None,
        embedder_model_id: str | None = None,
        next_embedder: Any = None,
    ) -> None:
        self.llm, self._ledger = check_llm(llm), ledger
        self._llm_model_id = llm_model_id or getattr(llm, "model_id", None)
        self._current = PluggedEmbedder(embedder, embedder_model_id)
        if embedder is None and next_embedder is not None:
            raise InvalidRequestError("follows an embedder; give that one too", path="next_embedder")
        self._next = None if next_embedder is None else PluggedEmbedder(next_embedder, None)
        self._warned = False

    @property
    def embedder(self) -> Any:
        """What embeds, or None."""
        return self._current.target

    @property
    def next(self) -> PluggedEmbedder | None:
        """What the store is going to be moved to, as far as it is known."""
        return self._next

    def use(self, plugged: PluggedEmbedder) -> None:
        """Embed with another embedder from now on; what the store may move to after that is still known."""
        self._current = plugged

    @contextmanager
    def expecting(self, plugged: PluggedEmbedder) -> Iterator[None]:
        """Be ready for the store to move to another embedder's model."""
        before, self._next = self._next, plugged
        try:
            yield
        finally:
            if self._next is plugged:
                arrived = before is not None and before.answered is not None and before.answered == plugged.answered
                self._next = None if arrived else before

    def _follow(self, error: EmbeddingMismatchError) -> bool:
        """Whether to embed once more: the store has moved, and the model it has now is at hand.

        Args:
            error: What the store said of vectors made here.
        """
        active = (error.active_model, error.active_dims)
        if self._current.answered == active:
            return True  # another call has followed already
        if self._next is None or self._next.answered not in (None, active):
            return False
        self._current, self._next = self._next, self._current
        return True

    async def following(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Do what embeds and then meets the store; again if the store has just moved to the next model.

        Raises:
            EmbeddingMismatchError: If the store's model is not at hand.
        """
        for _ in range(_MOST_MOVES):
            try:
                return await attempt()
            except EmbeddingMismatchError as error:
                if not self._follow(error):
                    raise
        return await attempt()

    async def ask(self, prompt: Prompt) -> Any:
        """What the language model answers: its text, or None, blocks or parsed JSON from a careless one.

        Raises:
            BudgetExceededError: If the ledger refuses, before the call runs.
            InvalidRequestError: If it answers anything else, such as a framework's message.
        """
        size = len(prompt.system) + len(prompt.user)
        reservation = self._reserve("memory-llm", self.llm, self._llm_model_id, size, _REPLY_TOKENS)
        reply = await self._settled(reservation, call(self.llm, prompt))
        answer = reply.text if isinstance(reply, LLMReply) else reply
        if answer is not None and not isinstance(answer, str | list | dict):
            raise InvalidRequestError(f"must return a text or an LLMReply, not {type(answer).__name__}", path="llm")
        return answer

    async def embed_documents(self, texts: Sequence[str]) -> Vectors | None:
        """The vectors of texts to be stored, by text; None without an embedder or a text.

        Raises:
            InvalidRequestError: If the embedder answers anything but one row of numbers a text.
            BudgetExceededError: If the ledger refuses, before the call runs.
        """
        unique = list(dict.fromkeys(texts))
        if self.embedder is None or not unique:
            return None
        model, matrix, embeddable = await self._embed(unique, "document")
        rows = zip(unique, matrix, embeddable, strict=True)
        return Vectors(model, matrix.shape[1], {text: _bytes(row) if ok else None for text, row, ok in rows})

    async def embed_query(self, text: str) -> QueryVector:
        """The vector of a query.

        Raises:
            InvalidRequestError: If the embedder answers anything but one row of numbers.
            BudgetExceededError: If the ledger refuses, before the call runs.
        """
        model, matrix, embeddable = await self._embed([text], "query")
        return QueryVector(model, matrix.shape[1], _bytes(matrix[0]) if embeddable[0] else None)

    async def _embed(self, texts: list[str], purpose: Purpose) -> tuple[str, np.ndarray, np.ndarray]:
        """Model id, unit float32 matrix, and which rows are embeddable."""
        from vmem_core.ranking import unit

        model, matrix = await self.rows(self._current, texts, purpose)
        return model, *unit(matrix)

    async def rows(
        self, plugged: PluggedEmbedder, texts: Sequence[str], purpose: Purpose = "document"
    ) -> tuple[str, np.ndarray]:
        """Model id and rows of an embedder, shape (texts, dims), as it gave them.

        Raises:
            InvalidRequestError: If it answers anything but one row of numbers a text.
            BudgetExceededError: If the ledger refuses, before the call runs.
        """
        if self._ledger is None:
            answer = await plugged.call(texts, purpose=purpose)
        else:
            size = sum(map(len, texts))
            reservation = self._reserve("memory-embedding", plugged.target, plugged.model_id, size, 0)
            answer = await self._settled(reservation, plugged.call(texts, purpose=purpose))
        if not isinstance(answer, Embeddings):
            raise InvalidRequestError(f"must return Embeddings, not {type(answer).__name__}", path="embedder")
        matrix = matrix_of(answer.vectors, len(texts), "embeddings.vectors")
        plugged.answered = (answer.model, matrix.shape[1])
        return answer.model, matrix

    def _reserve(self, kind: str, target: Any, model_id: str | None, size: int, out: int) -> Reservation | None:
        if self._ledger is None:
            return None
        is_accounted = bool(getattr(target, "accounted", False))
        reservation = self._ledger.reserve(
            kind, model_id, input_tokens=-(-size // _CHARACTERS_A_TOKEN), output_tokens=out, accounted=is_accounted
        )
        if not is_accounted and not self._warned:
            self._warned = True
            log().warning("a %s call reports no usage; its estimate stands. Mark it with accounted(...)", kind)
        return reservation

    async def _settled(self, reservation: Reservation | None, answering: Awaitable[Any]) -> Any:
        """Await an answer and settle its reservation with the usage it reports; else the estimate stays."""
        usage = None
        try:
            answer = await answering
            # Who does not promise to report its usage is not believed either: 0 tokens would be free.
            usage = getattr(answer, "usage", None) if reservation is not None and reservation.accounted else None
        finally:
            if reservation is not None and self._ledger is not None and not isinstance(usage, Usage):
                self._ledger.keep(reservation)
        if reservation is not None and self._ledger is not None and isinstance(usage, Usage):
            model = getattr(answer, "model_id", None) or getattr(answer, "model", None)
            self._ledger.settle(
                reservation, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, model_id=model
            )
        return answer


def _bytes(row: np.ndarray) -> bytes:
    return row.astype("<f4", copy=False).tobytes()


class LocalEmbedder:
    """Embeds offline, with no key: the static word table that comes inside the ``wordllama`` wheel (256 dimensions).

    Quick and small, and weaker than a transformer: a good default to start with. Its ranks would put more wrong records
    first than words alone do, its scores do not: a session that is not told otherwise fuses by ``scores``.

    Raises:
        UnsupportedError: If the ``local`` extra is not installed.
    """

    model = model_id = "wordllama-l2-256"
    accounted = True  # it costs nothing, and says so
    fusion = "scores"

    def __init__(self) -> None:
        self._loaded: Any = None

    def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embeddings:
        """Embed texts; documents and queries alike. A text without a known word is not embeddable."""
        if self._loaded is None:
            self._loaded = _load_wordllama()
        return Embeddings(self._loaded.embed(list(texts)), self.model, Usage(0))


def _load_wordllama() -> Any:
    from pathlib import Path

    try:
        import wordllama
    except ImportError:
        raise UnsupportedError('LocalEmbedder needs the extra "local": pip install "versioned-memory[local]"') from None
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
