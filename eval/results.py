"""results.json: what an evaluation leaves, and how to read it.

It holds

    format_version     of this layout
    checkpoint         path, blake2b of the file of weights, lineage: run, step, samples, hashes, code
    shards             path, blake2b of the manifest, sequence_length, samples; null where no task read any
    data               path of the data sets or "hub", limit; null where no task read any
    settings           dtype, device, batch_size, threads: of the tasks that learn nothing
    fine_tuning        optimizer, precision, device, ...: of the tasks that the model learned; null without such
    tasks              name -> version, metrics (value, half_width, baseline, unit), baselines, details
    failed             name -> why, of tasks that did
    files              what else lies beside it: predictions/TASK, glue_submission.zip; models/TASK are not listed
    code               which code evaluated
    seconds            how long it took
    earlier            of earlier commands with this output, on the same weights, what the last one did not replace: for
                       each shards, data, settings, fine_tuning, tasks and code

Details of mlm and nsp: samples, and instead, where figures are not of what the task is named for: next words of a
left-to-right model, an untrained head, or samples of one segment.

Details of a task that the model learned: splits and examples of each part (train, dev, dev_mm, test, ...), best_point
(learning_rate, epochs, batch_size, seed), selected_by (the metric that it is the best by, on dev), seeds (metric -> its
figures for all seeds of that point) and points (point, metrics by part, error, seconds, device).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic

from eval.errors import UsageError, first_problem
from eval.storage import reading
from trainer.files import write_atomically

RESULTS = "results.json"
FORMAT_VERSION = 2
# What figures of mlm and nsp are of instead; what lies in WITHOUT_MEANING is in no report and not in MLflow.
NEXT_WORDS, UNTRAINED, ONE_SEGMENT = "next words", "an untrained head", "samples of one segment"
WITHOUT_MEANING = (UNTRAINED, ONE_SEGMENT)

# Folders beside it: the best points' predictions and models, and what frozen encoders compute meanwhile. All others
# are named like tasks.
PREDICTED, MODELS, STATES = "predictions", "models", "states"
FINAL = "final"  # in the place of a task, in the name of a folder: the tasks after the last step of a run
_OF_A_COMMAND = ("shards", "data", "settings", "fine_tuning", "tasks", "code")


_PathText = Annotated[str, pydantic.StringConstraints(pattern="^[^\0]*$")]  # which no path may have


class _Finite(pydantic.BaseModel):
    """Python's JSON has NaN and infinity, which no figure is."""

    model_config = pydantic.ConfigDict(allow_inf_nan=False)


def _within(limit: float) -> pydantic.AfterValidator:
    """See that a figure is not so large that a sum of some would be infinite."""

    def check(figure: float) -> float:
        if abs(figure) > limit:
            raise ValueError(f"{figure:g} is beyond {limit:g}")
        return figure

    return pydantic.AfterValidator(check)


_Figure = Annotated[float, _within(1e307)]  # which the perplexity of no loss is, see trainer.metrics
_OfSeed = Annotated[float, _within(1e30)]  # of a learned task, such as in per cent; squares are summed too


class _Measured(_Finite):
    value: _Figure
    half_width: Annotated[_Figure, pydantic.Field(ge=0)] | None
    baseline: _Figure | None
    unit: str


class _Candidate(_Finite):
    token: str
    probability: float


class _Sentence(pydantic.BaseModel):
    sentence: str
    masks: list[list[_Candidate]]


class _Point(_Finite):
    learning_rate: float
    epochs: int
    batch_size: int
    seed: int


class _Tried(pydantic.BaseModel):
    point: _Point | None = None
    error: str | None = None


class _Details(_Finite):
    samples: int | None = None
    instead: str | None = None
    selected_by: str | None = None
    max_length: int | None = None
    best_point: _Point | None = None
    examples: dict[str, int] = {}
    points: list[_Tried] = []
    seeds: dict[str, list[_OfSeed]] = {}
    sentences: list[_Sentence] = []


class _Task(pydantic.BaseModel):
    metrics: dict[str, _Measured]
    baselines: dict[str, str]
    details: _Details

    @pydantic.model_validator(mode="after")
    def _was_measured(self) -> _Task:
        if "selected_by" in self.details.model_fields_set and self.details.selected_by not in self.metrics:
            raise ValueError(f"selected by {self.details.selected_by!r}, which is none of its metrics")
        return self


class _TrainedBy(pydantic.BaseModel):
    version: str | None = None
    commit: str | None = None


class Lineage(pydantic.BaseModel):
    """What is relied on of an export's lineage; nothing is known where another program wrote it."""

    run: _PathText | None = None
    step: Annotated[int, pydantic.Field(ge=0, lt=1 << 63)] | None = None  # as MLflow has room for
    manifest_blake2b: str | None = None
    shards_blake2b: list[str] | None = None
    config_blake2b: str | None = None
    code: _TrainedBy = _TrainedBy()
    pretrained: _Pretrained | None = None


class _Pretrained(pydantic.BaseModel):
    """What a task's model was learned from, see eval.models."""

    path: _PathText
    lineage: Lineage


class _Checkpoint(pydantic.BaseModel):
    path: _PathText
    weights_blake2b: str
    lineage: Lineage


class _Shards(pydantic.BaseModel):
    path: str
    manifest_blake2b: str
    sequence_length: int
    samples: int


class _Data(pydantic.BaseModel):
    path: str = ""
    limit: Annotated[int, pydantic.Field(ge=1)] | None = None


class _FineTuning(pydantic.BaseModel):
    optimizer: str
    precision: str


class _Code(pydantic.BaseModel):
    version: str | None
    commit: str | None
    modified: bool


class _Found(pydantic.BaseModel):
    """What readers rely on of what one command found."""

    shards: _Shards | None
    data: _Data | None = None
    fine_tuning: _FineTuning | None = None
    tasks: dict[str, _Task]
    code: _Code


class _Results(_Found):
    """What readers of results rely on."""

    checkpoint: _Checkpoint
    failed: dict[str, str]
    earlier: list[_Found] = []


class _ForeignError(UsageError):
    """What lies in the place of results is of another program, or of another version of this one."""


class _LackingError(UsageError):
    """No results are there, or ours are damaged."""


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write results so that a reader sees all or nothing of them."""
    write_atomically(path, json.dumps(results, indent=2, ensure_ascii=False) + "\n")


def tags_of(checkpoint: Mapping[str, Any], **more: Any) -> dict[str, str]:
    """Tags for MLflow: which weights something is of, what they were trained on, and more; without what isn't known."""
    lineage = checkpoint["lineage"]
    tags = {
        "step": lineage.get("step"),
        "export_blake2b": checkpoint["weights_blake2b"],
        "training_manifest_blake2b": lineage.get("manifest_blake2b"),
        "config_blake2b": lineage.get("config_blake2b"),
        **more,
    }
    return {name: str(value) for name, value in tags.items() if value is not None}


def read_results(path: Path) -> dict[str, Any]:
    """Read what write_results wrote.

    Raises:
        UsageError: not there, not for this user to read, or not the results of an evaluation of this version.
        UnavailableError: they can't be read now.
    """
    try:
        with reading(path):
            content = path.read_bytes()
    except OSError as error:
        raise _LackingError(f"{path}: can't read the results ({error.strerror})") from error
    try:
        results = json.loads(content.decode())
        version, _ = results["format_version"], results["checkpoint"]  # other files of ours have a version too
        if version == FORMAT_VERSION:
            found = _Results.model_validate(results, strict=True).model_dump()
            json.dumps(found, ensure_ascii=False).encode()  # half a surrogate is in no text that can be shown
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        wrong = f" ({first_problem(error)})" if isinstance(error, pydantic.ValidationError) else ""
        kind = _ForeignError if isinstance(error, KeyError | TypeError) else _LackingError  # JSON, but not as ours
        raise kind(f"{path}: not the results of an evaluation{wrong}; run `python -m eval.run` again") from error
    if version != FORMAT_VERSION:
        raise _ForeignError(f"{path}: format version {version}, this program reads {FORMAT_VERSION}; evaluate again")
    return dict(results)


def by_command(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Results as each of the commands would have left them alone, the last one first; a task is in one of them."""
    last = {name: content for name, content in results.items() if name != "earlier"}
    return [last, *({**last, "failed": {}, "files": [], **found} for found in results.get("earlier", ()))]


def tasks_of(results: dict[str, Any]) -> list[str]:
    """The tasks that results have, of all commands."""
    return [name for found in by_command(results) for name in found["tasks"]]


def beside_earlier(results: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    """Results of a command, and what was there, if anything, of tasks of which it has none; on the same weights."""
    earlier = []
    for found in by_command(before) if before else ():
        if left := {name: task for name, task in found["tasks"].items() if name not in results["tasks"]}:
            earlier.append({**{name: found.get(name) for name in _OF_A_COMMAND}, "tasks": left})
    return {**results, "earlier": earlier}


def read_earlier(path: Path) -> dict[str, Any] | None:
    """Results of an earlier command; None where there are none, or ours are damaged.

    Raises:
        UsageError: they are of another program or of another version, or not for this user to read.
        UnavailableError: they can't be read now, so that nobody knows whether there are some.
    """
    try:
        return read_results(path)
    except _ForeignError as error:
        raise UsageError(f"{error}, with another --output or without that file") from error
    except _LackingError:
        return None


def read_results_of(path: Path, weights_blake2b: str) -> dict[str, Any] | None:
    """Results of these very weights; None where there are none, or ours are damaged.

    Raises:
        UsageError: they are of others, of another program or of another version, or not for this user to read.
        UnavailableError: they can't be read now.
    """
    results = read_earlier(path)
    if results is None:
        return None
    checkpoint = results["checkpoint"]
    if checkpoint["weights_blake2b"] != weights_blake2b:
        raise UsageError(
            f"{path}: of other weights, {checkpoint['weights_blake2b']}, that lay in {checkpoint['path']}; choose "
            "another --output, or delete that folder"
        )
    return results


def is_learned(details: Mapping[str, Any]) -> bool:
    """Whether a task's details are of one that the model learned."""
    return "selected_by" in details


def diverged_seeds(details: Mapping[str, Any]) -> int:
    """How many seeds of a task's best point diverged, by its details."""
    diverged = [tried.get("point") for tried in details.get("points", ()) if tried.get("error")]
    return [seedless(point) for point in diverged].count(seedless(details.get("best_point")))


def seedless(point: Mapping[str, Any] | None) -> dict[str, Any]:
    """A point of a grid as all of its seeds have it."""
    return {**(point or {}), "seed": None}


def sentences_of(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The sentences whose masks were filled, with their candidates; none where none were asked for."""
    filled: list[dict[str, Any]] = results["tasks"].get("fill_mask", {}).get("details", {}).get("sentences", [])
    return filled
