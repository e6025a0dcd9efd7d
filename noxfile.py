"""Tiers 1 and 2 on every Python that is supported: `nox`, or `nox -s tests-3.12`.

Each session installs requirements.lock, which holds for all of them, and compiles the hot modules.
A Python that is not on this machine is skipped; `--error-on-missing-interpreters` fails instead.
"""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "virtualenv"
PYTHONS = ["3.11", "3.12", "3.13"]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Tiers 1 and 2, both twins."""
    session.install("--require-hashes", "-r", "requirements.lock")
    session.install("--no-build-isolation", "--no-deps", "-e", ".", env={"BASCULE_PURE": "1"})
    session.run("python", "setup.py", "-q", "build_ext", "--inplace")
    arguments = session.posargs or ["-m", "not tier3", "--ignore=tests/spark"]
    session.run("pytest", "-q", "-n", "2", "--dist", "worksteal", *arguments)
