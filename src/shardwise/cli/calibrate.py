"""``shardwise calibrate``: the engine's physical parameters fitted to measured cases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwise.cli.groups import add
from shardwise.cli.options import JsonFlag
from shardwise.cli.output import emit_json


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    add(
        app,
        calibrate,
        example="shardwise calibrate cases/nvidia.jsonl cases/amd.jsonl --out calibration.yaml",
    )


def calibrate(
    files: Annotated[list[str], typer.Argument(metavar="CASES...", help="JSONL files of measured cases.")],
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where to write the calibration.")
    ] = "calibration.yaml",
    iterations: Annotated[
        int, typer.Option("--iterations", metavar="N", min=1, help="Gauss-Newton steps.")
    ] = 5,
    json_: JsonFlag = False,
) -> None:
    """Fit the engine's physical parameters to measured cases.

    It starts from what is published of kernels and links and takes minutes. What it was fitted on, and which
    parameters only echo their prior, stand in the file.
    """
    import yaml

    from shardwise.cli.render.progress import stepper
    from shardwise.engine import calibration, crossvalidation
    from shardwise.engine.efficiency import priors
    from shardwise.engine.files import write_text
    from shardwise.engine.fitting import Fitter

    paths = [Path(name) for name in files]
    observations = calibration.read_observations(paths)
    with stepper("fitting", quiet=json_) as step:
        fitted = Fitter(observations, priors()).fit(iterations, step)
    moved = calibration.moved(fitted)
    document = calibration.as_document(fitted, crossvalidation.all_errors(fitted), moved, paths)
    write_text(Path(out), yaml.safe_dump(document, sort_keys=False))
    if json_:
        emit_json(
            {
                "calibration": out,
                "fitted_on": document["fitted_on"],
                "parameters": moved,
                "cross_validation": document["cross_validation"],
            }
        )
        return
    from shardwise.cli.render.calibration import calibration as render
    from shardwise.cli.render.console import show

    show(render(document, moved, out))
