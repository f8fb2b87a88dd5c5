"""How every typer app and command here is set up, so that all look and fail alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

MAX_HELP_WIDTH = 100


class SectionedCommand(TyperCommand):
    """A command whose plain help lists options under the headings that they name.

    typer keeps headings for its boxed help, which cuts long option names off; this is the plain help
    with headings.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, one section per heading, in the order of declaration."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            default = "Arguments" if parameter.param_type_name == "argument" else "Options"
            heading = getattr(parameter, "rich_help_panel", None) or default
            sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def new_app(help_: str, *, epilog: str | None = None) -> typer.Typer:
    """An app with plain help and plain errors; exceptions are the business of ``shardwise.cli.main``."""
    return typer.Typer(
        help=help_,
        epilog=epilog,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_HELP_WIDTH},
    )


def add(app: typer.Typer, command: Callable[..., Any], *, example: str, name: str | None = None) -> None:
    """Add ``command`` to ``app`` with an example at the end of its help."""
    settings = {"max_content_width": MAX_HELP_WIDTH}
    app.command(name, cls=SectionedCommand, epilog=f"\b\nExample:\n  {example}", context_settings=settings)(
        command
    )


def or_help(ctx: typer.Context) -> None:
    """Show the help of a group that was called without a command."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit
