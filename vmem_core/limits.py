"""How large what enters may be.

Owns the numbers and the checks of size. Does not own whether a value is sound (``records.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from vmem_core.errors import InvalidRequestError
from vmem_core.records import Draft, Link, Scope, Source
from vmem_core.text import json_encoder
from vmem_core.values import check_depth, check_integer

_encode = json_encoder()


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest values a session takes; each can be changed.

    Args:
        text_chars: Characters of a record's text.
        id_chars: Characters of any id, tool name, relation or URI.
        metadata_bytes: Bytes of a record's metadata as compact JSON in UTF-8.
        metadata_depth: Levels of lists and objects in metadata, at most 200.
        message_chars: Characters that are read of one message.

    Raises:
        InvalidRequestError: If a limit is not an integer of 1 or more.

    >>> Limits(text_chars=500).id_chars
    512
    """

    text_chars: int = 100_000
    id_chars: int = 512
    metadata_bytes: int = 64 * 1024
    metadata_depth: int = 32
    message_chars: int = 20_000

    def __post_init__(self) -> None:
        for item in fields(self):
            check_integer(getattr(self, item.name), f"limits.{item.name}", least=1)
        check_integer(self.metadata_depth, "limits.metadata_depth", least=1, most=200)

    def check_text(self, text: str, path: str = "text") -> None:
        """Refuse a text that is too long.

        Raises:
            InvalidRequestError: With the path and the limit.
        """
        if len(text) > self.text_chars:
            raise InvalidRequestError(
                f"has {len(text)} characters, the limit is {self.text_chars}; shorten it or raise Limits", path=path
            )

    def check_id(self, value: str | None, path: str) -> None:
        """Refuse an id that is too long.

        Raises:
            InvalidRequestError: With the path and the limit.
        """
        if value is not None and len(value) > self.id_chars:
            raise InvalidRequestError(
                f"has {len(value)} characters, the limit is {self.id_chars}; use a shorter one or raise Limits",
                path=path,
            )

    def check_metadata(self, metadata: dict[str, Any], path: str = "metadata") -> None:
        """Refuse metadata that is too large or too deep.

        Raises:
            InvalidRequestError: With the path and the limit.
        """
        if not metadata:
            return
        check_depth(metadata, path, self.metadata_depth)
        said = _encode(metadata)
        if len(said) * 4 <= self.metadata_bytes:  # no character takes more bytes
            return
        size = len(said.encode("utf-8"))
        if size > self.metadata_bytes:
            raise InvalidRequestError(
                f"has {size} bytes as JSON, the limit is {self.metadata_bytes}; keep large data elsewhere and link it",
                path=path,
            )

    def check_scope(self, scope: Scope) -> None:
        """Refuse a scope with a field that is too long."""
        for item in fields(scope):
            self.check_id(getattr(scope, item.name), f"scope.{item.name}")

    def check_sources(self, sources: tuple[Source, ...] | None, path: str = "sources") -> None:
        """Refuse sources with an id, name or URI that is too long."""
        for index, source in enumerate(sources or ()):
            for name in ("message_id", "chat_id", "run_id", "tool_call_id", "tool_name", "uri"):
                self.check_id(getattr(source, name), f"{path}[{index}].{name}")

    def check_links(self, links: tuple[Link, ...], path: str = "links") -> None:
        """Refuse links with an id or a relation that is too long."""
        for index, link in enumerate(links):
            self.check_id(link.relation, f"{path}[{index}].relation")
            self.check_id(link.record_id, f"{path}[{index}].record_id")

    def check_draft(self, draft: Draft, prefix: str = "") -> None:
        """Refuse a draft with any part that is too large; ``prefix`` such as ``"drafts[3]."`` leads the path."""
        self.check_text(draft.text, f"{prefix}text")
        self.check_id(draft.id, f"{prefix}id")
        self.check_metadata(draft.metadata, f"{prefix}metadata")
        self.check_sources(draft.sources, f"{prefix}sources")
        self.check_links(draft.links, f"{prefix}links")
