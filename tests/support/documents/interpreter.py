"""A Python that keeps its names from block to block, as a program.

Standard input has a JSON line for each block, `{"code", "name", "doctest", "output"}`; standard
output answers each with `{"error"}`. The name `spark`, where a block uses it and nothing has set
it, is a session as the `pyspark` shell makes it, with as few tasks as a small machine wants.
"""

from __future__ import annotations

import ast
import doctest
import json
import linecache
import os
import sys
import traceback
from pathlib import Path
from typing import Any

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def uses_unset_spark(code: str, names: dict[str, Any]) -> bool:
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    return (
        "spark" not in names
        and any(name.id == "spark" for name in found)
        and not any(name.id == "spark" and isinstance(name.ctx, ast.Store) for name in found)
    )


def session() -> Any:
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run_block(code: str, name: str, names: dict[str, Any]) -> None:
    if uses_unset_spark(code, names):
        names["spark"] = session()
    # For the lines of a traceback.
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    exec(compile(code, name, "exec"), names)


def run_doctest(code: str, name: str, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(code, {}, name, name, 0)
    test.globs = names
    reports: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(
        test, out=reports.append, clear_globs=False
    )
    if failed:
        raise AssertionError("".join(reports))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    names: dict[str, Any] = {"__name__": "__main__"}
    for line in sys.stdin:
        request = json.loads(line)
        with Path(request["output"]).open("wb") as output:
            os.dup2(output.fileno(), 1)
        error = ""
        try:
            run = run_doctest if request["doctest"] else run_block
            run(request["code"], request["name"], names)
        except (Exception, SystemExit):
            error = traceback.format_exc()
        sys.stdout.flush()
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
