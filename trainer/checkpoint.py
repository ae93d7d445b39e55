"""The checkpoints of a run: written, kept, gone back to.

A checkpoint is written beside its final name and renamed when every rank has finished, so it is complete or not there.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from preprocessing.schema import checksum_of
from preprocessing.status import exists, make_folder
from trainer.files import discard, sync, write_atomically
from trainer.loss_scale import LossScale
from trainer.loss_trend import LossTrend
from trainer.run_directory import CheckpointError, RunDirectory, step_folders, step_name, step_number
from trainer.settings import first_problem

RUN_STATE = "run_state.json"

_log = logging.getLogger("pretrain")


@dataclass(frozen=True)
class Learner:
    """What a checkpoint is of: all that another run must know to begin with it, wherever the folder lies then."""

    model: dict[str, Any]  # settings of trainer.model.BertConfig, which those who only delete or list do not import
    vocabulary_blake2b: str
    optimizer: str  # its name
    seed: int  # of the order of samples and their masks


@dataclass(frozen=True)
class RunState:
    """All that a resume needs besides the tensors."""

    __pydantic_config__ = pydantic.ConfigDict(strict=True, extra="forbid")  # when it is read

    step: int  # finished updates over all phases
    samples: int  # seen in all phases
    world_size: int
    threads: int  # CPU threads of a rank, on which the last bits of a result depend
    manifest_blake2b: str
    config_blake2b: str
    learner: Learner
    arithmetic: str  # of the first rank's device; see trainer.determinism.arithmetic_of
    loss_scale: LossScale | None = None  # of fp16's dynamic loss scaling
    code: dict[str, Any] = field(default_factory=dict)  # that trains; see trainer.lineage.code_version
    trend: LossTrend | None = None  # of the losses so far


_RUN_STATE = pydantic.TypeAdapter(RunState)


def begin_checkpoint(run: RunDirectory, step: int) -> None:
    """Make an empty staging folder, throwing away what an interrupted attempt left. The first rank calls it."""
    shutil.rmtree(run.staging(step), ignore_errors=True)
    run.staging(step).mkdir(parents=True)


def commit_checkpoint(run: RunDirectory, state: RunState) -> None:
    """Give a staged checkpoint its name and move ``latest`` to it. The first rank calls it, last."""
    staging, final = run.staging(state.step), run.checkpoint(state.step)
    values = asdict(state)
    text = json.dumps({**values, "blake2b": _checksum(values)}, indent=2) + "\n"
    write_atomically(staging / RUN_STATE, text)
    for file in filter(exists, (run.metrics, run.validation_metrics)):
        sync(file)  # or a power cut could take lines of steps that no resume will train again
    sync(staging)
    discard(final)
    staging.rename(final)
    sync(run.checkpoints)
    write_atomically(run.latest, final.name + "\n")
    sync(run.checkpoints)  # or a power cut could leave the old name, of a checkpoint that is gone


def set_aside(run: RunDirectory, step: int) -> Path | None:
    """Move away what is newer than the step that the run goes on from: it is of a future that will not come.

    That is so where ``latest`` was set back by hand, and where newer checkpoints are damaged. Left where they are,
    they would count as the newest ones when old ones are deleted, and be taken for what is trained now.

    Args:
        run: the run directory, held by this trainer.
        step: of the checkpoint that the run goes on from; 0 where it begins anew.

    Returns:
        The folder where checkpoints, exports and a copy of the metrics lie now; None where nothing was newer.
    """
    folders = [path for folder in (run.checkpoints, run.exports) for path in step_folders(folder)]
    newer = [path for path in folders if step_number(path) > step]
    if not newer:
        return None
    aside = next(path for n in itertools.count(1) if not exists(path := run.path / "set_aside" / str(n)))
    aside.mkdir(parents=True)
    for file in filter(exists, (run.metrics, run.validation_metrics)):
        shutil.copyfile(file, aside / file.name)
    if step:  # first, for it must never name what is not there
        write_atomically(run.latest, step_name(step) + "\n")
    else:
        run.latest.unlink(missing_ok=True)
    for path in newer:
        place = aside / path.parent.name / path.name
        make_folder(place.parent)
        shutil.move(path, place)  # to another file system too, where checkpoints/ is a link to one
    return aside


def remove_leftovers(run: RunDirectory) -> None:
    """Delete what an earlier trainer was writing or deleting when it was killed. Only who holds the run may."""
    for folder in (run.checkpoints, run.exports):
        for left in folder.glob(".step-*"):
            discard(left)


def read_run_state(checkpoint: Path) -> RunState:
    """The state that a checkpoint was written with.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    path = checkpoint / RUN_STATE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        _take_checksum(values)
        return _RUN_STATE.validate_json(json.dumps(values))
    except pydantic.ValidationError as error:
        raise CheckpointError(f"{path}: not a run state ({first_problem(error)})") from error
    except (OSError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a run state ({error})") from error


def _checksum(values: dict[str, Any]) -> str:
    return checksum_of(json.dumps(values, sort_keys=True).encode())


def _take_checksum(values: dict[str, Any]) -> None:
    """Compare values with the checksum that stands among them."""
    if values.pop("blake2b", None) != _checksum(values):
        raise ValueError("not the values that were written")


def remove_folder(path: Path) -> None:
    """Delete a folder; to others it is whole or not there, also where this is cut short.

    Raises:
        OSError: it can't be renamed; or not all of it be deleted, as files of a user who shares the run by a group.
    """
    hidden = path.with_name(f".{path.name}.removed")
    discard(hidden)
    path.rename(hidden)
    discard(hidden)
    if exists(hidden):
        raise OSError(errno.ENOTEMPTY, f"its files lie in {hidden.name} now; delete them by who owns them")


def keep_newest(
    folder: Path, keep: int, keep_every: int = 0, good_step: int = 0, remove: Callable[[Path], None] = remove_folder
) -> None:
    """Delete all but the ``keep`` newest step folders and those of every ``keep_every``-th step; keep 0 keeps all.

    One that can't be deleted stays, with a warning, until the next time: it takes nothing from the new one.

    Args:
        folder: of checkpoints or exports.
        keep: how many of the newest stay.
        keep_every: steps whose multiples stay for good; 0 for none.
        good_step: the newest folder that is not from after it stays too.
        remove: deletes a folder, or leaves it for the next time.
    """
    try:
        for left in folder.glob(".step-*.removed"):
            discard(left)
        complete = step_folders(folder)
    except OSError as error:
        _log.warning("%s: can't be looked through for what is to be deleted (%s)", folder, error.strerror)
        return
    good = [path for path in complete if step_number(path) <= good_step][-1:]
    for old in complete[:-keep] if keep else []:
        if old not in good and (not keep_every or step_number(old) % keep_every):
            try:
                remove(old)
            except OSError as error:
                _log.warning("%s: can't be deleted (%s)", old, error.strerror)
