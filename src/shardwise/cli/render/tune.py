"""The result of a search: the recipe, what it gains and why, what was turned down, how to launch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardwise.cli.render.bars import time_bars
from shardwise.cli.render.console import whole
from shardwise.cli.render.memory import VERDICT_STYLE
from shardwise.cli.render.projection import throughput
from shardwise.cli.render.recipe import place, settings
from shardwise.cli.render.units import NONE, count, gib, percent, seconds, signed_percent, word

_COMMUNICATION = ("tp_comm", "ep_comm", "cp_comm", "pp_comm", "dp_comm_exposed")
_STAGES = 8


def tune(
    document: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], launch: Mapping[str, str] | None
) -> Group:
    """Everything that a person needs to judge and to launch the winner.

    ``document`` is the JSON of ``shardwise tune``; ``changes`` and ``launch`` come from
    ``shardwise.cli.explain`` (``launch`` is None when nothing fits).
    """
    best, baseline = document["best"], document["baseline"]
    if best is None or launch is None:
        return Group(
            _nothing(document), Text(), _rejected(document), _ending(document), Text(), _files(document)
        )
    return Group(
        _headline(document),
        Text(),
        Text("Recipe", style="bold"),
        Padding(Text(settings(best["recipe"])), (0, 0, 0, 2)),
        _comparison(best["projection"], baseline["projection"]),
        *_stages(best["projection"]["memory"], baseline["projection"]["memory"]),
        *_why(changes),
        Text("Where a step's time goes", style="bold"),
        time_bars(best["projection"]["time_breakdown_s"]),
        Text("  " + _bottleneck(best["projection"])),
        Text(),
        _rejected(document),
        _ending(document),
        Text(),
        Text(f"Launch ({launch['framework']})", style="bold"),
        Padding(Text(launch["where"], style="dim"), (0, 0, 0, 2)),
        whole(_indented(launch["launch"])),
        Text(),
        _files(document, launch),
    )


def _nothing(document: Mapping[str, Any]) -> Text:
    baseline = document["baseline"]
    text = Text()
    if baseline:
        text.append(f"{place(baseline['recipe'])}\n", style="bold")
    text.append("Nothing that is legal fits", style="bold red")
    text.append(": more GPUs, a smaller batch or sequence, or fewer fixed fields.")
    memory = baseline["projection"].get("memory") if baseline else None
    if memory:
        needs = f"{gib(memory['peak_bytes'], unit=False)} of {gib(memory['capacity_bytes'])}"
        text.append(
            f"\n{document.get('baseline_source', 'baseline')}: {needs}\n  {settings(baseline['recipe'])}"
        )
    return text


def _headline(document: Mapping[str, Any]) -> Text:
    best, gain = document["best"], document["gain_pct"]
    text = Text.assemble((place(best["recipe"]), "bold"), "\n")
    text.append_text(throughput(best["projection"]))
    if gain is not None:
        style = "bold green" if gain > 0 else "bold"
        fits = "" if document.get("baseline_fits", True) else ", which does not fit"
        text.append(f"\n{signed_percent(gain)} over the baseline{fits}", style=style)
        text.append(f"\nbaseline: {document.get('baseline_source', 'given')}", style="dim")
    if document.get("fallback"):
        text.append(f"\nthe heuristic went on without the LLM: {document['fallback']}", style="yellow")
    return text


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
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("stage", justify="right")
    for number in _shown(rows):
        table.add_column(str(number) if number is not None else "...", justify="right", no_wrap=True)
    for name, totals in (("best", own), ("baseline", other)):
        cells = ["" if n is None else _total(totals, n) for n in _shown(rows)]
        table.add_row(name, *cells, style="bold" if name == "best" else "")
    title = Text("Memory per pipeline stage, GiB", style="bold")
    return [title, table, Text(f"  capacity {gib(best['capacity_bytes'])}", style="dim"), Text()]


def _shown(rows: int) -> list[int | None]:
    if rows <= _STAGES:
        return list(range(rows))
    half = _STAGES // 2
    return [*range(half), None, *range(rows - half, rows)]


def _total(totals: Sequence[float], number: int) -> str:
    return gib(totals[number], unit=False) if number < len(totals) else NONE


def _why(changes: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    if not changes:
        return [Text("Why: nothing that was tried beats the baseline", style="bold"), Text()]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("change", overflow="fold")
    table.add_column("adds", justify="right", no_wrap=True)
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column("best without it", justify="right", no_wrap=True)
    for change in changes:
        step, without = change["step"], change["without"]
        lines = [f"{name} {word(old)} -> {word(new)}" for name, (old, new) in change["fields"].items()]
        problem = str(without.get("problem", "")).replace(": ", ":\n")
        taken_back = ", ".join(_present(signed_percent(without.get("gain_pct")), problem))
        adds = "illegal" if "peak_bytes" not in step else signed_percent(step.get("gain_pct"))
        table.add_row("\n".join(lines), adds, gib(step.get("peak_bytes"), unit=False), taken_back)
    return [Text("Why: from the baseline to the best", style="bold"), table]


def _present(*parts: str | None) -> list[str]:
    return [part for part in parts if part and part != NONE]


def _bottleneck(projection: Mapping[str, Any]) -> str:
    times = projection["time_breakdown_s"]
    whole = sum(times.values())
    largest = max(times, key=lambda name: times[name])
    exposed = sum(times[name] for name in _COMMUNICATION)
    return (
        f"bottleneck: {largest}, {percent(times[largest] / whole)} of the step; "
        f"exposed communication {percent(exposed / whole)}, bubble {percent(times['bubble'] / whole)}"
    )


def _rejected(document: Mapping[str, Any]) -> Group:
    text = Text.assemble(
        ("Rejected before scoring", "bold"),
        f"  {document['rejected_by_memory']} by memory, {document['rejected_illegal']} illegal",
    )
    reasons = sorted((document.get("rejections") or {}).items(), key=lambda item: (-item[1], item[0]))
    told = ", ".join(f"{reason} {number}" for reason, number in reasons if reason != "memory")
    return Group(text, *([Padding(Text(told), (0, 0, 0, 2))] if told else []))


def _ending(document: Mapping[str, Any]) -> Text:
    calls = "projection" if document["oracle_calls"] == 1 else "projections"
    proposers = document["llm"] + (", then heuristic" if document.get("fallback") else "")
    return Text.assemble(
        ("Stopped because", "bold"),
        f"  {document['stopped_because']}\n",
        f"  {document['oracle_calls']} {calls} in {seconds(document['wall_s'])}, proposals by {proposers}",
    )


def _files(document: Mapping[str, Any], launch: Mapping[str, str] | None = None) -> Group:
    run = document["run"]
    lines = {} if launch is None else {"recipe": f"{run}/best.yaml", "configuration": launch["configuration"]}
    lines |= {"trace": document["trace"], "its story": f"shardwise trace show {run}"}
    return Group(
        Text("Files", style="bold"), *(whole(f"  {name:<15}{value}") for name, value in lines.items())
    )


def _peak(memory: Mapping[str, Any] | None) -> str:
    return gib(memory["peak_bytes"]) if memory else NONE


def _verdict(memory: Mapping[str, Any] | None) -> Text:
    verdict = str(memory["verdict"]) if memory else NONE
    return Text(verdict, style=VERDICT_STYLE.get(verdict, ""))


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.strip().splitlines())
