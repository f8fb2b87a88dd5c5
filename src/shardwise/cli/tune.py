"""``shardwise tune``: the main job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwise.cli.groups import add
from shardwise.cli.options import AllowPrecision, Fix, Given, JsonFlag, recipe_options
from shardwise.cli.output import emit_json

if TYPE_CHECKING:
    from shardwise.agent.request import TuneRequest

_NOT_FIXED = ("model", "cluster", "gbs", "seq_len")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    example = 'shardwise tune "tune Mixtral 8x22B on 32 MI355X" --fix tp=1 --out runs/mixtral'
    add(app, recipe_options(argument=False)(tune), example=example)


def tune(
    given: Given,
    request: Annotated[
        list[str] | None,
        typer.Argument(metavar="REQUEST", help="In words: tune MODEL on N GPU, batch 128, tp 1, fp8 ..."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="RUN_DIR", help="Run folder.", show_default=False)
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="RUN_DIR", help="Go on with an interrupted run.", show_default=False
        ),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            "--llm",
            metavar="WHO",
            help="heuristic (default, no LLM), PROVIDER:MODEL, or replay:TRACE.",
            show_default=False,
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="OpenAI-compatible server.", show_default=False),
    ] = None,
    objective: Annotated[
        str | None, typer.Option("--objective", metavar="WORD", help="What to maximise.", show_default=False)
    ] = None,
    fix: Fix = None,
    allow_precision: AllowPrecision = None,
    budget_calls: Annotated[
        int | None, typer.Option("--budget-calls", metavar="N", help="Most projections.", show_default=False)
    ] = None,
    budget_time: Annotated[
        str | None,
        typer.Option("--budget-time", metavar="TIME", help="Most time: 90s, 30m, 2h.", show_default=False),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin", metavar="X", help="Share of memory that must stay free.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Breaks ties.", show_default=False)
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Search for the fastest recipe: the main job.

    REQUEST says what in plain words; every option wins over the words. Recipe fields given as options
    stay fixed; --recipe FILE is the recipe to start from and to compare with. Exits 1 when nothing that is
    legal fits.
    """
    from shardwise.agent.session import tune as search
    from shardwise.cli.explain import changes, write_launch
    from shardwise.cli.inputs import assignments, duration, merged
    from shardwise.cli.render.progress import tuning
    from shardwise.engine.errors import ConfigError

    words = " ".join(request or []) or None
    fields = merged(given.fields, assignments(fix or []))
    options = {
        "objective": objective,
        "allow_precision": allow_precision or None,
        "budget_calls": budget_calls,
        "budget_time_s": None if budget_time is None else duration(budget_time, field="--budget-time"),
        "margin": margin,
        "seed": seed,
        "llm": llm,
        "base_url": base_url,
    }
    said = [
        name for name, value in {**fields, "recipe": given.source, **options}.items() if value is not None
    ]
    if resume is None or words is not None or "model" in fields:
        asked = _request(words, given, fields, options)
    elif said:
        raise ConfigError(
            f"--resume goes on with the run's own request: leave out {', '.join(said)}", field="resume"
        )
    elif out is not None:
        raise ConfigError(f"--resume goes on in its own run folder: leave out --out {out}", field="out")
    else:
        asked = None
    with tuning(quiet=json_) as listen, _resumable(out or resume, listen) as on_event:
        result = search(asked, out=out, resume=resume, on_event=on_event, text=words)
    document = result.as_json()
    best = document["best"]
    launch = None if best is None else write_launch(best["recipe"], Path(document["run"]))
    if json_:
        emit_json(document)
    else:
        from shardwise.cli.render.console import show
        from shardwise.cli.render.tune import tune as render

        worth = [] if best is None else changes(best["recipe"], document["baseline"]["recipe"])
        show(render(document, worth, launch))
    if best is None:
        raise typer.Exit(1)


def _request(
    words: str | None, given: Given, fields: Mapping[str, Any], options: Mapping[str, Any]
) -> TuneRequest:
    """The request; words that mean nothing are named on stderr, not ignored in silence."""
    from shardwise.agent.request import TuneRequest, parse_request
    from shardwise.cli.inputs import source_fields
    from shardwise.cli.render.console import note
    from shardwise.engine.catalog import models
    from shardwise.engine.errors import ConfigError, unknown_name

    start = source_fields(given)
    parsed = parse_request(words or "")
    asked = parsed.merged(
        model=fields.get("model") or start.get("model"),
        cluster=fields.get("cluster") or start.get("cluster"),
        gbs=fields.get("gbs"),
        seq_len=fields.get("seq_len"),
        fixed={name: value for name, value in fields.items() if name not in _NOT_FIXED},
        recipe={name: value for name, value in start.items() if name not in ("model", "cluster")} or None,
        **options,
    )
    rest = " ".join(parsed.unparsed)
    if rest and "model" not in asked:
        raise unknown_name("model", rest, models())
    if rest and "cluster" not in asked:
        raise ConfigError(
            f"cluster is missing: say which, as in 'on 32 MI355X' (not understood: {rest})", field="cluster"
        )
    request = TuneRequest.build(asked)
    if rest:
        note(f"not understood, left out: {rest}")
    return request


@contextmanager
def _resumable(folder: Path | None, listen: Callable[[Any], None]) -> Iterator[Callable[[Any], None]]:
    """Listens along for the run's name, so that an interrupted run is told how to go on."""
    from shardwise.agent.runfolder import DEFAULT_ROOT
    from shardwise.cli.render.console import note

    seen: list[Path] = [] if folder is None else [folder]

    def on_event(event: Any) -> None:
        if event.kind == "request" and not seen:
            seen.append(DEFAULT_ROOT / event.run_id)
        listen(event)

    try:
        yield on_event
    except KeyboardInterrupt:
        if seen:
            note(f"nothing is lost; go on with: shardwise tune --resume {seen[0]}")
        raise
