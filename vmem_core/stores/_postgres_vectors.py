"""The ``vector`` type of pgvector, where the database has it: how vectors travel, and which tables hold them.

Owns the wire form of a vector and the question for the rows nearest to one. Does not own which hits are best: the
database's order only tells which rows need to be looked at, their scores are ours (``index.py``).

A generation's tables are made with ``vector`` columns where the database has pgvector, else with ``bytea``, and stay
as they were made: what a store is told (``pgvector=``) changes how it searches, never what it writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import psycopg
from psycopg.adapt import Dumper, Loader

BYTEA: Final = 17  # the type's number in every PostgreSQL
MOST_DIMS: Final = 16_000  # of a vector that pgvector stores
_HEADER: Final = np.dtype(">u2")
_WIRE: Final = np.dtype(">f4")
_OURS: Final = np.dtype("<f4")
_TABLE: Final = re.compile(r"\bvmem_(?:past_)?vectors_(\d+)\b")
_PAGE: Final = 256  # rows of the first question for the nearest; filters may hide many of them
_GROWTH: Final = 8


@dataclass(frozen=True, slots=True)
class VectorType:
    """The type of a database that has pgvector.

    Args:
        oid: The type's number there.
        schema: Where the extension lies, quoted, and its percent signs doubled.
    """

    oid: int
    schema: str

    @property
    def name(self) -> str:
        """The type as statements name it."""
        return f"{self.schema}.vector"


class Vector(bytes):
    """A float32 vector, little-endian, on its way into a column of the type."""


class _ToWire(Dumper):
    format = psycopg.pq.Format.BINARY

    def dump(self, obj: Vector) -> bytes:
        values = np.frombuffer(obj, _OURS)
        return np.array([len(values), 0], _HEADER).tobytes() + values.astype(_WIRE).tobytes()


class _FromWire(Loader):
    format = psycopg.pq.Format.BINARY

    def load(self, data: Any) -> bytes:
        return np.frombuffer(data, _WIRE, offset=2 * _HEADER.itemsize).astype(_OURS).tobytes()


def generation_of(statement: str) -> int | None:
    """The generation whose vectors a statement is about, or None.

    >>> generation_of("select vector from vmem_past_vectors_3 where number = ?"), generation_of("select 1")
    (3, None)
    """
    found = _TABLE.search(statement)
    return None if found is None else int(found[1])


def vector_cursor(connection: Any, oid: int) -> Any:
    """A cursor that sends :class:`Vector` values, and gets vectors as little-endian bytes."""
    cursor = connection.cursor(binary=True, row_factory=psycopg.rows.tuple_row)
    cursor.adapters.register_dumper(Vector, type("_Dumper", (_ToWire,), {"oid": oid}))
    cursor.adapters.register_loader(oid, _FromWire)
    return cursor


def with_vectors(values: Sequence[Any]) -> list[Any]:
    """Values of a statement about vectors, those that are bytes as what they are."""
    return [Vector(value) if isinstance(value, bytes) else value for value in values]


def nearest_statement(generation: int, kind: VectorType) -> str:
    """The statement for the rows nearest to a vector: lowest and highest number, the vector, limit, offset.

    On unit vectors the inner product is the cosine. The number makes the order total, so that pages do not overlap, and
    keeps approximate indexes, which a host may have made, out of it.
    """
    table = f"vmem_vectors_{generation}"
    return f"""select v.number, v.vector from (select number from {table} where number between ? and ?
      order by vector operator({kind.schema}.<#>) ?, number limit ? offset ?) as near
      join {table} v on v.number = near.number"""


def pages(depth: int) -> Iterator[tuple[int, int]]:
    """Limits and offsets of the questions for the nearest rows, each larger than all before.

    >>> from itertools import islice
    >>> list(islice(pages(20), 3))
    [(256, 0), (2048, 256), (16384, 2304)]
    """
    limit, offset = max(_PAGE, 4 * depth), 0
    while True:
        yield limit, offset
        limit, offset = limit * _GROWTH, offset + limit


def slack(dims: int) -> float:
    """How far two ways to sum one inner product of unit vectors may lie apart, doubled and with room.

    Each float32 sum is within ``dims * 2**-24`` of the true one (Higham, Accuracy and Stability of Numerical
    Algorithms, section 3.1).
    """
    return dims * 2.0**-21
