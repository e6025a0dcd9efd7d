"""Rules on the text of the source, each with what to do instead.

A hard limit of size fails. A soft limit is a note: a warning in the summary of the run.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "bascule"
HOT = frozenset(SOURCE.rglob("_hot*.py"))

FILE_LINES_MAX = 600
FILE_LINES_SOFT = 400
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_SOFT = 50
PACKAGE_MODULES_MAX = 12


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
    for package in (
        "record",
        "wire",
        "storage",
        "raft",
        "replication",
        "metadata",
        "announce",
        "groups/classic",
        "groups/consumer",
    )
)
BOUNDARIES = tuple(
    f"src/bascule/{room}/"
    for room in (
        "cli",
        "http",
        "ingest",
        "kafka",
        "keyvalue",
        "listening",
        "node",
        "replica",
        "controller",
        "datastream",
        "heartbeats",
        "host",
        "sim/cluster/world",
    )
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
        where=("tests/",), but=("tests/interop/", "tests/e2e/", "tests/spark/", "tests/tidy/",
            "tests/torture/", "tests/support/ids_published.py", "tests/support/asked_once.py",
            "tests/support/chaos")),
    ban(r"(?<![\w.])time\.sleep\(", "a signal to wait for", where=("tests/", "src/"),
        but=("tests/interop/", "tests/e2e/", "tests/spark/", "tests/tidy/", "tests/torture/",
            "src/bascule/host/real.py", "src/bascule/cli/demo/", "src/bascule/cli/top/",
            "src/bascule/cli/cluster/")),
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

BOUNDARY_MARK = "# boundary:"
ALLOWED_PRIVATE = re.compile(r"_hot(_\w+)?|_cython_stub|__version__")


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


def check_sizes(sizes: dict[str, int], *, soft: int, hard: int) -> None:
    """Fail over the hard limit, warn over the soft one."""
    too_big = {name: size for name, size in sizes.items() if size > hard}
    assert not too_big, f"over the hard limit of {hard} lines; split it by its nouns: {too_big}"
    # A table of test cases is no easier to read in two halves.
    large = {n: s for n, s in sizes.items() if s > soft and not n.startswith("tests/")}
    if large:
        warnings.warn(f"over the soft limit of {soft} lines: {large}", stacklevel=2)


@pytest.mark.filterwarnings("always:over the soft limit:UserWarning")
def test_files_stay_small() -> None:
    sizes = {
        relative(path): len(path.read_text().splitlines())
        for path in python_files("src", "tests", "bench")
    }
    check_sizes(sizes, soft=FILE_LINES_SOFT, hard=FILE_LINES_MAX)


@pytest.mark.filterwarnings("always:over the soft limit:UserWarning")
def test_functions_stay_small() -> None:
    sizes = {}
    for path in python_files("src", "bench"):
        if path in HOT:
            continue  # a compiled loop is one function: calls between them would cost its speed
        for function in functions(ast.parse(path.read_text())):
            sizes[f"{relative(path)}:{function.name}"] = body_lines(function)
    check_sizes(sizes, soft=FUNCTION_LINES_SOFT, hard=FUNCTION_LINES_MAX)


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
    return BOUNDARY_MARK in line


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
                f"{BOUNDARY_MARK}"
            )


def test_boundaries_that_catch_everything_are_few() -> None:
    marked = [
        relative(path)
        for path in python_files("src")
        for line in path.read_text().splitlines()
        if is_boundary(line)
    ]
    outside = [path for path in marked if not path.startswith((*BOUNDARIES, "src/bascule/client/"))]
    assert not outside, f"only the shells may catch everything: {outside}"


def test_hot_modules_import_only_each_other_and_the_stub() -> None:
    for path in sorted(HOT):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                origin = node.module or ""
                ours = origin.removeprefix("cython.cimports.")
                names = [alias.name for alias in node.names]
                stub = (origin, names) == ("bascule", ["_cython_stub"])
                assert stub or not ours.startswith("bascule") or "._hot" in ours, (
                    f"{relative(path)} imports {names} from {origin}: nothing of ours but the "
                    "stub and other hot modules"
                )
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                assert names == ["cython"], f"{relative(path)} imports {names}"


def test_hot_modules_hold_functions_only() -> None:
    for path in sorted(HOT):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.ClassDef | ast.AsyncFunctionDef), (
                f"{relative(path)}:{node.lineno}: classes and coroutines stay with the callers"
            )


def test_compiled_code_is_named_hot() -> None:
    strays = [relative(path) for path in SOURCE.rglob("*.pyx")]
    strays += [relative(p) for p in SOURCE.rglob("*.pxd") if not p.name.startswith("_hot")]
    strays += [relative(p) for p in HOT if not re.fullmatch(r"_hot(_[a-z]+)*", p.stem)]
    assert not strays, f"_hot.py or _hot_<noun>.py beside what it serves, no second text: {strays}"


def test_inline_functions_have_an_interpreted_twin() -> None:
    """`_hot_<noun>.pxd` and `.py` define the same functions; the tests of callers compare them."""
    for inline in SOURCE.rglob("*.pxd"):
        twin = inline.with_suffix(".py")
        compiled = set(re.findall(r"^cdef inline .*?(\w+)\(", inline.read_text(), re.MULTILINE))
        interpreted = {f.name for f in functions(ast.parse(twin.read_text()))}
        assert compiled == interpreted, f"{relative(inline)} and {twin.name} differ"


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
                if alias.name.startswith("_") and not ALLOWED_PRIVATE.fullmatch(alias.name)
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
