"""A run on disk: what is where, how it ended. docs/training.md shows the whole directory.

The files are the truth: everything that MLflow shows can be told from them.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from preprocessing.status import entries, exists, is_dir, is_file, leads_nowhere
from preprocessing.storage_errors import is_passing, unavailable
from preprocessing.terminal import in_line
from trainer.files import incomplete, write_atomically

Ending = Literal["done", "requeue", "failed"]


class Outcome(NamedTuple):
    """How a run ended."""

    ending: Ending
    reason: str  # one line, empty for "done"


class CheckpointError(ValueError):
    """A run directory that can't be used or gone on with. The message names it and what to do."""


class _Below:
    """The path of a file or folder of a run."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, run: RunDirectory, _: type) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run."""

    path: Path

    config = _Below("config.toml")  # the resolved recipe
    deepspeed_config = _Below("ds_config.json")  # DeepSpeed's configuration as the user gave it
    manifest = _Below("manifest.json")  # the manifest of the shards that the run reads
    code = _Below("code.json")  # commit and versions; see trainer.lineage.code_version
    code_changes = _Below("code.diff")  # what differed from the commit, as a patch
    initial_weights = _Below("initial_weights.json")  # which it began with; missing where they were new
    metrics = _Below("metrics.jsonl")  # a line of JSON per step
    validation_metrics = _Below("validation.jsonl")  # a line of JSON per evaluation on the validation shards
    profile = _Below("profile")  # the folder of traces
    tracking = _Below("mlflow.json")  # what MLflow knows of this run
    pending_evaluations = _Below("mlflow.pending")  # the folder of evaluations that wait until MLflow gets them
    tokenizer = _Below("tokenizer")  # the tokenizer's files
    checkpoints = _Below("checkpoints")  # the folder of checkpoints
    exports = _Below("exports")  # the folder of exports
    job = _Below("job")  # the files of the cluster job that trains this run; the trainer leaves them alone
    lock = _Below("trainer.lock")  # the file that the trainer locks while it runs
    outcome_file = _Below("outcome")  # holds the outcome as a line
    latest = _Below("checkpoints/latest")  # names the checkpoint that a resume begins with

    @property
    def is_new(self) -> bool:
        """Whether no run has begun: nothing is here but a job's files and what a start leaves that comes to nothing.

        A start takes the lock first and writes config.toml last; one that is refused leaves the outcome.
        """
        try:
            found = set(self.path.iterdir()) - {self.job}
        except (FileNotFoundError, NotADirectoryError):
            return True
        early = {self.lock, self.tokenizer, self.manifest, self.deepspeed_config, self.code, self.code_changes,
                 self.initial_weights, self.outcome_file}  # fmt: skip
        return not found or (self.lock in found and found <= early | set(map(incomplete, early | {self.config})))

    def check(self) -> None:
        """See that a run is here, or that one can begin.

        Raises:
            CheckpointError: something else is, or it can't be looked at.
            OSError: its storage fails, maybe for a moment only.
        """
        try:
            if exists(self.path) and not is_dir(self.path):
                raise CheckpointError(f"{self.path}: a file; choose another --output")
            if not self.is_new and not is_file(self.config):
                raise CheckpointError(f"{self.path}: holds something that is not a run; choose another --output")
        except OSError as error:
            if is_passing(error):
                raise
            raise CheckpointError(f"{self.path}: can't be read ({error.strerror}); choose another --output") from error

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.checkpoints / step_name(step)

    def export(self, step: int) -> Path:
        """Where the export of a step lies."""
        return self.exports / step_name(step)

    @property
    def waiting_evaluations(self) -> list[Path]:
        """Those that MLflow has not got yet, by their names; an OSError where nobody can tell now."""
        return [path for path in entries(self.pending_evaluations) if path.suffix == ".json"]

    @property
    def outcome(self) -> Outcome | None:
        """How the trainer ended; None while it runs and where it crashed."""
        outcome, _ = self.read_outcome()
        return outcome

    def read_outcome(self) -> tuple[Outcome | None, str]:
        """The outcome, and what stands in its place and is none, as of a newer version; empty where nothing does."""
        try:
            told = self.outcome_file.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None, ""
        ending, _, reason = told.partition(": ")
        if ending in get_args(Ending):
            return Outcome(cast(Ending, ending), reason), ""
        return None, one_line(told)

    @property
    def ending(self) -> Ending | None:
        """As the outcome has it."""
        outcome = self.outcome
        return outcome.ending if outcome else None

    def read_initial_weights(self) -> dict[str, str] | None:
        """Which weights the run began with; None where they were new ones.

        Returns:
            "directory" and "blake2b", their checksum; and of a checkpoint, with which the moments came, its "step".

        Raises:
            CheckpointError: the file is damaged.
        """
        if not is_file(self.initial_weights):
            return None
        try:
            told = json.loads(self.initial_weights.read_text(encoding="utf-8"))
            known = ("directory", "blake2b", *({"step"} & told.keys()))
            return {name: str(told[name]) for name in known}
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{self.initial_weights}: damaged ({error}); choose another --output") from error

    def set_outcome(self, ending: Ending | None, reason: str = "") -> None:
        """Say how the trainer ended, for job scripts; None while it runs."""
        if ending is None:
            self.outcome_file.unlink(missing_ok=True)
        else:
            write_atomically(self.outcome_file, _outcome_line(ending, reason))

    def claim_outcome(self, ending: Ending, reason: str) -> bool:
        """As set_outcome where no other rank has said so before; returns whether this one was the first."""
        try:
            file = self.outcome_file.open("x", encoding="utf-8")
        except FileExistsError:
            return False
        try:
            with file:
                file.write(_outcome_line(ending, reason))
        except OSError:  # no room, maybe: an empty file would keep the others from telling
            self.outcome_file.unlink(missing_ok=True)
            raise
        return True

    def candidates(self) -> list[Path]:
        """Complete checkpoints, the newest first, none newer than the one that ``latest`` names.

        Raises:
            CheckpointError: ``latest`` names something that is not there.
            UnavailableError: the folder is a link to another disk, which is not mounted.
        """
        _check_mounted(self.checkpoints, "to begin with step 0")
        found = step_folders(self.checkpoints)[::-1]
        pointer = self.latest
        try:
            name = pointer.read_text(encoding="utf-8", errors="replace").strip()
        except (FileNotFoundError, IsADirectoryError):
            return found
        named = self.checkpoints / name
        # By its name: over NFS a node that has listed the folder may have that list for a minute more.
        if not (name == named.name and _is_of_step(named) and exists(named)):
            raise CheckpointError(
                f"{pointer}: names {name!r}, which is not there; write the name of a checkpoint into it"
            )
        return [named, *(path for path in found if step_number(path) < step_number(named))]

    @property
    def complete_exports(self) -> list[Path]:
        """Those that are there, the earliest first.

        Raises:
            UnavailableError: the folder is a link to another disk, which is not mounted.
        """
        _check_mounted(self.exports, "to do without")
        return step_folders(self.exports)

    @property
    def step(self) -> int:
        """Finished updates of the newest checkpoint; 0 for a run that has none."""
        found = self.candidates()
        return step_number(found[0]) if found else 0

    def staging(self, step: int) -> Path:
        """Where the checkpoint of a step is written before it is complete."""
        return incomplete(self.checkpoint(step))


def step_name(step: int) -> str:
    """The folder name of a step: step-000100."""
    return f"step-{step:06d}"


def _check_mounted(folder: Path, without: str) -> None:
    """See that a folder, if it is a link, leads to something; the link may be removed for what ``without`` says."""
    if leads_nowhere(folder):
        raise unavailable(folder, f"a link to what is not there: mount that, or remove the link {without}")


def step_folders(folder: Path) -> list[Path]:
    """Those that are named after a step, the earliest first; what people leave beside them is passed over."""
    return sorted(filter(_is_of_step, entries(folder)), key=step_number)


def _is_of_step(path: Path) -> bool:
    return bool(re.fullmatch(r"step-[0-9]{6,18}", path.name)) and path.name == step_name(step_number(path))


def newest_around(path: Path, kind: Literal["checkpoints", "exports"]) -> Path | None:
    """The newest one of the run that a path is, or lies in, such as a checkpoint; None where it is in none."""
    found = [one for folder in (path, path.parent, path.parent.parent) for one in step_folders(folder / kind)]
    return found[-1] if found else None


def without_links(path: Path) -> Path:
    """A whole path without links, but for its run's checkpoints/ or exports/, which may lie on another disk."""
    real, folder = Path(os.path.realpath(path)), path.absolute().parent
    kept = Path(os.path.realpath(folder.parent), folder.name)
    is_of_run = kept in (RunDirectory(kept.parent).checkpoints, RunDirectory(kept.parent).exports)
    return kept / real.name if is_of_run and os.path.realpath(kept) == str(real.parent) else real


def step_number(path: Path) -> int:
    """The step that a folder is named after."""
    return int(path.name.removeprefix("step-"))


def one_line(reason: str) -> str:
    """What went wrong in one line, with what would command a terminal written out."""
    return in_line(" ".join(reason.split()))


def _outcome_line(ending: Ending, reason: str) -> str:
    return ": ".join(filter(None, [ending, one_line(reason)])) + "\n"
