"""The output directory of a job: whose it is, how far a job has come in it, and how it is cleared.

In it lie, in the order in which they are written:

    .work/lock      held by the job that is at work (job_lock)
    job.json        inputs and options; the same command compares itself with it
    .work/          files of tokens and the notes of finished pieces, removed at the end
    shard-...       each appears whole
    tokenizer/      the vocabulary, for those who read the shards
    manifest.json   the commit
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Literal

from preprocessing import files
from preprocessing.layout import VALIDATION_PREFIX, shard_name, split_of
from preprocessing.schema import MANIFEST, TOKENIZER, Manifest, ShardError
from preprocessing.sources import DEFAULTS
from preprocessing.status import is_dir, status
from preprocessing.storage_errors import is_full, is_refused, reason
from preprocessing.tokenization import CONFIG_FILE, TOKENIZER_FILE, VOCABULARY_FILE
from preprocessing.work_files import LOCK, WORK, WorkFile, is_work_file

JOB = "job.json"
FAILED = 1  # exit code of a JobFailedError
_TOKENIZER_FILES = frozenset(f"{TOKENIZER}/{name}" for name in (VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE))
_SHARD = re.compile(rf"(?:{VALIDATION_PREFIX})?shard-([0-9]{{5,18}})-of-[0-9]+\.arrow")
DISK_FULL = "{}: disk full or quota reached; free some space and run the same command to resume"
UNAVAILABLE = "{}: can't be written or read ({}); once it can, the same command goes on"
State = Literal["new", "interrupted", "failed", "finished"]


class JobError(ValueError):
    """A job that can't run as asked. The message says what to do."""


class JobFailedError(RuntimeError):
    """A job that can't go on, though nothing is wrong with what was asked for. The message says why."""


def cannot_be(error: OSError) -> bool:
    """Whether an output directory can't be what it is asked to be; Beam's own errors, which have no number, say so."""
    return error.errno is None or is_refused(error)


@contextmanager
def reaching(output: str) -> Iterator[None]:
    """Around what writes or reads an output directory: what keeps it from that, as whose matter it is.

    Raises:
        JobError: it is full, or nothing can be written there, or not by this user.
        JobFailedError: anything else, which may pass.
    """
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise JobError(DISK_FULL.format(output)) from error
        if cannot_be(error):
            raise JobError(f"{output}: can't write there ({reason(error)}); use another directory") from error
        raise JobFailedError(UNAVAILABLE.format(output, reason(error))) from error


def inspect(output: str, description: dict[str, Any], vocabulary: str | None = None) -> State:
    """What the same command finds in the output directory; "failed" is another job that damaged inputs have ended.

    Args:
        output: the directory.
        description: the job's, as job.json would hold it.
        vocabulary: what the user calls the vocabulary that is given; None where it is trained.

    Raises:
        JobError: another job's output, or files that no job of ours wrote.
    """
    present = _present(output)
    if all(map(is_work_file, present)):
        return "new"  # nothing, or what is left of a command that was killed before it could write its job.json
    advice = "use --overwrite to replace it, or another directory"
    old = _read_job(output) if JOB in present else None
    finished = MANIFEST in present
    if old is None:
        if _own_names(output, present):
            raise JobError(f"{output}: holds shards without their {JOB}; {advice}")
        raise JobError(_foreign(output, present))
    cut_elsewhere = not finished and old.get("units") != description["units"]
    description = description | {"units": old.get("units")}
    failing = _failing_on_damage(description)
    if not finished and old.get("options") == failing["options"]:
        description = failing  # what is done had no damage, or would not be done: who skips it makes the same of it
    if finished:
        # A later version of a library does not unmake a finished job.
        description = description | {"versions": old.get("versions")}
    differs = (
        other_vocabulary(old, description, vocabulary)
        or other_benchmark(old, description)
        or difference(old, description)
    )
    if cut_elsewhere:
        differs = differs or "its inputs were cut in other places, as another version of this program does"
    if differs and not finished and any(map(_tells_damage, present)):
        return "failed"
    if differs:
        whose = "another job's output" if finished else "another job, interrupted"
        raise JobError(f"{output}: holds {whose}: {differs}; {advice}")
    return "finished" if finished else "interrupted"


def _failing_on_damage(description: dict[str, Any]) -> dict[str, Any]:
    """The description of the same job without --on-error."""
    options = description["options"]
    return description | {"options": options | {"read": options["read"] | {"on_error": DEFAULTS.on_error}}}


def _tells_damage(name: str) -> bool:
    folder, _, name = name.partition("/")
    return folder == WORK and WorkFile.DAMAGE_ERROR.fits(name)


def check_ours(output: str) -> None:
    """See that a directory holds nothing but what a job of this program left; whether it is the same one, inspect says.

    Raises:
        JobError: it holds something else.
    """
    present = _present(output)
    if not all(map(is_work_file, present)) and not _own_names(output, present):
        raise JobError(_foreign(output, present))


def _foreign(output: str, present: Iterable[str]) -> str:
    return f"{output}: contains files that are not from this program, such as {min(present)!r}; use another directory"


def check_own(output: str) -> None:
    """See that what a job empties, or writes and removes files in, is of the directory, and not where a link leads.

    Raises:
        JobError: a link has its name, or something else.
        JobFailedError: that can't be told now.
    """
    if files.is_remote(output):
        return
    with reaching(output):
        for name, kind, is_such in ((WORK, "folder", S_ISDIR), (LOCK, "file", S_ISREG), (TOKENIZER, "folder", S_ISDIR)):
            found = status(Path(output, name), follow=False)
            if found is not None and not is_such(found.st_mode):
                raise JobError(f"{output}: {name!r} is no {kind} of its own; remove it, or use another directory")


def check_free(output: str, wanted: Iterable[str]) -> None:
    """See that no folder has a name that a job will write as a file: what lies in folders, _present tells, not they.

    Args:
        output: the directory.
        wanted: the shards that the job will write.

    Raises:
        JobError: one has.
    """
    if files.is_remote(output):
        return  # where folders are beginnings of names, and none is in the way of a file
    for name in sorted(_written(wanted)):
        if is_dir(Path(output, name)):
            raise JobError(f"{output}: {name!r} is a folder; remove it, or use another directory")


def _written(shards: Iterable[str]) -> set[str]:
    """What a job that makes these shards leaves in its directory."""
    return {JOB, MANIFEST, *_TOKENIZER_FILES, *shards}


def clear(output: str, wanted: Iterable[str] = (), needed: str | None = None) -> None:
    """Remove what a job of ours left in a directory, and nothing else.

    The manifest goes first, job.json last, and notes before what they tell is whole, so that nobody takes a directory
    for more than it is if this is interrupted.

    Args:
        output: the directory.
        wanted: the shards that the new job will write.
        needed: a file that the new job reads.

    Raises:
        JobError: a file that is not ours has a name that the new job will write, or none of several files is ours, or
            the needed file would go.
        OSError: a file can't be removed; it stays, with those after it.
    """
    present = _present(output)
    own = _own_names(output, present)
    in_the_way = sorted(_written(wanted) & (present.keys() - own))
    if in_the_way:
        raise JobError(f"{output}: {in_the_way[0]!r} was not written by a job of this program; use another directory")
    if not own and not all(map(is_work_file, present)):
        raise JobError(_foreign(output, present))
    if needed and any(files.is_same(needed, files.join(output, name)) for name in own):
        raise JobError(f"{needed}: would be removed with the shards that it lies among; copy it to another place first")
    order = sorted(own, key=lambda name: (name != MANIFEST, name == JOB, not name.endswith(".json"), name))
    files.remove(output, order)


def clear_work(output: str) -> None:
    """Remove the intermediate files of a finished job.

    Raises:
        OSError: one can't be removed; it stays, with those after it.
    """
    files.remove(output, list(filter(is_work_file, _present(output))))


def _own_names(output: str, present: dict[str, int]) -> set[str]:
    """Of the files in a directory, those that a job of ours wrote: by its job.json, its manifest and its .work."""
    own = set(filter(is_work_file, present))
    old = _read_job(output) if JOB in present else None
    if old:
        shards = {name for name in present if _is_shard(name, old["shards"])}
        own |= _written(shards)
    try:
        manifest = Manifest.from_json(files.read_text(files.join(output, MANIFEST)) or "")
        own |= {MANIFEST, *_TOKENIZER_FILES, *(entry.file for entry in manifest.shards)}
    except (ShardError, UnicodeDecodeError):
        pass  # not there, damaged, of another version, or, without a job.json of ours, somebody else's
    return own & present.keys() if old or MANIFEST in own else set()


def _is_shard(name: str, counts: dict[str, int]) -> bool:
    """Whether a file has the name of one of so many shards of each split."""
    found, split = _SHARD.fullmatch(name), split_of(name)
    return (
        found is not None and int(found[1]) < counts[split] and name == shard_name(split, int(found[1]), counts[split])
    )


def _read_job(output: str) -> dict[str, Any] | None:
    """The job.json of a directory, None when there is none of ours."""
    try:
        raw: dict[str, Any] = files.read_json(files.join(output, JOB))
        counts = [raw["shards"][split] for split in ("train", "validation")]
        is_ours = raw["format_version"] and all(isinstance(count, int) for count in counts)
        is_ours = is_ours and isinstance(raw.get("vocabulary", {}), dict)
    except (KeyError, TypeError):
        return None
    return raw if is_ours else None


def _present(output: str) -> dict[str, int]:
    """All files in a directory but for the lock."""
    return {name: size for name, size in files.names_below(output).items() if name != LOCK}


def other_vocabulary(old: dict[str, Any], new: dict[str, Any], given: str | None) -> str | None:
    """How the vocabularies of two descriptions differ, in words; None when they are equal, or both are trained.

    Args:
        old: of the job that is there.
        new: of the one that is asked for.
        given: what the user calls the latter's vocabulary; None where it is trained.
    """
    was, now = (description.get("vocabulary") or {} for description in (old, new))
    if was.get("blake2b") == now.get("blake2b"):
        return None
    there = "another vocabulary" if was.get("blake2b") else "one that it trained"
    return f"made with {there}, not with {given or 'one that is trained'}"


def other_benchmark(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """As other_vocabulary, of what the two look for in the corpus; None when that is the same."""
    was, now = (description.get("benchmark") or "" for description in (old, new))
    if was == now:
        return None
    if was and now:
        return "made with other texts in the folder of --contamination"
    return "made with --contamination" if was else "made without --contamination"


def difference(old: dict[str, Any], new: dict[str, Any], at: str = "") -> str | None:
    """The first place where two descriptions differ, in words; None when they are equal."""
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if isinstance(was, dict) and isinstance(now, dict):
            inner = difference(was, now, f"{at}{key}.")
            if inner:
                return inner
        elif was != now:
            pairs = itertools.zip_longest(was, now) if isinstance(was, list) and isinstance(now, list) else ()
            first = next((theirs or ours for theirs, ours in pairs if theirs != ours), None)
            if isinstance(first, dict):  # one of many files
                return f"its {at}{key} differ, first in {first.get('name')}"
            return f"{at}{key} was {was} there and is {now} here"
    return None
