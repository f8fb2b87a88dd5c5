"""The ``shardwise`` command: the app, and the one place where an exception becomes an exit code.

Exit codes: 0 success; 1 a negative verdict (does not fit, illegal, replay differs); 2 bad input;
70 an internal error; 130 interrupted; 141 the reader of our output went away.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from shardwise.cli import calibrate, catalog, export, project, sweep, trace, tune, validate
from shardwise.cli.groups import new_app, or_help

EXIT_BAD_INPUT = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# typer >= 0.26 carries its own copy of click, older ones use the installed one; the base class of
# usage errors is reached through typer's public name so that both are caught.
_CLICK_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

app = new_app(
    "Finds the fastest way to train a large model on a given GPU cluster.",
    epilog='Start with: shardwise tune "tune Mixtral 8x22B on 32 MI355X"',
)


def _version(asked: bool) -> None:
    if asked:
        from shardwise import __version__

        typer.echo(f"shardwise {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Finds the fastest way to train a large model on a given GPU cluster."""
    or_help(ctx)


tune.register(app)
project.register(app)
sweep.register(app)
validate.register(app)
calibrate.register(app)
export.register(app)
app.add_typer(trace.app, name="trace")
app.add_typer(catalog.app, name="catalog")


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with the command's code."""
    sys.exit(run(sys.argv[1:] if args is None else args))


def run(args: Sequence[str]) -> int:
    """Run one command; every error becomes one line on stderr and an exit code."""
    if sys.stdout is None:  # closed by the caller (``>&-``)
        return _say("stdout is closed: there is nowhere to write the answer", EXIT_BAD_INPUT)
    try:
        code = _invoke(list(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is left in the buffer has no reader; without this the interpreter would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return _say("interrupted", EXIT_INTERRUPTED)
    except typer.Abort:
        return _say("interrupted", EXIT_INTERRUPTED)
    except _CLICK_ERROR as err:
        return _say(_usage(err), EXIT_BAD_INPUT)
    except Exception as err:
        if isinstance(err, _shardwise_error()):
            return _say(str(err), EXIT_BAD_INPUT)
        if os.environ.get("SHARDWISE_DEBUG"):
            traceback.print_exc()
            return EXIT_INTERNAL
        if isinstance(err, OSError) and err.strerror:
            place = f" ({err.filename})" if err.filename else ""
            return _say(f"the system refused to read or write{place}: {err.strerror}", EXIT_BAD_INPUT)
        what = f"internal error: {type(err).__name__}: {err} (run with SHARDWISE_DEBUG=1 for the traceback)"
        return _say(what, EXIT_INTERNAL)


def _invoke(args: list[str]) -> int:
    command = get_command(app)
    try:
        with command.make_context("shardwise", args) as context:
            command.invoke(context)
    except typer.Exit as leave:
        return leave.exit_code
    return 0


def _shardwise_error() -> type[Exception]:
    from shardwise.engine.errors import ShardwiseError

    return ShardwiseError


def _usage(err: Exception) -> str:
    """A usage error in one line, with where to read on."""
    message = getattr(err, "format_message", err.__str__)()
    context = getattr(err, "ctx", None)
    where = getattr(context, "command_path", "shardwise")
    return f"{message.rstrip('.')} (see {where} --help)"


def _say(message: str, code: int) -> int:
    line = " ".join(message.split())
    try:
        sys.stderr.write(f"shardwise: {line}\n")
        sys.stderr.flush()
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    return code
