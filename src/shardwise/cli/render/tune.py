"""The result of a search: the recipe, what it gains and why, what was turned down, how to launch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.cli.render.bars import time_bars
from shardwise.cli.render.memory import VERDICT_STYLE
from shardwise.cli.render.projection import throughput
from shardwise.cli.render.recipe import place, settings
from shardwise.cli.render.units import NONE, count, gib, percent, seconds, signed_percent, word

_HIDDEN_BY_OVERLAP = ("tp_comm", "ep_comm", "cp_comm", "pp_comm", "dp_comm_exposed")
_STAGES = 8


def tune(document: Mapping[str, Any], why: Mapping[str, Any]) -> Group:
    """Everything that a person needs to judge and to launch the winner.

    ``document`` is the JSON of ``shardwise tune``; ``why`` holds ``choices``, ``rejections``,
    ``framework`` and ``launch`` (see ``shardwise.cli.explain``).
    """
    best, baseline = document["best"], document["baseline"]
    return Group(
        _headline(document),
        Text(),
        Text.assemble(("Recipe", "bold"), "\n  ", settings(best["recipe"])),
        Text(),
        _comparison(best["projection"], baseline["projection"]),
        *_stages(best["projection"]["memory"], baseline["projection"]["memory"]),
        *_why(why["choices"]),
        Text("Where a step's time goes", style="bold"),
        time_bars(best["projection"]["time_breakdown_s"]),
        Text("  " + _bottleneck(best["projection"])),
        Text(),
        _rejected(document, why["rejections"]),
        _ending(document),
        Text(),
        Text.assemble((f"Launch ({why['framework']})", "bold"), "\n", _indented(str(why["launch"]))),
        Text(),
        _files(document, str(why["framework"])),
    )


def _headline(document: Mapping[str, Any]) -> Text:
    best = document["best"]
    gain = document["gain_pct"]
    text = Text.assemble((place(best["recipe"]), "bold"), "\n")
    text.append_text(throughput(best["projection"]))
    if gain is None:
        return text
    style = "bold green" if gain > 0 else "bold"
    return text.append("\n").append(f"{signed_percent(gain)} over the baseline", style=style)


def _comparison(best: Mapping[str, Any], baseline: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    table.add_column("best", justify="right", no_wrap=True, style="bold")
    table.add_column("baseline", justify="right", no_wrap=True)
    both = (best, baseline)
    table.add_row("tokens/s/GPU", *(count(p["tokens_per_s_per_gpu"]) for p in both))
    table.add_row("step time", *(seconds(p["step_time_s"]) for p in both))
    table.add_row("model TFLOP/s/GPU", *(count(p["tflops_per_gpu"]) for p in both))
    table.add_row("MFU", *(percent(p["mfu"]) for p in both))
    table.add_row("bubble", *(percent(p["bubble_fraction"]) for p in both))
    table.add_row("peak memory", *(_peak(p.get("memory")) for p in both))
    table.add_row("verdict", *(_verdict(p.get("memory")) for p in both))
    return table


def _stages(best: Mapping[str, Any] | None, baseline: Mapping[str, Any] | None) -> list[RenderableType]:
    if not best:
        return []
    own = [stage["total"] for stage in best["stages"]]
    other = [stage["total"] for stage in baseline["stages"]] if baseline else []
    rows = max(len(own), len(other))
    table = Table(box=box.SIMPLE_HEAD, title="Memory per pipeline stage, GiB", title_justify="left")
    table.title_style = "bold"
    table.add_column("stage", justify="right")
    for number in _shown(rows):
        table.add_column(str(number) if number is not None else "...", justify="right", no_wrap=True)
    for name, totals in (("best", own), ("baseline", other)):
        cells = ["" if n is None else _total(totals, n) for n in _shown(rows)]
        table.add_row(name, *cells, style="bold" if name == "best" else "")
    return [table, Text(f"  capacity {gib(best['capacity_bytes'])}", style="dim"), Text()]


def _shown(rows: int) -> list[int | None]:
    if rows <= _STAGES:
        return list(range(rows))
    half = _STAGES // 2
    return [*range(half), None, *range(rows - half, rows)]


def _total(totals: Sequence[float], number: int) -> str:
    return gib(totals[number], unit=False) if number < len(totals) else NONE


def _why(choices: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    title = Text("Why: what each choice is worth, taken back alone", style="bold")
    if not choices:
        return [Text("Why: nothing that was tried beats the baseline", style="bold"), Text()]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("choice", overflow="fold")
    table.add_column("baseline", overflow="fold")
    table.add_column("best", overflow="fold", style="bold")
    table.add_column("best without it", justify="right")
    for choice in choices:
        effect = choice.get("impossible") or signed_percent(choice.get("without_pct"))
        table.add_row(choice["field"], _values(choice["baseline"]), _values(choice["best"]), str(effect))
    return [title, table]


def _values(values: Mapping[str, Any]) -> str:
    first = next(iter(values))
    rest = [
        f"{name.removeprefix(first + '_')}={word(value)}" for name, value in values.items() if name != first
    ]
    return " ".join([word(values[first]), *rest])


def _bottleneck(projection: Mapping[str, Any]) -> str:
    times = projection["time_breakdown_s"]
    whole = sum(times.values())
    largest = max(times, key=lambda name: times[name])
    exposed = sum(times[name] for name in _HIDDEN_BY_OVERLAP)
    return (
        f"bottleneck: {largest}, {percent(times[largest] / whole)} of the step; "
        f"exposed communication {percent(exposed / whole)}, bubble {percent(times['bubble'] / whole)}"
    )


def _rejected(document: Mapping[str, Any], reasons: Sequence[tuple[str, int]]) -> Text:
    text = Text.assemble(
        ("Rejected before scoring", "bold"),
        f"  {document['rejected_by_memory']} by memory, {document['rejected_illegal']} illegal",
    )
    if reasons:
        text.append("\n  " + ", ".join(f"{reason} ({number})" for reason, number in reasons))
    return text


def _ending(document: Mapping[str, Any]) -> Text:
    return Text.assemble(
        ("Stopped because", "bold"),
        f"  {document['stopped_because']}\n",
        f"  {document['oracle_calls']} projections in {seconds(document['wall_s'])}, "
        f"proposals by {document['llm']}",
    )


def _files(document: Mapping[str, Any], framework: str) -> Text:
    run = document["run"]
    return Text.assemble(
        ("Run folder", "bold"),
        f"  {run}\n  trace  {document['trace']}\n  read it with: shardwise trace show {run}",
        f"\n  configuration: shardwise export --to {framework} {run}/best.yaml",
    )


def _peak(memory: Mapping[str, Any] | None) -> str:
    return gib(memory["peak_bytes"]) if memory else NONE


def _verdict(memory: Mapping[str, Any] | None) -> Text:
    verdict = str(memory["verdict"]) if memory else NONE
    return Text(verdict, style=VERDICT_STYLE.get(verdict, ""))


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.strip().splitlines())
