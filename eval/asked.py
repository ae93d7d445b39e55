"""What is asked of every export of a run, and whether results that are there already are of that.

A result is compared as far as it says what it is of: data, points of the grid, settings, versions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from eval.errors import UsageError
from eval.grid import grid
from eval.inputs import list_sentences
from eval.parts import checksums_of, read_parts, without_tests
from eval.plan import adapt, search_of
from eval.probe import SENTENCES
from eval.storage import reading
from eval.tasks import Task
from eval.tasks.finetuned import FineTuned
from preprocessing.schema import ShardDirectory, ShardError
from trainer.hugging_face import CONFIG


class Difference(NamedTuple):
    """What a result was made with that is not what is asked for.

    Attributes:
        made: it, in words that begin with "with", "without" or "by".
        keeps_points: whether the points that it is of may be gone on with.
    """

    made: str
    keeps_points: bool = False


class Asked:
    """What is asked of every export."""

    def __init__(self, arguments: argparse.Namespace, tasks: Sequence[Task]) -> None:
        """Read what it is about; the arguments are eval.run's.

        Raises:
            UsageError: a data set or the sentences are missing, damaged or not for this user to read.
            UnavailableError: they can't be read now.
        """
        self._arguments = arguments
        adapted = (adapt(task, arguments) for task in tasks)
        self._tasks = {task.name: task.on(arguments.data) if isinstance(task, FineTuned) else task for task in adapted}
        self._data = {
            name: checksums_of(*without_tests(task, read_parts(task, arguments.data, arguments.test, arguments.limit)))
            for name, task in self._tasks.items()
            if isinstance(task, FineTuned)
        }
        own = arguments.sentences
        self._sentences = [line for _, line in list_sentences(own)] if own else list(SENTENCES)

    @cached_property
    def _shards(self) -> ShardDirectory | None:
        """Those that are asked for; None where they are none, or not for this user to read."""
        try:
            return ShardDirectory(self._arguments.shards) if self._arguments.shards else None
        except ShardError:
            return None

    def difference(self, name: str, found: Mapping[str, Any], export: Path) -> Difference | None:
        """What a task's result was made with that is not what is asked for, the first of several; None for nothing.

        Args:
            name: of the task.
            found: results of one command that have it, see eval.results.by_command.
            export: that was evaluated.

        Raises:
            UnavailableError: the shards that are asked for, or the export's configuration, can't be read now.
        """
        task, content = self._tasks[name], found["tasks"][name]
        if (version := content.get("version", task.version)) != task.version:
            return Difference(f"by version {version} of {name}")
        if isinstance(task, FineTuned):
            return next(self._learned(task, content["details"], found, _positions(export)), None)
        return next(self._measured(content["details"], found["shards"], _positions(export)), None)

    def _learned(
        self, task: FineTuned, details: Mapping[str, Any], found: Mapping[str, Any], positions: int | None
    ) -> Iterator[Difference]:
        asked, data = self._arguments, self._data[task.name]
        limit, settings = (found.get("data") or {}).get("limit"), found.get("fine_tuning") or {}
        if limit != asked.limit:
            yield Difference(f"with --limit {limit}" if limit else "without --limit")
        if details.get("data_blake2b", data.learned) != data.learned:
            yield Difference(f"with other data of {task.name}")
        length = details.get("max_length")
        if length and positions and length != min(task.max_length, positions):
            yield Difference(f"with --max-length {length}")
        if (kind := details.get("kind", repr(task.kind))) != repr(task.kind):
            yield Difference(f"with {kind} for {task.name}")
        for option in ("optimizer", "precision"):
            if (was := settings.get(option, getattr(asked, option))) != getattr(asked, option):
                yield Difference(f"with --{option} {was}")
        tried = {json.dumps(point.get("point"), sort_keys=True) for point in details.get("points", ())}
        wanted = {json.dumps(asdict(point), sort_keys=True) for point in grid(task, search_of(asked))}
        if tried and tried != wanted:
            yield Difference(f"with other points of the grid of {task.name}", keeps_points=True)
        if data.tests and details.get("test_blake2b") != data.tests:
            yield Difference(f"without these test sets of {task.name}", keeps_points=True)

    def _measured(
        self, details: Mapping[str, Any], shards: Mapping[str, Any] | None, positions: int | None
    ) -> Iterator[Difference]:
        asked, known = self._arguments, self._shards
        if "sentences" in details and [filled["sentence"] for filled in details["sentences"]] != self._sentences:
            yield Difference("with other sentences")
        if "samples" not in details or not shards:
            return
        samples, length = shards["samples"], shards["sequence_length"]
        if known and shards["manifest_blake2b"] != known.manifest_blake2b:
            yield Difference("with other shards")
        elif length != (asked.sequence_length or self._longest(positions) or length):
            yield Difference(f"with --sequence-length {length}")
        elif samples > asked.samples or (
            known and samples < min(asked.samples, known.manifest.pairs("validation", length))
        ):
            yield Difference(f"with --samples {samples}")

    def _longest(self, positions: int | None) -> int | None:
        """The sequence length of the shards that a model is evaluated at; None where it can't be told."""
        lengths = self._shards.manifest.sequence_lengths if self._shards and positions else ()
        return max((length for length in lengths if length <= (positions or 0)), default=None)


def _positions(export: Path) -> int | None:
    """Of a model; None where it can't be told, which is not the place to say so.

    Raises:
        UnavailableError: it can't be told now.
    """
    file = export / CONFIG
    try:
        with reading(file):
            positions = json.loads(file.read_text(encoding="utf-8"))["max_position_embeddings"]
    except (OSError, UsageError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return positions if isinstance(positions, int) else None
