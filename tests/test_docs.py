"""Every example runs: the Python blocks of the pages, and the doctests of the modules.

The blocks of a page run in order, in one namespace and one empty directory, as a reader would paste them. A block
that follows a Python block and is marked ``text output`` holds what that block prints, to the letter. A block is left
out only by an HTML comment on the line above it, which must give the reason: ``<!-- not run: needs an API key -->``.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import itertools
import pkgutil
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry import trace

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = [path.parent.name for path in sorted(ROOT.glob("vmem_*/__init__.py"))]

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_SKIP = re.compile(r"<!-- not run: (?P<reason>\S.*) -->\n$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: where it starts, what it holds, what it should print."""

    line: int
    code: str
    skipped: bool
    output: str | None


def blocks(page: str) -> list[Block]:
    fences = list(_FENCE.finditer(page))
    found = []
    for fence, follower in itertools.zip_longest(fences, fences[1:]):
        if fence["info"].strip() != "python":
            continue
        output = follower["body"] if follower and follower["info"].strip() == "text output" else None
        skipped = _SKIP.search(page[: fence.start()]) is not None
        found.append(Block(page.count("\n", 0, fence.start("body")), fence["body"], skipped, output))
    return found


def run_page(path: Path) -> None:
    module = types.ModuleType("__main__")
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.skipped:
            continue
        code = "\n" * block.line + block.code  # so that a traceback names the line of the page
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(path), "exec"), module.__dict__)
        if block.output is not None:
            assert printed.getvalue() == block.output, f"{path.name}, line {block.line}: prints something else"


def modules() -> Iterator[str]:
    for package in PACKAGES:
        yield package
        for found in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            yield found.name


@pytest.fixture(autouse=True)
def tracing_ends_with_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may set up tracing. The call of OpenTelemetry holds for the whole process, and can be made only once."""
    monkeypatch.setattr(
        trace, "set_tracer_provider", lambda provider: monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_examples_of_a_page_run_and_log_no_fault(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page)
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("vmem_")]
    assert [message for message in logged if " failed" in message] == []


@pytest.mark.parametrize("name", list(modules()))
def test_the_examples_in_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        failed = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL).failed
    assert not failed, printed.getvalue()


def test_links_between_pages_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    lost = [
        f"{page.name} -> {target}"
        for page in pages
        for target in link.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not lost


def test_the_page_of_errors_names_each_error_with_its_code() -> None:
    errors = importlib.import_module("vmem_core.errors")
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    missing = [
        error.__name__
        for error in vars(errors).values()
        if isinstance(error, type)
        and issubclass(error, errors.VmemError)
        and (f"`{error.__name__}`" not in page or f"`{error.code}`" not in page)
    ]
    assert not missing


def test_the_first_two_commands_stand_in_the_readme() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert 'pip install -e ".[demo]" && vmem demo' in page
    assert 'pip install -e ".[dev]" && pytest' in page


def test_blocks_are_found_skipped_and_paired_with_their_output() -> None:
    page = (
        "```python\nprint(1)\n```\n\n```text output\n1\n```\n"
        "<!-- not run: needs a key -->\n```python\nboom\n```\n"
        "<!-- not run: -->\n```python\nx = 1\n```\n"
        "```bash\nls\n```\n"
    )
    found = blocks(page)
    assert [(b.code, b.skipped, b.output) for b in found] == [
        ("print(1)\n", False, "1\n"),
        ("boom\n", True, None),
        ("x = 1\n", False, None),
    ]
    assert page.splitlines()[found[0].line] == "print(1)"


def test_a_page_that_prints_something_else_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text output\n2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="line 1"):
        run_page(page)


def test_packages_are_found() -> None:
    assert "vmem_core" in PACKAGES
    assert sys.version_info >= (3, 11)
