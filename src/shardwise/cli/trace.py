"""``shardwise trace``: show, verify, replay and compare the traces of tuning runs."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwise.cli.groups import add, new_app, or_help
from shardwise.cli.options import JsonFlag
from shardwise.cli.output import emit_json

app = new_app("Show, verify, replay and compare traces.")

Trace = Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or the run folder that holds it.")]


@app.callback(invoke_without_command=True)
def root(ctx: typer.Context) -> None:
    """Show, verify, replay and compare the traces of tuning runs."""
    or_help(ctx)


def show(trace: Trace, json_: JsonFlag = False) -> None:
    """Tell a run as a story, step by step."""
    from shardwise.traces import read_trace, story

    events = read_trace(trace)
    if json_:
        emit_json([event.model_dump(mode="json") for event in events])
        return
    from shardwise.cli.render import console
    from shardwise.cli.render.trace import told

    console.show(told(story(events)))


def verify(trace: Trace, json_: JsonFlag = False) -> None:
    """Check that a trace is whole and unchanged.

    Exits 1 when it is not.
    """
    from shardwise.traces import verify as check

    found = check(trace)
    if json_:
        document = {"intact": found.intact, "events": found.events}
        emit_json(document if found.intact else {**document, "problem": found.problem})
    else:
        from shardwise.cli.render import console
        from shardwise.cli.render.trace import verified

        console.show(verified(found.intact, found.events, found.problem))
    if not found.intact:
        raise typer.Exit(1)


def replay(trace: Trace, json_: JsonFlag = False) -> None:
    """Run the search again from its trace and compare.

    Needs no network and no key. Exits 1 at a difference.
    """
    from shardwise.agent.replay import replay_run

    outcome = replay_run(trace)
    if json_:
        emit_json(outcome.as_json())
    else:
        from shardwise.cli.render import console
        from shardwise.cli.render.trace import replayed

        console.show(replayed(outcome.equal, outcome.steps, outcome.first_difference))
    if not outcome.equal:
        raise typer.Exit(1)


def diff(trace: Trace, other: Trace, json_: JsonFlag = False) -> None:
    """Compare two traces, clocks and run names aside.

    Exits 1 at a difference.
    """
    from shardwise.traces import diff as compare

    found = compare(trace, other)
    difference = None if found is None else found.words
    if json_:
        emit_json({"equal": found is None, "first_difference": difference})
    else:
        from shardwise.cli.render import console
        from shardwise.cli.render.trace import compared

        console.show(compared(difference))
    if found is not None:
        raise typer.Exit(1)


add(app, show, example="shardwise trace show runs/mixtral")
add(app, verify, example="shardwise trace verify runs/mixtral --json")
add(app, replay, example="shardwise trace replay runs/mixtral")
add(app, diff, example="shardwise trace diff runs/monday runs/tuesday")
