"""Rules on the text of the source, each with what to do instead.

Sizes are ratchets: a file or function over the limit on the day a rule lands is listed with its
size and may only shrink.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "bascule"

FILE_LINES_MAX = 600
FILE_LINES_SOFT = 400
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_SOFT = 50
PACKAGE_MODULES_MAX = 12

FILES_OVER_SOFT: dict[str, int] = {}
"""Path below the root -> lines, for files between the soft and the hard limit."""

FUNCTIONS_OVER_SOFT: dict[str, int] = {}
"""`path:name` -> lines, for functions between the soft and the hard limit."""


@dataclass(frozen=True)
class Ban:
    pattern: re.Pattern[str]
    instead: str
    where: tuple[str, ...] = ("src/bascule",)
    but: tuple[str, ...] = ()

    def covers(self, path: str) -> bool:
        return path.startswith(self.where) and not path.startswith(self.but or ("\0",))


def ban(pattern: str, instead: str, **scope: tuple[str, ...]) -> Ban:
    return Ban(re.compile(pattern), instead, **scope)


PURE = tuple(
    f"src/bascule/{package}/"
    for package in ("record", "wire", "storage", "raft", "replication", "metadata")
)
DOORS = tuple(
    f"src/bascule/{room}/"
    for room in ("cli", "http", "ingest", "kafka", "node", "replica", "controller")
)

BANS = (
    ban(r"\btime\.(time|time_ns|monotonic|monotonic_ns)\(", "host.api.Clock", but=(
        "src/bascule/host/real.py", "src/bascule/cli/", "src/bascule/pipeline/")),
    ban(r"(?<![\w.])random\.\w", "host.api.Random", but=("src/bascule/host/real.py",)),
    ban(r"\bos\.(open|fsync|fdatasync|rename|replace|unlink|remove|truncate)\(", "host.api.Files",
        but=("src/bascule/host/real.py",)),
    ban(r"(?<![\w.])(?<!def )open\(", "host.api.Files, or Path.read_* in the CLI", but=(
        "src/bascule/host/real.py", "src/bascule/cli/")),
    ban(r"(?<![\w.])print\(", "a structured log line, or rich in the CLI", but=(
        "src/bascule/cli/",)),
    ban(r"\basyncio\.sleep\(", "a signal to wait for, or virtual time",
        where=("tests/",), but=("tests/interop/", "tests/e2e/", "tests/spark/", "tests/tidy/")),
    ban(r"(?<![\w.])time\.sleep\(", "a signal to wait for", where=("tests/", "src/"),
        but=("tests/interop/", "tests/e2e/", "tests/spark/", "tests/tidy/",
            "src/bascule/host/real.py", "src/bascule/cli/demo/", "src/bascule/cli/top/")),
    ban(r"^\s*async def ", "a value the shell carries out: pure packages do not wait",
        where=PURE),
    ban(r"^\s*assert [^#\"']*\s and \s", "two asserts, one fact each"),
    ban(r"\bFIXME\b|\bTODO\b|\bXXX\b", "doing it, or a line in docs/decisions",
        where=("src/", "tests/", "bench/"), but=("tests/tidy/",)),
    ban(r"^\s*except\s*:", "except the errors you expect", where=("src/", "tests/", "bench/")),
    ban(r"\bcython\.cast\(", "assignment to a typed local: cast runs as Python when interpreted",
        where=("src/", "tests/"), but=("tests/tidy/",)),
    ban(r"\bcython\.long\b", "cython.longlong: long is 4 bytes on some platforms"),
    ban(r"\b(\w*(offset|timestamp|epoch))\s*:\s*cython\.int\b",
        "cython.longlong for offsets and times, Py_ssize_t for positions: int wraps silently"),
    ban(r"\bimport \*", "the names you need", where=("src/", "tests/", "bench/")),
    ban(r"\b(whitelist|blacklist)\b", "allowed, refused", where=("src/", "tests/", "docs/"),
        but=("tests/tidy/",)),
)  # fmt: skip

BOUNDARY_MARKS = ("# boundary:", "# door:")
"""The second one until the last package has changed."""
ALLOWED_PRIVATE = {"_hot", "_cython_stub", "__version__"}


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its decorators and its docstring."""
    first = function.body[0]
    start = function.lineno
    length = (function.end_lineno or start) - start + 1
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def check_ratchet(found: dict[str, int], allowed: dict[str, int], hard: int, what: str) -> None:
    over = {name: size for name, size in found.items() if size > allowed.get(name, 0)}
    assert not over, f"{what} grew over the soft limit; cut it where the nouns part: {over}"
    too_big = {name: size for name, size in found.items() if size > hard}
    assert not too_big, f"{what} over the hard limit of {hard} lines: {too_big}"
    stale = {name: size for name, size in allowed.items() if found.get(name, 0) < size}
    assert not stale, f"{what} has shrunk; lower or drop its entry: {stale}"


def test_files_stay_small() -> None:
    sizes = {
        relative(path): len(path.read_text().splitlines())
        for path in python_files("src", "tests", "bench")
    }
    # A hot module is one text by rule, so only the hard limit holds it.
    # Nor is a table of test cases easier to read in two halves.
    soft = {n: s for n, s in sizes.items() if n.startswith("src/") and not n.endswith("/_hot.py")}
    over = {n: s for n, s in soft.items() if s > FILE_LINES_SOFT}
    over |= {n: s for n, s in sizes.items() if s > FILE_LINES_MAX}
    check_ratchet(over, FILES_OVER_SOFT, FILE_LINES_MAX, "a file")


def test_functions_stay_small() -> None:
    over = {}
    for path in python_files("src", "bench"):
        if path.name == "_hot.py":
            continue  # a compiled loop is one function: calls between them would cost its speed
        for function in functions(ast.parse(path.read_text())):
            if (lines := body_lines(function)) > FUNCTION_LINES_SOFT:
                over[f"{relative(path)}:{function.name}"] = lines
    check_ratchet(over, FUNCTIONS_OVER_SOFT, FUNCTION_LINES_MAX, "a function")


def test_packages_stay_small() -> None:
    for package in [path.parent for path in SOURCE.rglob("__init__.py")]:
        modules = [path.name for path in package.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= PACKAGE_MODULES_MAX, (
            f"{relative(package)} holds {len(modules)} modules; split it by its nouns: {modules}"
        )


@pytest.mark.parametrize("rule", BANS, ids=lambda rule: rule.pattern.pattern)
def test_banned_spelling(rule: Ban) -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in python_files("src", "tests", "bench")
        if rule.covers(relative(path))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if rule.pattern.search(line) and not is_boundary(line)
    ]
    assert not found, f"use {rule.instead} instead:\n" + "\n".join(found)


def is_boundary(line: str) -> bool:
    return any(mark in line for mark in BOUNDARY_MARKS)


def catches_all(handler: ast.ExceptHandler) -> bool:
    caught = ast.unparse(handler.type) if handler.type else ""
    return bool(re.search(r"\b(Base)?Exception\b", caught))


def test_only_boundaries_catch_everything() -> None:
    """Clean-up that raises again may catch all; the three boundaries say `# boundary:` and why."""
    for path in python_files("src"):
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ExceptHandler) or not catches_all(node):
                continue
            raises_again = isinstance(node.body[-1], ast.Raise)
            assert raises_again or is_boundary(lines[node.lineno - 1]), (
                f"{relative(path)}:{node.lineno}: catch the errors you expect; only the request "
                f"handler, the task supervisor and the CLI catch everything, marked "
                f"{BOUNDARY_MARKS[0]}"
            )


def test_boundaries_that_catch_everything_are_few() -> None:
    marked = [
        relative(path)
        for path in python_files("src")
        for line in path.read_text().splitlines()
        if is_boundary(line)
    ]
    outside = [path for path in marked if not path.startswith((*DOORS, "src/bascule/client/"))]
    assert not outside, f"only the shells may catch everything: {outside}"


def test_hot_modules_import_only_the_stub() -> None:
    for path in SOURCE.rglob("_hot.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                ours = node.module or ""
                if ours.startswith("bascule"):
                    names = [alias.name for alias in node.names]
                    assert (ours, names) == ("bascule", ["_cython_stub"]), (
                        f"{relative(path)} imports {names} from {ours}: a hot module stands alone"
                    )
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                assert names == ["cython"], f"{relative(path)} imports {names}"


def test_hot_modules_hold_functions_only() -> None:
    for path in SOURCE.rglob("_hot.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.ClassDef | ast.AsyncFunctionDef), (
                f"{relative(path)}:{node.lineno}: classes and coroutines stay with the callers"
            )


def test_one_hot_module_a_package() -> None:
    strays = [relative(path) for path in SOURCE.rglob("_hot*.py") if path.name != "_hot.py"]
    strays += [relative(path) for path in ROOT.rglob("src/**/*.pyx")]
    assert not strays, f"one _hot.py beside what it serves, and no second text: {strays}"


def test_modules_say_what_they_are() -> None:
    for path in python_files("src"):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring, f"{relative(path)} has no docstring"


def test_modules_are_nouns() -> None:
    banned = {"util", "utils", "common", "helper", "helpers", "manager", "misc", "types"}
    found = [relative(path) for path in python_files("src") if path.stem in banned]
    assert not found, f"name what it holds: {found}"


def test_private_names_stay_in_their_module() -> None:
    for path in python_files("src"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
                "bascule"
            ):
                continue
            private = [
                alias.name
                for alias in node.names
                if alias.name.startswith("_") and alias.name not in ALLOWED_PRIVATE
            ]
            assert not private, f"{relative(path)}:{node.lineno} imports private {private}"


def test_nothing_names_its_workplace() -> None:
    words = re.compile(r"/work/|\b(co-authored-by|claude|chatgpt|copilot)\b", re.IGNORECASE)
    listed = [
        path
        for folder in ("src", "tests", "bench", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".toml", ".txt", ".json", ".svg"}
    ]
    for path in [*listed, *ROOT.glob("*.md"), ROOT / "Makefile"]:
        if path == Path(__file__).resolve() or not path.exists():
            continue
        match = words.search(path.read_text())
        assert match is None, f"{relative(path)} mentions {match.group() if match else ''}"


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
