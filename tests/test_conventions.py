"""The rules of the house, as tests: what a review would say again and again is said here once."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(ROOT.glob("vmem_*/**/*.py"))
TEXTS = {".cfg", ".ipynb", ".jsonl", ".md", ".py", ".pyi", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml"}

USUAL_LINES, USUAL_SHARE, MOST_LINES, MOST_FILE_LINES = 25, 0.9, 60, 400
VAGUE = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}

# The home of a person, a scratch folder, a drive: places that only one machine has.
_MACHINE_PATH = re.compile(r"(?<![\w.:~$}/-])/(?:home|root|Users|work|tmp|opt|mnt)/\w|\b[A-Za-z]:\\\\?(?:Users|Temp)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Sized:
    """A function or file and its lines without docstrings."""

    name: str
    lines: int


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def place(path: Path, node: ast.AST | None = None) -> str:
    where = path.relative_to(ROOT).as_posix()
    return f"{where}:{node.lineno}" if node is not None else where  # type: ignore[attr-defined]


def docstring_lines(node: ast.AST) -> int:
    body = getattr(node, "body", None)
    if not body or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Constant):
        return 0
    return body[0].end_lineno - body[0].lineno + 1 if isinstance(body[0].value.value, str) else 0


def all_docstring_lines(node: ast.AST) -> int:
    holders = (n for n in ast.walk(node) if isinstance(n, ast.Module | ast.ClassDef | Function))
    return sum(docstring_lines(holder) for holder in holders)


def functions() -> Iterator[Sized]:
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, Function):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1 - all_docstring_lines(node)
                yield Sized(f"{place(path, node)} {node.name}", lines)


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 5
    assert sum(1 for _ in functions()) > 50


def test_no_function_is_long_and_nine_in_ten_are_short() -> None:
    sized = list(functions())
    assert not [one for one in sized if one.lines > MOST_LINES]
    longer = [one for one in sized if one.lines > USUAL_LINES]
    assert len(longer) <= (1 - USUAL_SHARE) * len(sized), longer


def test_no_file_is_long() -> None:
    sized = [
        Sized(place(path), len(path.read_text(encoding="utf-8").splitlines()) - all_docstring_lines(tree(path)))
        for path in SOURCES
    ]
    assert not [one for one in sized if one.lines > MOST_FILE_LINES]


def test_every_module_says_what_it_is_about() -> None:
    assert not [place(path) for path in SOURCES if not ast.get_docstring(tree(path))]


def test_every_public_class_and_function_has_a_docstring() -> None:
    bare = [
        f"{place(path, node)} {node.name}"
        for path in SOURCES
        for node in tree(path).body
        if isinstance(node, ast.ClassDef | Function)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
        and not _is_overload(node)
    ]
    assert not bare


def _is_overload(node: ast.ClassDef | Function) -> bool:
    return any("overload" in ast.unparse(decorator) for decorator in node.decorator_list)


def words(name: str) -> set[str]:
    """The words of a name, however it joins them."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def test_names_say_what_a_thing_is() -> None:
    vague = [place(path) for path in SOURCES if words(path.stem) & VAGUE]
    vague += [
        f"{place(path, node)} {node.name}"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef | Function) and words(node.name) & VAGUE
    ]
    assert not vague


def test_the_words_of_a_name_are_told_apart() -> None:
    assert words("SessionManager2") == {"session", "manager"}
    assert words("_sql_helpers") == {"sql", "helpers"}
    assert words("LLMBase") == {"llm", "base"}
    assert not words("database") & VAGUE


def test_no_error_is_swallowed_in_silence() -> None:
    silent = [place(path, node) for path in SOURCES for node in ast.walk(tree(path)) if _swallows(node)]
    assert not silent


def _swallows(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return all(isinstance(step, ast.Pass) or _is_ellipsis(step) for step in node.body)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"suppress", "contextlib.suppress"}:
        return any(ast.unparse(kind) in {"Exception", "BaseException"} for kind in node.args)
    return False


def _is_ellipsis(step: ast.stmt) -> bool:
    return isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant) and step.value.value is ...


def test_an_adapter_imports_only_what_the_core_exports() -> None:
    exported = set(importlib.import_module("vmem_core").__all__)
    inside = []
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] == "vmem_core":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                inside += [f"{place(path, node)} {one.name}" for one in node.names if one.name.startswith("vmem_core.")]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vmem_core":
                private = [one.name for one in node.names if node.module != "vmem_core" or one.name not in exported]
                inside += [f"{place(path, node)} {name}" for name in private]
    assert not inside


def text_files() -> Iterator[Path]:
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.is_dir():
                kept = not path.name.startswith(".") or path.name in {".ci", ".github"}
                if kept and path.name not in {"__pycache__", "build", "dist"} and not (path / "pyvenv.cfg").exists():
                    folders.append(path)
            elif path.suffix in TEXTS or path.parent.name == ".ci" or path.name == "LICENSE":
                yield path


def test_no_file_names_a_place_of_one_machine() -> None:
    named = [
        f"{place(path)}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _MACHINE_PATH.search(line)
    ]
    assert not named


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("open('" + "/ho" + "me/ada/x')", True),
        ("cd /" + "work/main", True),
        ("C:" + "\\Users\\ada", True),
        ("https://example.org/" + "home/x", False),
        ('"$folder/' + 'work/x"', False),
        ("either/or", False),
    ],
)
def test_a_place_of_one_machine_is_recognised(line: str, found: bool) -> None:
    assert bool(_MACHINE_PATH.search(line)) is found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("try:\n    f()\nexcept ValueError:\n    pass", True),
        ("try:\n    f()\nexcept ValueError:\n    ...", True),
        ("try:\n    f()\nexcept ValueError:\n    log()", False),
        ("with suppress(Exception):\n    f()", True),
        ("with contextlib.suppress(KeyError):\n    f()", False),
    ],
)
def test_a_swallowed_error_is_recognised(code: str, found: bool) -> None:
    assert any(_swallows(node) for node in ast.walk(ast.parse(code))) is found
