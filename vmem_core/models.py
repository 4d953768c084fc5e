"""What a host plugs in: embedders and plain callables, sync or async, and one way to call each.

Owns the values that pass between the library and a model, and the check of what comes back. No lock, connection or
transaction is ever held here. Does not own what is done with a vector (``operations.py``, ``index.py``).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from vmem_core.errors import InvalidRequestError, UnsupportedError
from vmem_core.plan import Vectors
from vmem_core.store import QueryVector
from vmem_core.text import check_text
from vmem_core.values import check_integer

if TYPE_CHECKING:
    import numpy as np

Purpose = Literal["document", "query"]


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


async def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call what a host plugged in: an async callable is awaited, a sync one runs in a thread.

    The callable's own exception reaches the caller as it is.
    """
    # An object that is called has its coroutine function on its class.
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return await function(*args, **kwargs)
    result = await asyncio.to_thread(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def check_embedder(embedder: object) -> Any:
    """None, an object with ``embed``, or a callable.

    Raises:
        InvalidRequestError: For anything else.
    """
    if embedder is None or callable(getattr(embedder, "embed", None)) or callable(embedder):
        return embedder
    raise InvalidRequestError("must have embed(texts, *, purpose) or be such a callable", path="embedder")


async def _embed(embedder: Any, texts: Sequence[str], purpose: Purpose) -> tuple[str, np.ndarray, np.ndarray]:
    """Model id, unit float32 matrix, and which rows are embeddable."""
    from vmem_core.ranking import unit

    function = getattr(embedder, "embed", None) or embedder
    answer = await call(function, list(texts), purpose=purpose)
    if not isinstance(answer, Embeddings):
        raise InvalidRequestError(f"must return Embeddings, not {type(answer).__name__}", path="embedder")
    matrix, embeddable = unit(_matrix(answer.vectors, len(texts)))
    return answer.model, matrix, embeddable


def _matrix(vectors: Any, rows: int) -> np.ndarray:
    import numpy as np

    path = "embeddings.vectors"
    try:
        matrix = np.asarray(vectors)
    except ValueError:
        raise InvalidRequestError("rows differ in length; give one row of equal size a text", path=path) from None
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise InvalidRequestError("must be numbers of shape (texts, dims)", path=path)
    if matrix.shape[0] != rows or matrix.shape[1] < 1:
        raise InvalidRequestError(f"has shape {matrix.shape}, expected {rows} row(s) of one size", path=path)
    return matrix


async def embed_documents(embedder: Any, texts: Sequence[str]) -> Vectors | None:
    """The vectors of texts to be stored, by text; None without an embedder or a text.

    Raises:
        InvalidRequestError: If the embedder answers anything but one row of numbers a text.
    """
    unique = list(dict.fromkeys(texts))
    if embedder is None or not unique:
        return None
    model, matrix, embeddable = await _embed(embedder, unique, "document")
    rows = zip(unique, matrix, embeddable, strict=True)
    return Vectors(model, matrix.shape[1], {text: _bytes(row) if ok else None for text, row, ok in rows})


async def embed_query(embedder: Any, text: str) -> QueryVector:
    """The vector of a query.

    Raises:
        InvalidRequestError: If the embedder answers anything but one row of numbers.
    """
    model, matrix, embeddable = await _embed(embedder, [text], "query")
    return QueryVector(model, matrix.shape[1], _bytes(matrix[0]) if embeddable[0] else None)


def _bytes(row: np.ndarray) -> bytes:
    return row.astype("<f4", copy=False).tobytes()


class LocalEmbedder:
    """Embeds offline, with no key: the static word table that comes inside the ``wordllama`` wheel (256 dimensions).

    Quick and small, and weaker than a transformer: a good default to start with.

    Raises:
        UnsupportedError: If the ``local`` extra is not installed.
    """

    model = "wordllama-l2-256"

    def __init__(self) -> None:
        self._loaded: Any = None

    def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Embeddings:
        """Embed texts; documents and queries alike. A text without a known word is not embeddable."""
        if self._loaded is None:
            self._loaded = _load_wordllama()
        return Embeddings(self._loaded.embed(list(texts)), self.model)


def _load_wordllama() -> Any:
    from pathlib import Path

    try:
        import wordllama
    except ImportError:
        raise UnsupportedError('LocalEmbedder needs the extra "local": pip install "versioned-memory[local]"') from None
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
