"""A dry run over many batches: what earlier batches would have written.

Owns the memory of a dry run: 16 bytes of hashes a record, no text. A store sees only one batch of a dry run at a time,
so that an id which comes twice in the source would be counted twice. Does not own the rules (``imports.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from vmem_core.imports import Import
from vmem_core.records import Scope

_HALF = 0xFFFF_FFFF
_REPLAYS = ("already_imported", "changed")


class Rehearsal:
    """What a dry run has met so far."""

    def __init__(self) -> None:
        self._met: dict[int, int] = {}  # hash of the id: half a hash of its scope, half a hash of its request

    def adjust(self, batch: Sequence[Import], reasons: Sequence[str | None]) -> list[str | None]:
        """The reasons of a batch, as they would be if the batches before it had been written."""
        accepted: set[tuple[str, Scope]] = set()  # by the store, which knows of no earlier batch
        adjusted = []
        for operation, reason in zip(batch, reasons, strict=True):
            is_stored = reason in _REPLAYS and (operation.record_id, operation.scope) not in accepted
            if reason is None:
                accepted.add((operation.record_id, operation.scope))
            adjusted.append(self._adjusted(operation, reason, is_stored))
        return adjusted

    def _adjusted(self, operation: Import, reason: str | None, is_stored: bool) -> str | None:
        """The reason for one record; ``is_stored``: the store holds a receipt under its operation id."""
        name = hash(operation.record_id)
        whose, said = hash(operation.scope) & _HALF, hash(operation.request()) & _HALF
        if (met := self._met.get(name)) is None:
            if reason is None:
                self._met[name] = whose << 32 | said
            return reason
        # An id that a scope holds by then is judged before its times are, as ``imports.py`` does.
        if met >> 32 != whose:
            return reason if is_stored else "taken"
        return "already_imported" if met & _HALF == said else "changed"
