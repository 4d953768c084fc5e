"""A dry run over many batches: what earlier batches would have written.

Owns the memory of a dry run: 16 bytes of hashes a record, no text. A store sees only one batch of a dry run at a time,
so that an id which comes twice in the source would be counted twice. Does not own the rules (``imports.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from vmem_core.imports import Import

_HALF = 0xFFFF_FFFF


class Rehearsal:
    """What a dry run has met so far."""

    def __init__(self) -> None:
        self._met: dict[int, int] = {}  # hash of the id: half a hash of its scope, half a hash of its request

    def adjust(self, batch: Sequence[Import], reasons: Sequence[str | None]) -> list[str | None]:
        """The reasons of a batch, as they would be if the batches before it had been written."""
        return [
            self._met_before(operation) if reason is None else reason
            for operation, reason in zip(batch, reasons, strict=True)
        ]

    def _met_before(self, operation: Import) -> str | None:
        name = hash(operation.record_id)
        whose, said = hash(operation.scope) & _HALF, hash(operation.request()) & _HALF
        if (met := self._met.get(name)) is None:
            self._met[name] = whose << 32 | said
            return None
        if met >> 32 != whose:
            return "taken"
        return "already_imported" if met & _HALF == said else "changed"
