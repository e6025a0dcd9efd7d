"""Build the compiled twins: every `_hot*.py` becomes an extension beside its source.

`BASCULE_PURE=1` leaves them out on purpose; any other failure to compile fails the build.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup


def hot_extensions() -> list[Extension]:
    if os.environ.get("BASCULE_PURE") == "1":
        return []
    from Cython.Build import cythonize

    root = Path(__file__).parent
    sources = sorted(
        path.relative_to(root)
        for path in (root / "src").glob("bascule/**/_hot*.py")
        # A `.pxd` of the same name holds inline functions; the `.py` is their interpreted twin.
        if not path.with_suffix(".pxd").exists()
    )
    extensions = [
        Extension(
            ".".join(source.with_suffix("").parts[1:]),
            [str(source)],
            extra_compile_args=["-O3", "-DCYTHON_INLINE=inline __attribute__((always_inline))"],
        )
        for source in sources
    ]
    return list(
        cythonize(
            extensions,
            build_dir="build/cython",
            compiler_directives={
                "language_level": "3",
                "boundscheck": True,
                "wraparound": False,
                "cdivision": True,
                "initializedcheck": False,
                "freethreading_compatible": True,
                # Bounds are checked on purpose: the bytes come from strangers.
                "show_performance_hints": False,
            },
        )
    )


setup(ext_modules=hot_extensions())
