"""A run on disk: what is where, what is complete, what is kept. docs/training.md shows the whole directory.

A checkpoint is written beside its final name and renamed when every rank has finished, so it is complete or not there.
The files are the truth: everything that MLflow shows can be told from them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from trainer.files import incomplete, sync, write_atomically
from trainer.loss_scale import LossScale

_log = logging.getLogger("pretrain")
Ending = Literal["done", "requeue", "failed"]


class Outcome(NamedTuple):
    """How a run ended."""

    ending: Ending
    reason: str  # one line, empty for "done"


class CheckpointError(ValueError):
    """A run directory that can't be used or gone on with. The message names it and what to do."""


@dataclass(frozen=True)
class RunState:
    """All that a resume needs besides the tensors."""

    step: int  # finished updates over all phases
    samples: int  # seen in all phases
    world_size: int
    threads: int  # CPU threads of a rank, on which the last bits of a result depend
    manifest_blake2b: str
    config_blake2b: str
    loss_scale: LossScale | None = None  # of fp16's dynamic loss scaling


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved recipe."""
        return self.path / "config.toml"

    @property
    def deepspeed_config(self) -> Path:
        """DeepSpeed's configuration as the user gave it."""
        return self.path / "ds_config.json"

    @property
    def manifest(self) -> Path:
        """The manifest of the shards that the run reads."""
        return self.path / "manifest.json"

    @property
    def code(self) -> Path:
        """Commit and versions; see trainer.lineage.code_version."""
        return self.path / "code.json"

    @property
    def code_changes(self) -> Path:
        """What differed from the commit, as a patch."""
        return self.path / "code.diff"

    @property
    def initial_weights(self) -> Path:
        """Directory and checksum of the weights that the run began with; missing where they were new ones."""
        return self.path / "initial_weights.json"

    @property
    def metrics(self) -> Path:
        """A line of JSON per step."""
        return self.path / "metrics.jsonl"

    @property
    def validation_metrics(self) -> Path:
        """A line of JSON per evaluation on the validation shards."""
        return self.path / "validation.jsonl"

    @property
    def tracking(self) -> Path:
        """What MLflow knows of this run."""
        return self.path / "mlflow.json"

    @property
    def pending_evaluations(self) -> Path:
        """The folder of evaluations that wait until MLflow gets them."""
        return self.path / "mlflow.pending"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's files."""
        return self.path / "tokenizer"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def exports(self) -> Path:
        """The folder of exports."""
        return self.path / "exports"

    @property
    def job(self) -> Path:
        """The files of the cluster job that trains this run; the trainer leaves them alone."""
        return self.path / "job"

    @property
    def lock(self) -> Path:
        """The file that the trainer locks while it runs."""
        return self.path / "trainer.lock"

    @property
    def outcome_file(self) -> Path:
        """Holds the outcome as a line."""
        return self.path / "outcome"

    @property
    def is_new(self) -> bool:
        """Whether no run has begun here: nothing is there but a job's files and what a start leaves that is cut short.

        A start takes the lock first and writes config.toml last.
        """
        if not self.path.exists():
            return True
        found = set(self.path.iterdir()) - {self.job}
        early = {self.lock, self.tokenizer, self.manifest, self.deepspeed_config, self.code, self.code_changes,
                 self.initial_weights}  # fmt: skip
        return not found or (self.lock in found and found <= early | set(map(incomplete, early | {self.config})))

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.checkpoints / step_name(step)

    def export(self, step: int) -> Path:
        """Where the export of a step lies."""
        return self.exports / step_name(step)

    @property
    def outcome(self) -> Outcome | None:
        """How the trainer ended; None while it runs and where it crashed."""
        try:
            ending, _, reason = self.outcome_file.read_text(encoding="utf-8", errors="replace").strip().partition(": ")
        except FileNotFoundError:
            return None
        return Outcome(cast(Ending, ending), reason) if ending in get_args(Ending) else None

    @property
    def ending(self) -> Ending | None:
        """As the outcome has it."""
        outcome = self.outcome
        return outcome.ending if outcome else None

    def read_initial_weights(self) -> dict[str, str] | None:
        """Directory and checksum of the weights that the run began with; None where they were new ones.

        Raises:
            CheckpointError: the file is damaged.
        """
        if not self.initial_weights.is_file():
            return None
        try:
            told: dict[str, str] = json.loads(self.initial_weights.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{self.initial_weights}: damaged ({error}); choose another --output") from error
        return told

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
        """
        found = step_folders(self.checkpoints)[::-1]
        pointer = self._latest
        if not pointer.is_file():
            return found
        name = pointer.read_text(encoding="utf-8", errors="replace").strip()
        if name not in [path.name for path in found]:
            raise CheckpointError(
                f"{pointer}: names {name!r}, which is not there; write the name of a checkpoint into it"
            )
        return [path for path in found if step_number(path) <= step_number(Path(name))]

    @property
    def _latest(self) -> Path:
        return self.checkpoints / "latest"

    @property
    def step(self) -> int:
        """Finished updates of the newest checkpoint; 0 for a run that has none."""
        found = self.candidates()
        return step_number(found[0]) if found else 0

    def staging(self, step: int) -> Path:
        """Where the checkpoint of a step is written before it is complete."""
        return incomplete(self.checkpoint(step))

    def begin_checkpoint(self, step: int) -> None:
        """Make an empty staging folder, throwing away what an interrupted attempt left. The first rank calls it."""
        shutil.rmtree(self.staging(step), ignore_errors=True)
        self.staging(step).mkdir(parents=True)

    def commit_checkpoint(self, state: RunState, keep: int, keep_every: int = 0) -> None:
        """Give a staged checkpoint its name, move ``latest`` to it and drop old ones. The first rank calls it, last."""
        staging, final = self.staging(state.step), self.checkpoint(state.step)
        values = asdict(state)
        text = json.dumps({**values, "blake2b": _checksum(values)}, indent=2) + "\n"
        write_atomically(staging / "run_state.json", text)
        for file in filter(Path.exists, (self.metrics, self.validation_metrics)):
            sync(file)  # or a power cut could take lines of steps that no resume will train again
        sync(staging)
        shutil.rmtree(final, ignore_errors=True)
        staging.rename(final)
        sync(self.checkpoints)
        write_atomically(self._latest, final.name + "\n")
        sync(self.checkpoints)  # or a power cut could leave the old name, of a checkpoint that is gone
        keep_newest(self.checkpoints, keep, keep_every)

    def set_aside(self, step: int) -> Path | None:
        """Move away what is newer than the step that the run goes on from: it is of a future that will not come.

        That is so where ``latest`` was set back by hand, and where newer checkpoints are damaged. Left where they are,
        they would count as the newest ones when old ones are deleted, and be taken for what is trained now.

        Args:
            step: of the checkpoint that the run goes on from; 0 where it begins anew.

        Returns:
            The folder where checkpoints, exports and a copy of the metrics lie now; None where nothing was newer.
        """
        folders = [path for folder in (self.checkpoints, self.exports) for path in step_folders(folder)]
        newer = [path for path in folders if step_number(path) > step]
        if not newer:
            return None
        aside = next(path for n in itertools.count(1) if not (path := self.path / "set_aside" / str(n)).exists())
        aside.mkdir(parents=True)
        for file in filter(Path.exists, (self.metrics, self.validation_metrics)):
            shutil.copyfile(file, aside / file.name)
        if step:  # first, for it must never name what is not there
            write_atomically(self._latest, step_name(step) + "\n")
        else:
            self._latest.unlink(missing_ok=True)
        for path in newer:
            place = aside / path.parent.name / path.name
            place.parent.mkdir(exist_ok=True)
            path.rename(place)
        return aside

    def remove_leftovers(self) -> None:
        """Delete what an earlier trainer was writing or deleting when it was killed. Only who holds the run may."""
        for folder in (self.checkpoints, self.exports):
            for left in folder.glob(".step-*"):
                shutil.rmtree(left, ignore_errors=True)

    def cut_metrics(self, step: int) -> None:
        """Drop the lines of steps after ``step``, which are about to be trained again, and a half-written last one.

        A line that a failing disk or a power cut has damaged is dropped too, with a warning: a run of days is not to
        wait for somebody to mend it.
        """
        for path in filter(Path.exists, (self.metrics, self.validation_metrics)):
            write_atomically(path, b"".join(_lines_up_to(path, step)))


def read_run_state(checkpoint: Path) -> RunState:
    """The state that a checkpoint was written with.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    path = checkpoint / "run_state.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        _take_checksum(values)
        scale = values.pop("loss_scale", None)
        return RunState(**values, loss_scale=LossScale(**scale) if scale else None)
    except (OSError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a run state ({error})") from error


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def _take_checksum(values: dict[str, Any]) -> None:
    """Compare values with the checksum that stands among them."""
    if values.pop("blake2b", None) != _checksum(values):
        raise ValueError("not the values that were written")


def _outcome_line(ending: Ending, reason: str) -> str:
    return ": ".join(filter(None, [ending, " ".join(reason.split())])) + "\n"


def remove_folder(path: Path) -> None:
    """Delete a folder; to others it is whole or not there, also where this is cut short."""
    hidden = path.with_name(f".{path.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def keep_newest(folder: Path, keep: int, keep_every: int = 0, remove: Callable[[Path], None] = remove_folder) -> None:
    """Delete all but the ``keep`` newest step folders and those of every ``keep_every``-th step; keep 0 keeps all.

    One that can't be deleted stays, with a warning, until the next time: it takes nothing from the new one.

    Args:
        folder: of checkpoints or exports.
        keep: how many of the newest stay.
        keep_every: steps whose multiples stay for good; 0 for none.
        remove: deletes a folder, or leaves it for the next time.
    """
    for left in folder.glob(".step-*.removed"):
        shutil.rmtree(left, ignore_errors=True)
    complete = step_folders(folder)
    for old in complete[:-keep] if keep else []:
        if not keep_every or step_number(old) % keep_every:
            try:
                remove(old)
            except OSError as error:
                _log.warning("%s: can't be deleted (%s)", old, error.strerror)


def step_name(step: int) -> str:
    """The folder name of a step: step-000100."""
    return f"step-{step:06d}"


def step_folders(folder: Path) -> list[Path]:
    """Those that are named after a step, the earliest first; what people leave beside them is passed over."""
    return sorted((path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)), key=step_number)


def step_number(path: Path) -> int:
    """The step that a folder is named after."""
    return int(path.name.removeprefix("step-"))


def _lines_up_to(path: Path, step: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                if line.endswith(b"\n") and json.loads(line)["step"] <= step:
                    yield line
            except (ValueError, KeyError, TypeError, RecursionError):
                _log.warning("%s: line %d is damaged and left out", path, number)
