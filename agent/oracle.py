"""The scoring oracle: the projection engine behind an append-only file of what it already said.

A score is keyed by the recipe's hash and the engine's version, so asking twice gives the first
answer. Each new score is on disk (flushed and synced) before it is returned: a killed run loses no
trial, and its resumption scores none twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from shardwise.agent.request import TuneRequest
from shardwise.agent.trial import Trial, fields_of
from shardwise.engine.errors import ConfigError
from shardwise.engine.memory import usable_bytes
from shardwise.engine.recipe import Recipe
from shardwise.engine.recipe_io import recipe_key
from shardwise.engine.results import Projection

Projector = Callable[[Recipe], Projection]


class Oracle:
    """Scores recipes of one request."""

    def __init__(
        self,
        request: TuneRequest,
        project: Projector,
        *,
        engine_version: str,
        path: Path | None = None,
    ) -> None:
        """``path``: the trials file, created when missing; None keeps scores in memory only."""
        self._request = request
        self._project = project
        self._version = engine_version
        self._path = path
        self._known: dict[str, Trial] = {}
        self.calls = 0
        """Projections really computed by this object (known recipes are free)."""
        if path is not None and os.path.lexists(path):
            self._load(path)

    def known(self, key: str) -> Trial | None:
        """The trial of this recipe key, if it was scored."""
        return self._known.get(key)

    def get(self, key: str) -> Trial:
        """The trial of a key that was scored; ``KeyError`` otherwise."""
        return self._known[key]

    def score(self, recipe: Recipe) -> Trial:
        """The recipe's trial: the known one, or a new one that is on disk when this returns."""
        key = recipe_key(recipe)
        known = self._known.get(key)
        if known is not None:
            return known
        projection = self._project(recipe)
        self.calls += 1
        memory = projection.memory
        trial = Trial(
            key=key,
            fields=fields_of(recipe),
            projection=projection.as_json(),
            fits=memory is not None
            and memory.peak_bytes <= usable_bytes(memory.capacity_bytes, self._request.margin),
        )
        self._append(trial)
        self._known[key] = trial
        return trial

    def _append(self, trial: Trial) -> None:
        if self._path is None:
            return
        line = json.dumps({"engine": self._version, **trial.as_json()}, allow_nan=False)
        with self._path.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _load(self, path: Path) -> None:
        """Read the scores of an earlier part of this run; cut off a last line that a kill tore."""
        try:
            raw = path.read_bytes()
        except OSError as err:
            raise ConfigError(f"{path.name} cannot be read ({err.strerror})", field="resume") from err
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) != len(raw):
            with path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                data = json.loads(line)
                version, trial = data["engine"], Trial.from_json(data)
            except (ValueError, KeyError, TypeError) as err:
                raise ConfigError(f"{path.name}, line {number} is damaged: {err!r}", field="resume") from err
            # Scores of another engine version are not comparable: they are left out, and asked again.
            if version == self._version:
                self._known[trial.key] = trial
