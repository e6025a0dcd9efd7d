"""Entry point of the command line: registers the commands and converts errors to exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bascule import __version__
from bascule.cli import exit_codes
from bascule.cli.demo.command import demo
from bascule.cli.inspect import inspect
from bascule.cli.offsets import offsets
from bascule.cli.output import err
from bascule.cli.pipeline import pipeline
from bascule.cli.publish import publish
from bascule.cli.read import read
from bascule.cli.serve import serve
from bascule.cli.streams import streams
from bascule.cli.top import top
from bascule.errors import BasculeError
from bascule.host.twins import loaded_twins, twin_of_all

EXIT_CODES = "Exit codes: {}.".format(
    "; ".join(f"{code} {what}" for code, what in exit_codes.EXPLAINED)
)

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
app.add_typer(offsets, name="offsets")
app.add_typer(pipeline, name="pipeline")
app.command()(publish)
app.command()(read)
app.command()(top)
app.command()(inspect)
app.command()(demo)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    sys.stdout.write(f"bascule {__version__} ({twin_of_all()})\n")
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
        app(args=arguments, prog_name="bascule")
        return exit_codes.OK
    except SystemExit as end:
        # Typer exits with 0, with 2 after a usage error, with the code of a command, or with 130
        # after Ctrl-C.
        if end.code == exit_codes.INTERRUPTED:
            err.print("interrupted", style="yellow")
        return end.code if isinstance(end.code, int) else exit_codes.OK
    except BasculeError as error:
        code, hint = exit_codes.explain(error)
        err.print(f"[red]error:[/red] {_plain(str(error))}")
        if hint:
            err.print(f"[dim]{_plain(hint)}[/dim]")
        return code
    except OSError as error:
        err.print(f"[red]error:[/red] {_plain(str(error))}")
        return exit_codes.FAILED


def _plain(text: str) -> str:
    """Escape rich's markup."""
    return text.replace("[", r"\[")


if __name__ == "__main__":
    sys.exit(main())
