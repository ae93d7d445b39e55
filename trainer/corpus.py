"""The shard directories of a run: opened, of one vocabulary, what identifies them together, and their samples."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from preprocessing.schema import (
    Manifest,
    ShardDirectory,
    ShardEntry,
    ShardError,
    Vocabulary,
    checksum,
    checksum_of,
)
from preprocessing.status import is_file
from preprocessing.storage_errors import UnavailableError
from trainer.config import Phase, Recipe
from trainer.credentials import without_credentials
from trainer.data import SampleStream
from trainer.files import in_threads
from trainer.loading import LoaderError
from trainer.naming import name_some, tell_apart
from trainer.shard_cache import cached
from trainer.world import World

_log = logging.getLogger("pretrain")


@dataclass(frozen=True)
class Corpus:
    """Shard directories of one vocabulary.

    Attributes:
        directories: in the order in which they were named.
        sources: what they were named by, paths or URLs without credentials; with a cache the directories lie elsewhere.
        manifest: a single directory's manifest.json as it lies; of several, JSON with every one of them in order.
        manifest_blake2b: the checksum of ``manifest``, which names every shard's checksum: the identity of the data.
    """

    directories: list[ShardDirectory]
    sources: Sequence[str]
    manifest: str
    manifest_blake2b: str

    @property
    def name(self) -> str:
        """The directories, for messages."""
        return ", ".join(self.sources)

    def source(self, directory: ShardDirectory) -> str:
        """What one of the directories was named by."""
        return self.sources[self.directories.index(directory)]

    def short_name(self, directory: ShardDirectory) -> str:
        """The end of the path or URL that it was named by, as short as no other directory has it."""
        return self._short_names[self.directories.index(directory)]

    @cached_property
    def _short_names(self) -> list[str]:
        paths = [Path(os.path.abspath(source)) for source in self.sources]  # noqa: PTH100  of a link
        names = tell_apart(paths)
        return [names[path] for path in paths]

    @property
    def vocabulary(self) -> Vocabulary:
        """Which vocabulary made the tokens."""
        return self.directories[0].manifest.vocabulary

    @property
    def tokenizer(self) -> Path:
        """The folder of tokenizer files."""
        return self.directories[0].tokenizer

    def verify(self, world: World) -> None:
        """Compare every shard's checksum with its manifest: each rank those of its share.

        Raises:
            ShardError: on every rank; names the damaged shards, those that are gone included.
            LoaderError: on every rank; the storage of one fails.
        """
        shards = [(directory, entry) for directory in self.directories for entry in directory.manifest.shards]
        mine = in_threads(lambda shard: _problem(*shard), shards[world.rank :: world.size])
        of_ranks = world.gather(mine)
        problems = [of_ranks[i % world.size][i // world.size] for i in range(len(shards))]
        files = [str(directory.path / entry.file) for directory, entry in shards]
        wrong = {file: each for file, each in zip(files, problems, strict=True) if isinstance(each, ShardError)}
        if wrong:
            first, *others = wrong
            raise ShardError(f"{wrong[first]}{f'; also wrong: {name_some(others)}' if others else ''}")
        if failing := next(filter(None, problems), None):
            raise LoaderError(str(failing))


def open_corpus(sources: Sequence[str], cache: Path | None = None, verify: bool = True) -> Corpus:
    """Open shard directories, after copying them to a node's own disk where a cache is given.

    Args:
        sources: directories; with a cache, URLs of any kind that fsspec knows too.
        cache: see trainer.shard_cache.cache_folder; None for none.
        verify: compare the checksums of shards that the cache has from before; see trainer.shard_cache.cached.

    Raises:
        ShardError: a directory can't be opened or copied, has another vocabulary than the first, or is named twice.
        UnavailableError: the storage of one fails, maybe for a moment only.
    """
    directories = [_open(source, cache, verify) for source in sources]
    sources = [*map(without_credentials, sources)]  # from here on they are for people's eyes
    checksums = [directory.manifest_blake2b for directory in directories]
    for i, (source, directory) in enumerate(zip(sources, directories, strict=True)):
        if checksums[i] in checksums[:i]:
            twice = sources[checksums.index(checksums[i])]
            raise ShardError(f"{twice} and {source} are the same shards; name them once, data.weights says how often")
        if directory.manifest.vocabulary != directories[0].manifest.vocabulary:
            raise ShardError(
                f"{sources[0]} and {source} were made with different vocabularies; make one again with the other's"
            )
    manifests = [directory.manifest_text for directory in directories]
    text = manifests[0] if len(manifests) == 1 else _together(checksums, manifests)
    return Corpus(directories, sources, text, checksum_of(text.encode()))


def as_begun(corpus: Corpus, manifest: Path) -> Corpus:
    """A corpus by the manifest of the run that was begun with it, where its shards were made again since.

    Other versions may make the same bytes, and figures of a --contamination add to a manifest alone; so it has another
    checksum, though nothing is trained otherwise.

    Args:
        corpus: as it is now.
        manifest: of a run, which may be a new one, or on other shards.
    """
    if not is_file(manifest) or checksum_of(content := manifest.read_bytes()) == corpus.manifest_blake2b:
        return corpus
    with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):  # damaged, as check_run tells
        told = json.loads(content)
        begun = [each["manifest"] for each in told["directories"]] if "directories" in told else [told]
        if [_data(Manifest.from_json(json.dumps(each))) for each in begun] == [
            _data(directory.manifest) for directory in corpus.directories
        ]:
            _log.info("%s: made again with the same content as when the run was started", corpus.name)
            return replace(corpus, manifest=content.decode(), manifest_blake2b=checksum_of(content))
    return corpus


def _data(manifest: Manifest) -> tuple[object, ...]:
    """What of a manifest something is trained by."""
    ordered_by = manifest.duplicates, manifest.next_sentence, manifest.sequence_lengths
    return manifest.shards, manifest.vocabulary, ordered_by


def train_stream(recipe: Recipe, phase: Phase, shards: Corpus) -> SampleStream:
    """The training samples of a phase. Phases of one length read one stream, each on from where the last one ended."""
    of_length = [each for each in recipe.phases if each.sequence_length == phase.sequence_length]
    return SampleStream(
        shards.directories,
        "train",
        phase.sequence_length,
        seed=recipe.train.seed,
        max_predictions=phase.max_predictions,
        masking=recipe.masking,
        data=recipe.data,
        stretches=[(each.samples, each.weights or recipe.data.weights) for each in of_length],
        causal=recipe.model.is_decoder,
    )


def directory_checksums(manifest: Path) -> list[str]:
    """The checksum of each directory's own manifest, from a file that holds a Corpus's ``manifest``.

    Raises:
        ShardError: the file is damaged.
    """
    try:
        told = json.loads(manifest.read_bytes())
        if "directories" not in told:
            return [checksum(manifest)]
        return [directory["manifest_blake2b"] for directory in told["directories"]]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ShardError(f"{manifest}: damaged ({error}); put the manifest of the run's shards there") from error


def _open(source: str, cache: Path | None, verify: bool) -> ShardDirectory:
    if cache:
        return cached(source, cache, verify)
    if "://" in source:
        told = without_credentials(source)
        raise ShardError(f"{told}: not a local directory; set data.cache_dir to one where it is copied to")
    return ShardDirectory(source)


def _together(checksums: Sequence[str], manifests: Sequence[str]) -> str:
    """The manifests of several directories as one document."""
    both = zip(checksums, manifests, strict=True)
    directories = [{"manifest_blake2b": blake2b, "manifest": json.loads(text)} for blake2b, text in both]
    return json.dumps({"directories": directories}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _problem(directory: ShardDirectory, entry: ShardEntry) -> ShardError | UnavailableError | None:
    """What is wrong with a shard, if anything is."""
    try:
        directory.verify_shard(entry)
    except (ShardError, UnavailableError) as error:
        return error
    return None
