"""How every typer app here is set up, so that groups look and fail alike."""

from __future__ import annotations

import typer


def new_app(help_: str, *, epilog: str | None = None) -> typer.Typer:
    """An app with plain errors; exceptions are the business of ``shardwise.cli.main``."""
    return typer.Typer(
        help=help_,
        epilog=epilog,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def or_help(ctx: typer.Context) -> None:
    """Show the help of a group that was called without a command."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit
