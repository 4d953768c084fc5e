"""Every rule about generations of vectors: which one begins, what may fill it, when the store switches. Pure.

A generation has one model id and one size. One is active: search uses it. At most one other is pending: it is filled
while search goes on, and takes the active one's place at once when nothing is missing any more. Stores hold no rule
of their own; they load, ask here, and do what they are told, in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmem_core.errors import EmbeddingMismatchError, InvalidRequestError
from vmem_core.results import Generation
from vmem_core.text import check_text
from vmem_core.values import check_integer

if TYPE_CHECKING:
    import numpy as np

MOST_DIMS: Final = 65_536
MOST_PENDING: Final = 1_000

Pending = tuple[str, int, str]
"""A record that a generation lacks: its id, its current revision, that revision's text."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What ``begin`` comes to.

    Args:
        generation: The one to fill.
        is_new: Whether it is to be made.
        retires: The number of a pending one that is given up, with its vectors; None: none is.
    """

    generation: Generation
    is_new: bool = False
    retires: int | None = None


def check_model(model_id: object, dims: object) -> tuple[str, int]:
    """A model's id and size, checked.

    Raises:
        InvalidRequestError: For a blank id, or a size that is not 1 to 65,536.
    """
    return check_text(model_id, "model_id"), check_integer(dims, "dims", least=1, most=MOST_DIMS)


def begin(kept: Iterable[Generation], last: int, model_id: str, dims: int) -> Beginning:
    """Which generation is filled for a model: the one there is, active or pending, or a new one.

    A store prepares one model at a time: a pending generation of another model or size is given up, also if the
    model asked for is the active one. That is the way out of a move that cannot be finished.

    Args:
        kept: The active and the pending generation, if there are any.
        last: The greatest number that was ever given, 0 for none. A number is never given twice.
        model_id: The model.
        dims: Its size.

    >>> begin([Generation(1, "old", 2, "active")], 1, "new", 3).generation
    Generation(number=2, model_id='new', dims=3, state='pending')
    """
    same, others = None, []
    for generation in kept:
        if (generation.model_id, generation.dims) == (model_id, dims) and generation.state != "retired":
            # A move whose model was active already cannot be; but a first write may have started the pending model.
            same = generation if same is None or generation.state == "pending" else same
        elif generation.state == "pending":
            others.append(generation.number)
    retires = others[0] if others else None
    if same is not None:
        return Beginning(same, retires=retires)
    return Beginning(Generation(last + 1, model_id, dims, "pending"), is_new=True, retires=retires)


def prepared(kept: Iterable[Generation]) -> Generation | None:
    """The pending one of those that are kept; there is one at most."""
    return next((generation for generation in kept if generation.state == "pending"), None)


def can_be_filled(generation: Generation | None) -> bool:
    """Whether vectors may be put into a generation: not into an unknown or retired one."""
    return generation is not None and generation.state != "retired"


def may_switch(generation: Generation | None, *, is_complete: bool) -> bool:
    """Whether the store may search with a generation: it has, or marks, every record's current revision."""
    return can_be_filled(generation) and is_complete


@dataclass(frozen=True, slots=True)
class Filling:
    """Vectors on their way into a generation.

    Args:
        dims: Their size; None if there is no vector among them.
        rows: Record id, revision, and the unit float32 vector as little-endian bytes; None: not embeddable.
    """

    dims: int | None
    rows: tuple[tuple[str, int, bytes | None], ...]

    def check_fits(self, generation: Generation) -> None:
        """Refuse vectors of another size than the generation's.

        Raises:
            EmbeddingMismatchError: Naming both sizes; nothing of them may be stored.
        """
        if self.dims not in (None, generation.dims):
            assert self.dims is not None
            raise EmbeddingMismatchError(generation.model_id, generation.dims, generation.model_id, self.dims)

    def current(self, revisions: dict[str, int]) -> list[tuple[str, int, bytes | None]]:
        """Of the rows those whose revision is the record's current one: a vector of an old text is of no use.

        Args:
            revisions: The current revision of each record there is; forgotten and unknown ones are missing.
        """
        return [row for row in self.rows if revisions.get(row[0]) == row[1]]


def check_vectors(items: object) -> Filling:
    """What a host puts into a generation, checked and normalised.

    Args:
        items: Each a record id, a revision, and a vector (numbers in any sequence or array) or None. A vector that is
            zero, NaN or infinite counts as None.

    Raises:
        InvalidRequestError: For anything else, naming the first wrong item.
    """
    if not isinstance(items, list | tuple):
        raise InvalidRequestError("must be a list of (record_id, revision, vector or None)", path="vectors")
    checked = [_check_item(item, f"vectors[{place}]") for place, item in enumerate(items)]
    given = [place for place, (_, _, vector) in enumerate(checked) if vector is not None]
    if not given:
        return Filling(None, tuple((record_id, revision, None) for record_id, revision, _ in checked))
    from vmem_core.ranking import unit

    matrix, embeddable = unit(_stack([checked[place][2] for place in given], given))
    made = {
        place: row.astype("<f4", copy=False).tobytes()
        for place, row, ok in zip(given, matrix, embeddable, strict=True)
        if ok
    }
    rows = tuple((record_id, revision, made.get(place)) for place, (record_id, revision, _) in enumerate(checked))
    return Filling(matrix.shape[1], rows)


def _check_item(item: object, path: str) -> tuple[str, int, Any]:
    if not isinstance(item, list | tuple) or len(item) != 3:
        raise InvalidRequestError("must be (record_id, revision, vector or None)", path=path)
    record_id, revision, vector = item
    return check_text(record_id, f"{path}[0]"), check_integer(revision, f"{path}[1]", least=1), vector


def _stack(vectors: Sequence[Any], places: Sequence[int]) -> np.ndarray:
    """Vectors as rows of one matrix; else the first one that stands in the way is named."""
    try:
        return matrix_of(vectors, len(vectors), "vectors")
    except InvalidRequestError as error:
        for vector, place in zip(vectors, places, strict=True):
            matrix_of([vector], 1, f"vectors[{place}][2]")  # says more, if this one alone is wrong
        raise error


def matrix_of(vectors: Any, rows: int, path: str) -> np.ndarray:
    """Vectors as an array of shape (rows, dims).

    Args:
        vectors: An array or nested sequences of real numbers.
        rows: How many there must be.
        path: Where they stand, for the error.

    Raises:
        InvalidRequestError: For strings, truth values, ragged rows, or another shape.
    """
    import numpy as np

    try:
        matrix = np.asarray(vectors)
    except ValueError:
        raise InvalidRequestError("rows differ in length; give one row of equal size a text", path=path) from None
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise InvalidRequestError("must be numbers of shape (texts, dims)", path=path)
    if matrix.shape[0] != rows or matrix.shape[1] < 1:
        raise InvalidRequestError(f"has shape {matrix.shape}, expected {rows} row(s) of one size", path=path)
    return matrix


def check_page(number: object, limit: object, after: object) -> None:
    """The arguments of ``pending``, checked.

    Raises:
        InvalidRequestError: For a wrong one.
    """
    check_number(number)
    check_integer(limit, "limit", least=1, most=MOST_PENDING)
    if after is not None:
        check_text(after, "after")


def check_number(number: object) -> int:
    """A generation's number, checked. Whether there is such a generation is the store's to say."""
    return check_integer(number, "number", least=1, most=2**31 - 1)
