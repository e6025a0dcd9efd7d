"""Entry point of the command line: registers the commands and converts errors to exit codes."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bascule.cli import exit_codes
from bascule.cli.help import CommandGroup
from bascule.cli.output import err, print_error
from bascule.cluster_version import NEWEST, OLDEST
from bascule.errors import BasculeError
from bascule.host.twins import loaded_twins, twin_of_all
from bascule.version import __version__

EXIT_CODES = "Exit codes: {}.".format(
    "; ".join(f"{code} {what}" for code, what in exit_codes.EXPLAINED)
)

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of all usage errors, which Typer does not export."""

COMMANDS: Final = {
    "serve": "bascule.cli.serve:serve",
    "stream": "bascule.cli.streams:streams",
    "group": "bascule.cli.groups:groups",
    "table": "bascule.cli.tables:tables",
    "cluster": "bascule.cli.cluster:cluster",
    "node": "bascule.cli.cluster:node",
    "pipeline": "bascule.cli.pipeline:pipeline",
    "publish": "bascule.cli.publishing:publish",
    "read": "bascule.cli.read:read",
    "put": "bascule.cli.payloads:put",
    "get": "bascule.cli.payloads:get",
    "top": "bascule.cli.top:top",
    "inspect": "bascule.cli.inspect:inspect",
    "backup": "bascule.cli.backup:backup",
    "restore": "bascule.cli.backup:restore",
    "scrub": "bascule.cli.streams.scrub:scrub",
    "demo": "bascule.cli.demo.command:demo",
    "dev": "bascule.cli.dev.command:dev",
}
"""Where each command or group of commands is, in the order of the help."""


STDOUT: Final = 1
"""The descriptor of standard output."""


@functools.cache
def command_line(wanted: str | None = None) -> typer.Typer:
    """The command line with one of `COMMANDS`, or with all of them.

    A command imports what it needs: with all of them, each would begin a fifth later.
    """
    app = CommandGroup(
        name="bascule",
        help="Durable streams on NATS subjects, read over the Kafka wire protocol and by PySpark.",
        epilog=EXIT_CODES,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in COMMANDS if wanted is None else [wanted]:
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    versions = f"cluster versions {OLDEST} to {NEWEST}"
    sys.stdout.write(f"bascule {__version__} ({twin_of_all()}); {versions}\n")
    twins = loaded_twins()
    width = max(map(len, twins)) + 2
    for package, twin in twins.items():
        sys.stdout.write(f"  {package:<{width}}{twin}\n")
    raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version, and which twin of each hot module is loaded.",
        ),
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Return its exit code."""
    is_closed = hold_standard_output()
    code, failure = exit_codes.FAILED, None
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
    except OSError as error:
        failure = str(error)
        if error.filename and error.strerror:
            failure = f"{error.filename}: {error.strerror.lower()}"
        if is_closed and error.errno == errno.EBADF:
            failure = "standard output is closed"
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            sys.stdout.close()  # else Python tries again when it ends, and prints a traceback
        if code == exit_codes.OK or failure is not None:
            code = exit_codes.FAILED
            why = "is closed" if is_closed else f"cannot be written: {error.strerror}"
            failure = None if isinstance(error, BrokenPipeError) else f"standard output {why}"
    if failure is not None:
        print_error(failure)
    return code


def hold_standard_output() -> bool:
    """Open something in place of a standard output that is closed; return whether it was.

    Else Python has no `sys.stdout`, and the next file or socket takes its number. What is opened
    cannot be written to, so only a command that prints something fails.
    """
    if sys.stdout is not None:
        return False
    with Path(os.devnull).open("rb", buffering=0) as nothing:
        copy = os.dup(nothing.fileno())  # which may be that of standard output itself
    os.dup2(copy, STDOUT)
    os.close(copy)
    sys.stdout = open(STDOUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    return True


def _run(asked: list[str]) -> int:
    """Run one command, and print its error; return its exit code. Raises: OSError."""
    app = command_line(asked[0] if asked and asked[0] in COMMANDS else None)
    try:
        ended = app(args=asked, prog_name="bascule", standalone_mode=False)
        # The code of `typer.Exit`; Typer's own is 130 after Ctrl-C. Commands return None.
        code = ended if isinstance(ended, int) else exit_codes.OK
        if code == exit_codes.INTERRUPTED:
            err.print("interrupted", style="yellow")
        return code
    except SystemExit as end:
        # Shell completion, and a closed pipe.
        return end.code if isinstance(end.code, int) else exit_codes.OK
    except _UsageError as error:
        return _report_usage(error)
    except typer.Abort:
        print_error("not confirmed: nothing has been changed")
        return exit_codes.FAILED
    except BasculeError as error:
        code, hint = exit_codes.explain(error)
        print_error(str(error), hint)
        return code


def _report_usage(error: Any) -> int:
    """Print a usage error in the style of other errors, with the way to the help."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        err.print(error.message, markup=False, end="")
        return exit_codes.USAGE
    text = error.format_message().removeprefix("Invalid value: ").rstrip(".")
    hint = f"Try '{context.command_path} --help'" if context is not None else ""
    print_error(text[:1].lower() + text[1:], hint)
    return exit_codes.USAGE


if __name__ == "__main__":
    sys.exit(main())
