"""Build the compiled twins: every `_hot*.py` becomes an extension beside its source.

A module that is compiled already, in place and newer than its sources, is not compiled again, by
whichever command asks: `build_ext --inplace`, `pip install -e .`, `pip install .`. Two modules
compile at a time (`build_ext -j N` for more); standard error shows a line for each, and one every
10 s.

`BASCULE_PURE=1` leaves them out on purpose; any other failure to compile fails the build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

JOBS = 2
SECONDS_BETWEEN_LINES = 10
TRANSLATED = Path("build", "cython")
DIRECTIVES = {
    # Bounds are checked on purpose: the bytes come from strangers.
    "boundscheck": True,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "freethreading_compatible": True,
    "show_performance_hints": False,
}


def hot_extensions() -> list[Extension]:
    if os.environ.get("BASCULE_PURE") == "1":
        return []
    root = Path(__file__).parent
    shared = sorted(path.relative_to(root) for path in (root / "src").glob("bascule/**/_hot*.pxd"))
    sources = sorted(
        path.relative_to(root)
        for path in (root / "src").glob("bascule/**/_hot*.py")
        # A `.pxd` of the same name holds inline functions; the `.py` is their interpreted twin.
        if not path.with_suffix(".pxd").exists()
    )
    return [
        Extension(
            ".".join(source.with_suffix("").parts[1:]),
            [str(source)],
            depends=["setup.py", *map(str, shared)],
            extra_compile_args=[
                "-O3",
                "-g0",  # a quarter of the time and most of the size were debugging symbols
                "-DCYTHON_INLINE=inline __attribute__((always_inline))",
            ],
        )
        for source in sources
    ]


class BuildHotModules(build_ext):
    """Translates and compiles the modules that changed, and says how far it is."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or JOBS

    def build_extensions(self) -> None:
        every = self.extensions
        self.extensions = [ext for ext in every if self.force or not self.reuse(ext)]
        if self.extensions:
            self.progress = Progress(len(self.extensions), int(self.parallel))
            with self.progress:
                super().build_extensions()
        self.extensions = every

    def reuse(self, ext: Extension) -> bool:
        """Take the module that is compiled in place, unless one of its sources is newer."""
        built = Path(self.get_ext_fullpath(ext.name))
        in_place = Path("src", self.get_ext_filename(self.get_ext_fullname(ext.name)))
        sources = [Path(name) for name in (*ext.sources, *ext.depends)]
        if not in_place.exists() or in_place.stat().st_mtime < max(
            source.stat().st_mtime for source in sources
        ):
            return False
        built.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(in_place, built)
        return True

    def build_extension(self, ext: Extension) -> None:
        with self.progress.module(ext.name):
            (source,) = ext.sources
            translated = TRANSLATED / Path(source).with_suffix(".c")
            translated.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "cython", "-3", "--module-name", ext.name]
            for name, value in DIRECTIVES.items():
                command += ["-X", f"{name}={value}"]
            # A process for each: the translator keeps its state in globals.
            subprocess.run([*command, source, "-o", str(translated)], check=True)
            ext.sources = [str(translated)]
            try:
                super().build_extension(ext)
            finally:
                ext.sources = [source]


class Progress:
    """Lines on standard error: each module that is compiled, and every 10 s what is under way."""

    def __init__(self, total: int, jobs: int) -> None:
        self._total, self._done = total, 0
        self._started = self._printed = time.monotonic()
        self._under_way: list[str] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._report, daemon=True)
        self._print(f"compiling {total} hot modules, {min(jobs, total)} at a time")

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """One module, from the start of its translation to its end."""
        with self._lock:
            self._under_way.append(name)
        what = "failed"
        try:
            yield
            what = "compiled"
        finally:
            with self._lock:
                self._under_way.remove(name)
                self._done += what == "compiled"
                self._print(f"  {self._done} of {self._total}  {what} {name}")

    def _report(self) -> None:
        while not self._ended.wait(1):
            with self._lock:
                if time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES - 1:
                    self._print(
                        f"  {self._done} of {self._total}  {', '.join(self._under_way)} ..."
                    )

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        sys.stderr.write(f"{text} ({self._printed - self._started:.0f} s)\n")
        sys.stderr.flush()

    def __enter__(self) -> None:
        self._watch.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._watch.join()


setup(ext_modules=hot_extensions(), cmdclass={"build_ext": BuildHotModules})
