"""Writes the pages that say what the code says: the errors and the command line.

``python docs/generator/pages.py`` writes them; ``tests/test_site.py`` fails when they are stale. Owns which parts of a
page are written from the code, between two comments; the rest of such a page is written by hand.
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from vmem_core import errors
from vmem_core.cli.moving import app

DOCS = Path(__file__).resolve().parent.parent
BEGIN = "<!-- Written by docs/generator/pages.py from {source}; change it there. -->"
END = "<!-- The end of what is written by docs/generator/pages.py. -->"


def pages() -> dict[Path, str]:
    """Each page that has a written part, as it should be now."""
    parts = {
        DOCS / "errors.md": ("vmem_core/errors.py", "\n\n".join(error_entries())),
        DOCS / "command_line.md": ("vmem_core/cli", "\n\n".join(command_entries())),
    }
    return {path: _put(path.read_text(encoding="utf-8"), *part) for path, part in parts.items()}


def _put(page: str, source: str, text: str) -> str:
    begin = BEGIN.format(source=source)
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page has no part between {begin!r} and {END!r}")
    return f"{before}{begin}\n\n{text}\n\n{END}{after}"


# --- errors -----------------------------------------------------------------------------------------------------


def error_entries() -> Iterator[str]:
    """One entry for each code, in the order of the file."""
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.VmemError):
            causes, remedies = _causes(error), _section(error, "What to do")
            for code, cause in causes.items():
                yield _error_entry(error, code, cause, remedies.get(code) or remedies[""])


def _error_entry(error: type[errors.VmemError], code: str, cause: str, remedy: str) -> str:
    fields = ", ".join(f"`{name}`" for name in ("code", *(name for name in error.fields if name != "code")))
    return f"### `{code}`\n\n`{error.__name__}`, with {fields}.\n\n**Cause.** {cause}\n\n**What to do.** {remedy}"


def _causes(error: type[errors.VmemError]) -> dict[str, str]:
    """The causes by code: of the section ``Causes``, or else what stands before the first section."""
    if causes := _section(error, "Causes"):
        return causes
    return {error.code: _joined(re.split(r"^(?:[A-Z][\w ]*:|>>> .*)$", _doc(error), maxsplit=1, flags=re.MULTILINE)[0])}


def _section(error: type[errors.VmemError], name: str) -> dict[str, str]:
    """A section of a docstring by code; under an empty code if it makes no difference between codes."""
    found = re.search(rf"^{name}:\n((?:    .*\n?|\n(?=    ))+)", _doc(error), re.MULTILINE)
    if found is None:
        return {}
    entries = re.findall(r"^    ([a-z_]+): (.*(?:\n        .*)*)", found[1], re.MULTILINE)
    return {code: _joined(text) for code, text in entries} or {"": _joined(found[1])}


def _doc(error: type[errors.VmemError]) -> str:
    return inspect.getdoc(error) or ""


def _joined(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


# --- the command line -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """One argument or option of a command, as its function declares it."""

    name: str
    type: Any
    info: OptionInfo | ArgumentInfo
    default: Any


def command_entries() -> Iterator[str]:
    """One entry for each command, in the order in which ``vmem --help`` names them."""
    for command in app.registered_commands:
        assert command.name is not None
        assert command.callback is not None
        yield _command_entry(command.name, command.callback)


def _parameters(function: Callable[..., Any]) -> Iterator[Parameter]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = get_args(hints[name])
        yield Parameter(name, kind, info, None if parameter.default is inspect.Parameter.empty else parameter.default)


def _command_entry(name: str, function: Callable[..., Any]) -> str:
    parameters = list(_parameters(function))
    arguments = [one for one in parameters if isinstance(one.info, ArgumentInfo)]
    options = [one for one in parameters if isinstance(one.info, OptionInfo) and not one.info.hidden]
    usage = " ".join(["vmem", name, *(_value(one) for one in arguments), "[OPTIONS]"])
    rows = [f"| `{_value(one)}` | {_told(one)} |  |" for one in arguments]
    rows += [f"| {_spelt(one)} | {_told(one)} | {_default(one)} |" for one in options]
    table = "\n".join(["| | meaning | default |", "|---|---|---|", *rows])
    return f"## `vmem {name}`\n\n{inspect.getdoc(function)}\n\n```text\n{usage}\n```\n\n{table}"


def _value(one: Parameter) -> str:
    """What stands for the value: the parameter's own word, its choices, or its type."""
    if one.info.metavar:
        return str(one.info.metavar)
    kinds = [kind for kind in (get_args(one.type) or (one.type,)) if kind is not type(None)]
    if isinstance(kinds[0], type) and issubclass(kinds[0], enum.Enum):
        return "\\|".join(str(choice.value) for choice in kinds[0])
    return {str: "TEXT", int: "NUMBER"}.get(kinds[0], one.name.upper())


def _spelt(one: Parameter) -> str:
    # What stands first in ``typer.Option(...)`` is a name inside Annotated, and a default elsewhere.
    first = (one.info.default,) if isinstance(one.info.default, str) else ()
    declared = (*first, *(one.info.param_decls or ())) or (f"--{one.name.replace('_', '-')}",)
    names = ", ".join(f"`{name}`" for name in declared)
    return names if one.type is bool else f"{names} `{_value(one)}`"


def _told(one: Parameter) -> str:
    told = (one.info.help or "").replace("|", "\\|")
    return f"{told.removesuffix('.')}. Or the variable `{one.info.envvar}`." if one.info.envvar else told


def _default(one: Parameter) -> str:
    value = getattr(one.default, "value", one.default)
    return "" if value is None or value is False else f"`{value}`"


if __name__ == "__main__":
    for path, page in pages().items():
        path.write_text(page, encoding="utf-8")
        sys.stdout.write(f"{path.name}\n")
