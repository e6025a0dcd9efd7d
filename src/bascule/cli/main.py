"""Entry point of the command line: registers the commands and converts errors to exit codes."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from bascule.cli import exit_codes
from bascule.cli.backup import backup, restore
from bascule.cli.cluster import cluster, node
from bascule.cli.demo.command import demo
from bascule.cli.dev.command import dev
from bascule.cli.groups import groups
from bascule.cli.inspect import inspect
from bascule.cli.output import err, print_error
from bascule.cli.payloads import get, put
from bascule.cli.pipeline import pipeline
from bascule.cli.publish import publish
from bascule.cli.read import read
from bascule.cli.serve import serve
from bascule.cli.streams import streams
from bascule.cli.streams.scrub import scrub
from bascule.cli.tables import tables
from bascule.cli.top import top
from bascule.cluster_version import NEWEST, OLDEST
from bascule.errors import BasculeError
from bascule.host.twins import loaded_twins, twin_of_all
from bascule.version import __version__

EXIT_CODES = "Exit codes: {}.".format(
    "; ".join(f"{code} {what}" for code, what in exit_codes.EXPLAINED)
)

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of all usage errors, which Typer does not export."""

app = typer.Typer(
    name="bascule",
    help="Durable streams on NATS subjects, read over the Kafka wire protocol and by PySpark.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.add_typer(streams, name="stream")
app.add_typer(groups, name="group")
app.add_typer(tables, name="table")
app.add_typer(cluster, name="cluster")
app.add_typer(node, name="node")
app.add_typer(pipeline, name="pipeline")
app.command()(publish)
app.command()(read)
app.command()(put)
app.command()(get)
app.command()(top)
app.command()(inspect)
app.command()(backup)
app.command()(restore)
app.command()(scrub)
app.command()(demo)
app.command()(dev)


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


@app.callback()
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
    try:
        ended = app(args=arguments, prog_name="bascule", standalone_mode=False)
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
    except OSError as error:
        print_error(str(error))
        return exit_codes.FAILED


def _report_usage(error: Any) -> int:
    """Print a usage error in the style of other errors, with the way to the help."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        # Typer has printed the help when it made the error.
        return exit_codes.USAGE
    text = error.format_message().removeprefix("Invalid value: ").rstrip(".")
    hint = f"Try '{context.command_path} --help'" if context is not None else ""
    print_error(text[:1].lower() + text[1:], hint)
    return exit_codes.USAGE


if __name__ == "__main__":
    sys.exit(main())
