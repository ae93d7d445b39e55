"""What a job reads: the files of a corpus, and the units and parts in which they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from preprocessing import files
from preprocessing.globs import Found, expand
from preprocessing.schema import MANIFEST, checksum_of
from preprocessing.sources import DEFAULTS, Part, ReadOptions, SourceError, StorageError
from preprocessing.sources.registry import SOURCES
from preprocessing.storage_errors import reason
from preprocessing.terminal import counted

UNIT_BYTES = 4 << 20  # inputs this small are read together, so that a thousand books are not a thousand tasks
# Units of a large corpus are larger: in the end each has two files mapped, and Linux lets a process map 65,530.
MOST_UNITS = 1 << 13  # or about twice as many, where neighbours don't fit together
PART_BYTES = 32 << 20  # of a file, as it lies, that can be read in parts
LARGE_BYTES = 1 << 30  # that one process reads in a while, of which is told: of one file, or of several in all
# What a job writes, which a glob may match; the rest of a path is its shard directory.
_MADE = re.compile(r"(.*)/(?:tokenizer/[^/]+|(?:job|manifest)\.json|(?:validation-)?shard-\d+-of-\d+\.arrow)")
# Plain bytes to a compressed one: rough figures, good enough to choose how much is read at once and how many shards.
COMPRESSION = {".bz2": 4.5, ".gz": 3.0, ".xz": 5.0, ".zst": 3.5, ".parquet": 1.8}


class Input(NamedTuple):
    """A file of a corpus."""

    source: str  # which reader
    name: str  # relative to the corpus: the same wherever that lies
    bytes: int
    path: str
    part: Part | None = None  # what is to be read of it; None: all


class Unit(NamedTuple):
    """What one task of the first pass reads."""

    number: int
    inputs: tuple[Input, ...]


class _Unwanted(NamedTuple):
    """Why a file that a pattern matches is not read."""

    what: str  # such files are
    advice: str  # where the pattern matches nothing else


_BELOW_OUTPUT = _Unwanted("below --output", "choose another output")
_OF_SHARDS = _Unwanted("of finished shards", "give the text itself")
_INDEX = _Unwanted("of a dump's index", "give the dump")


def check_unchanged(inputs: Iterable[Input]) -> None:
    """See that what was just read is what the job found: a file that still grows or shrinks is half a corpus.

    Raises:
        StorageError: a file has another size.
    """
    for file in inputs:
        now = files.size(file.path)
        if now != file.bytes:
            raise StorageError(
                f"{file.path}: has changed since the job began, from {file.bytes:,} bytes to {now:,}; once nobody "
                "writes to it, give the command again with --overwrite"
            )


def find_inputs(
    patterns: dict[str, list[str]],
    note: Callable[[str], None],
    options: ReadOptions = DEFAULTS,
    output: str | None = None,
) -> list[Input]:
    """The files to read, sorted, each once.

    Args:
        patterns: source -> paths and globs.
        note: told of files that are passed over.
        options: how they will be read.
        output: the directory that is written, none of whose files is an input, as a glob may match them too.

    Raises:
        SourceError: a pattern matches nothing of use, or the documents of two files would have the same ids.
        StorageError: it can't be told whether a file is of shards.
    """
    below = files.resolved(output).rstrip("/") + "/" if output else None
    found: list[Input] = []
    unwanted: list[tuple[_Unwanted, str]] = []
    again: list[tuple[str, str]] = []
    for source, globs in patterns.items():
        places, others = _places(globs)
        judged = [(_why_unwanted(place, file, source, below), file) for place, file in sorted(places.items())]
        wanted = [file for reason, file in judged if reason is None]
        refused = [(reason, file.path) for reason, file in judged if reason is not None]
        if not wanted:
            reason, path = refused[0]
            nothing = f"--{source} {' '.join(globs)}: nothing but files {reason.what}, such as {path}"
            raise SourceError(f"{nothing}; {reason.advice}")
        found += _named_once(source, wanted)
        unwanted += refused
        again += others
    for reason, own in groupby(sorted(unwanted, key=itemgetter(0)), key=itemgetter(0)):
        paths = [path for _, path in own]
        note(f"{counted(len(paths), 'file')} {reason.what} passed over, such as {paths[0]}")
    if again:
        path, named = again[0]
        leading = f"{counted(len(again), 'path')} to a file named already"
        note(f"{leading} passed over, such as {path} to that of {named}")
    _check_rows(file for file in found if SOURCES[file.source].numbers_rows(options))
    return sorted(found, key=lambda file: file[:2])


def _places(globs: Iterable[str]) -> tuple[dict[str, Found], list[tuple[str, str]]]:
    """The files that patterns match, by where they lie.

    Of several names a file has, whatever the order of the patterns, the longest one of the shortest path.

    Returns:
        The files, and of every other path to one of them (path, that file's path).
    """
    places: dict[str, Found] = {}
    paths: list[tuple[str, str]] = []
    for pattern in globs:
        matched = [(files.resolved(file.path), file) for file in expand(pattern)]
        paths += [(file.path, place) for place, file in matched]
        for place, file in dict(reversed(matched)).items():  # of the several names that links give it the first
            others = (file, places.get(place, file))
            places[place] = min(others, key=lambda way: (len(way.path), -len(way.name), way.path, way.name))
    return places, [(path, places[place].path) for path, place in paths if path != places[place].path]


def _why_unwanted(place: str, file: Found, source: str, below: str | None) -> _Unwanted | None:
    if below and place.startswith(below):
        return _BELOW_OUTPUT
    if _is_of_shards(place):
        return _OF_SHARDS
    passed_over = SOURCES[source].passed_over
    return _INDEX if passed_over and passed_over.search(file.name) else None


def _is_of_shards(path: str) -> bool:
    """Whether a job has written a file: it is called so, and the folder has a manifest of ours.

    Raises:
        StorageError: that manifest can't be read.
    """
    named = _MADE.fullmatch(path)
    if named is None:
        return False
    place = files.join(named[1], MANIFEST)
    try:
        manifest = files.read_json(place)
    except OSError as error:
        raise StorageError(
            f"{place}: can't be read ({reason(error)}), so it can't be told whether {path} is of shards; "
            "once it can, the same command goes on"
        ) from error
    return isinstance(manifest, dict) and {"format_version", "shards", "vocabulary"} <= manifest.keys()


def _named_once(source: str, wanted: Iterable[Found]) -> Iterator[Input]:
    """The files of a source as inputs, whose names tell them apart."""
    named: dict[str, Found] = {}
    for file in wanted:
        try:
            file.name.encode()
        except UnicodeEncodeError as error:
            raise SourceError(
                f"{file.path!r}: the name is not UTF-8, so it can't be a document's id; rename it"
            ) from error
        other = named.setdefault(file.name, file)
        if other is not file:
            raise SourceError(
                f"{other.path} and {file.path}: both are called {file.name!r}, which must be unique among --{source}; "
                "name both by one glob, such as 'FOLDER/**/*.txt'"
            )
        yield Input(source, file.name, file.bytes, file.path)


def _check_rows(numbered: Iterable[Input]) -> None:
    """Refuse files of two sources whose documents would have the same ids, FILE#ROW."""
    named: dict[str, Input] = {}
    for file in numbered:
        other = named.setdefault(file.name, file)
        if other.source != file.source:
            raise SourceError(
                f"{other.path} of --{other.source} and {file.path} of --{file.source}: both are called {file.name!r}, "
                "and so their documents would have the same ids; rename one of them"
            )


def units_of(inputs: Sequence[Input], options: ReadOptions = DEFAULTS) -> list[Unit]:
    """What the tasks of the first pass read: small inputs together, large ones in parts, to be located yet."""
    return group_units([part for file in inputs for part in _cut(file, options)])


def units_checksum(units: Iterable[Unit]) -> str:
    """What units of the same files have in common that cut them in the same places, and no others do."""
    return checksum_of(json.dumps([[(file.name, file.part) for file in unit.inputs] for unit in units]).encode())


def _cut(file: Input, options: ReadOptions) -> list[Input]:
    """The parts in which a file is read: a function of its size, its beginning, the options and nothing else."""
    if has_parts := SOURCES[file.source].has_parts:
        if file.bytes <= PART_BYTES:
            return [file]
        with files.open_raw(file.path) as raw:
            if not has_parts(raw, options):
                return [file]
    begins = range(0, file.bytes or 1, PART_BYTES)
    return [file._replace(part=Part(begin, min(begin + PART_BYTES, file.bytes))) for begin in begins]


def located(units: Iterable[Unit], note: Callable[[str], None]) -> list[Unit]:
    """The units with their parts moved to where files can be cut, and with the rows that are before each.

    Files of the formats that need it are read once, as they lie. A part may end up without bytes: a document is longer.

    Args:
        units: as units_of makes them.
        note: told of what takes a while.

    Raises:
        StorageError: a file can't be read, or has changed since it was found.
    """
    units = list(units)
    parts = [file for unit in units for file in unit.inputs if file.part and SOURCES[file.source].starts]
    moved: dict[Input, Input] = {}
    groups = [list(group) for _, group in groupby(parts, key=lambda file: (file.source, file.path))]
    size = sum(own[0].bytes for own in groups)
    if size > LARGE_BYTES:
        path, alone = groups[0][0].path, len(groups) == 1
        which = f"{path}: counting its" if alone else f"{counted(len(groups), 'file')}, such as {path}: counting their"
        note(f"{which} documents, which are named by their number: {size / 1e9:.1f} GB")
    for own in groups:
        source, path = own[0].source, own[0].path
        with files.open_raw(path) as raw:
            starts = SOURCES[source].starts
            assert starts is not None
            begins = list(starts(raw, [file.part.begin for file in own if file.part]))
        check_unchanged(own[:1])
        ends = [*(start.offset for start in begins[1:]), own[0].bytes]
        for file, start, end in zip(own, begins, ends, strict=True):
            moved[file] = file._replace(part=Part(start.offset, end, start.row))
    return [unit._replace(inputs=tuple(moved.get(file, file) for file in unit.inputs)) for unit in units]


def large_and_whole(units: Iterable[Unit], options: ReadOptions) -> list[Input]:
    """The large files of many documents that can't be read in parts, so that one worker reads all of each."""
    whole = (file for unit in units for file in unit.inputs if file.part is None)
    several = (file for file in whole if SOURCES[file.source].holds_several(options))
    return [file for file in several if text_bytes(file) > LARGE_BYTES]


def group_units(inputs: Sequence[Input]) -> list[Unit]:
    """Neighbouring small inputs of a source together, every other one alone."""
    groups: list[list[Input]] = []
    size, room = max(UNIT_BYTES, sum(map(text_bytes, inputs)) / MOST_UNITS), 0.0
    for file in inputs:
        if not groups or file.source != groups[-1][0].source or text_bytes(file) > room:
            groups.append([])
            room = size
        groups[-1].append(file)
        room -= text_bytes(file)
    return [Unit(number, tuple(group)) for number, group in enumerate(groups)]


def text_bytes(file: Input) -> float:
    """About how much plain text an input holds."""
    size = file.part.end - file.part.begin if file.part else file.bytes
    packed = next((share for ending, share in COMPRESSION.items() if file.name.endswith(ending)), 1.0)
    return size * packed * SOURCES[file.source].text_share
