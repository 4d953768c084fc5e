"""What a model may pass to the memory tools, and nothing else. Pure.

Owns the four schemas and the mending of a model's strings. Does not own what is done with them (``tools.py``). Loaded
when a schema is first asked for, since it needs pydantic.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from vmem_core.text import mend_string

Kind: TypeAlias = Literal["semantic", "episodic", "working", "procedural"]


def _mend(value: Any) -> Any:
    # Before pydantic looks: it refuses half a surrogate pair, and the fact would be lost.
    return mend_string(value) if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_mend)]
_OptionalKind = Annotated[
    Kind | None,
    Field(
        description="semantic: a fact (the default); episodic: something that happened; working: of use for now; "
        "procedural: how to do something."
    ),
]
_Importance = Annotated[float | None, Field(ge=0, le=1, description="How much it matters, from 0 to 1.")]
_Id = Annotated[_Text, Field(description="The record's id, as memory reported it.")]
_Revision = Annotated[
    int, Field(ge=1, description="The record's revision that you have seen; if another one is current, it is refused.")
]


class RememberArguments(BaseModel):
    """Arguments of remember."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[_Text, Field(description="One fact in one sentence that can be understood alone.")]
    kind: _OptionalKind = None
    importance: _Importance = None


class RecallArguments(BaseModel):
    """Arguments of recall."""

    model_config = ConfigDict(extra="forbid")

    query: Annotated[_Text, Field(description="What to look for, in plain words.")]
    kind: Annotated[Kind | None, Field(description="Only records of this kind.")] = None


class ReviseArguments(BaseModel):
    """Arguments of revise."""

    model_config = ConfigDict(extra="forbid")

    id: _Id
    expected_revision: _Revision
    text: Annotated[_Text | None, Field(description="The new text; leave it out to keep the old one.")] = None
    kind: _OptionalKind = None
    importance: _Importance = None


class RetractArguments(BaseModel):
    """Arguments of retract."""

    model_config = ConfigDict(extra="forbid")

    id: _Id
    expected_revision: _Revision


ARGUMENTS: dict[str, type[BaseModel]] = {
    "remember": RememberArguments,
    "recall": RecallArguments,
    "revise": ReviseArguments,
    "retract": RetractArguments,
}
