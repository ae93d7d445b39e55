"""What an evaluation is given, checked before anything is computed: an export, shards, sentences."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pydantic
from tokenizers import Tokenizer

from eval.encoding import mask_places
from eval.errors import UsageError
from eval.readers.files import read_lines
from eval.results import Lineage
from eval.stamps import stamp
from eval.storage import reading
from preprocessing.schema import ShardDirectory, checksum, checksum_of
from preprocessing.status import is_file
from preprocessing.tokenization import (
    CONFIG_FILE,
    MASK,
    SPECIAL_TOKENS,
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    case_of,
    check_files,
    frame,
    load_settings,
    load_tokenizer,
    load_words,
    vocabulary_text,
)
from trainer.data import SampleStream, validation_stream
from trainer.hugging_face import LINEAGE, Export, load_export, weights_file
from trainer.initial_model import check_is_export
from trainer.model import BertConfig

# Of tokenizer_config.json, and of the normalizer in tokenizer.json.
_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
FEWEST = 2  # samples: one alone says nothing about its error


@dataclass(frozen=True)
class Checkpoint:
    """An export and what lies beside it.

    Attributes:
        path: its folder.
        export: the pretrained model.
        tokenizer: frames texts as BERT does, whatever its file says, and neither truncates nor pads.
        weights_blake2b: checksum of its weights' file.
        blake2b: of weights, configuration and tokenizer.
    """

    path: Path
    export: Export
    tokenizer: Tokenizer
    weights_blake2b: str
    blake2b: str

    @property
    def positions(self) -> int:
        """Tokens of the longest sequence that the model reads."""
        return self.export.config.max_position_embeddings

    @cached_property
    def lineage(self) -> dict[str, Any]:
        """Where it comes from; empty for one that another program wrote.

        Raises:
            UsageError: the file that says so is not JSON, of another kind, or not for this user to read.
            UnavailableError: it can't be read now.
        """
        return _read_lineage(self.path)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read an export and see that it is complete, and its parts of one model.

    One that is replaced meanwhile, as by a run that went back, is read again: its checksum is that of what was read.

    Raises:
        UsageError: something is missing, damaged or doesn't fit; the message says what to do.
        UnavailableError: something can't be read now.
    """
    while True:
        with reading(path):
            weights = weights_file(path)
            before = stamp(weights)
            checkpoint = _open(path, weights)
        if stamp(weights) == before:
            return checkpoint


def _open(path: Path, weights: Path) -> Checkpoint:
    _check_folder(path)
    with _as_usage_error():
        export, tokenizer = load_export(path), load_tokenizer(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _check_tokenizer(path, tokenizer, export.config)
    weights_blake2b = checksum(weights)
    whole = checksum_of(f"{weights_blake2b} {export.config} {tokenizer.to_str()}".encode())
    tokenizer.post_processor = frame(tokenizer.get_vocab())
    return Checkpoint(path, export, tokenizer, weights_blake2b, whole)


def _check_folder(path: Path) -> None:
    """Tell the folders that are often given instead of an export, and what to do about them."""
    with _as_usage_error():
        check_is_export(path)
    tokenizer, vocabulary = path / TOKENIZER_FILE, path / VOCABULARY_FILE
    if is_file(vocabulary) and not is_file(tokenizer):
        folder = repr(str(path))
        raise UsageError(
            f"{tokenizer}: no such file; transformers makes it from {vocabulary.name}: "
            f"AutoTokenizer.from_pretrained({folder}).save_pretrained({folder})"
        )


@contextmanager
def _as_usage_error() -> Iterator[None]:
    """What trainer and preprocessing say of files that are missing, damaged or not theirs."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def _check_tokenizer(path: Path, tokenizer: Tokenizer, config: BertConfig) -> None:
    file, vocabulary = path / TOKENIZER_FILE, tokenizer.get_vocab()
    if missing := [token for token in SPECIAL_TOKENS if token not in vocabulary]:
        raise UsageError(f"{file}: lacks the token {missing[0]}; give the tokenizer of a BERT")
    if (largest := max(vocabulary.values())) >= config.vocab_size:
        raise UsageError(
            f"{file}: has the id {largest}, but the model's vocabulary {config.vocab_size} entries; "
            "take tokenizer and weights of one model"
        )
    unknown = json.loads(tokenizer.to_str())["model"].get("unk_token")
    if unknown is not None and unknown not in vocabulary:
        raise UsageError(f"{file}: has the unk_token {unknown!r}, which its vocabulary lacks; set it to [UNK] there")
    number, count = Counter(vocabulary.values()).most_common(1)[0]
    if count > 1:
        one, other, *_ = sorted(token for token, i in vocabulary.items() if i == number)
        raise UsageError(f"{file}: gives {one!r} and {other!r} the same id {number}; copy the export anew")
    with _as_usage_error():
        check_files(path, added=True)
    _check_case(file, tokenizer, vocabulary)
    _check_settings(path, tokenizer)


def _check_case(file: Path, tokenizer: Tokenizer, vocabulary: Collection[str]) -> None:
    """See that a tokenizer lowers the case of words if, and only if, its vocabulary has no upper case."""
    case = case_of(vocabulary)
    lowers = tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str("A") == "a"
    if lowers and case == "cased":
        raise UsageError(f"{file}: lowers the case of words, but its vocabulary is cased; set lowercase to false there")
    if not lowers and case == "uncased":
        raise UsageError(
            f"{file}: keeps the case of words, but its vocabulary has no upper case; set lowercase to true there"
        )


def _check_settings(path: Path, tokenizer: Tokenizer) -> None:
    """See that transformers, which heeds tokenizer_config.json first, takes texts as the tokenizer does."""
    file, settings = path / CONFIG_FILE, load_settings(path)
    normalizer = json.loads(tokenizer.to_str())["normalizer"] or {}
    for theirs, ours in _SETTINGS.items():
        said, does = settings.get(theirs), normalizer.get(ours)
        # Without a word on accents they go where upper case goes.
        one, other = (normalizer.get("lowercase") if value is None else value for value in (said, does))
        if theirs in settings and ours in normalizer and one != other:
            raise UsageError(
                f"{file}: has {theirs} {json.dumps(said)}, but {TOKENIZER_FILE} beside it {ours} {json.dumps(does)}; "
                "set both to the same"
            )


def check_heads(checkpoint: Checkpoint, task: str, heads: tuple[str, ...]) -> None:
    """See that the heads that a task uses, by the prefixes of their parameters, were trained.

    Raises:
        UsageError: one was not.
    """
    if missing := [name for name in checkpoint.export.initialized if name.startswith(heads)]:
        raise UsageError(
            f"{weights_file(checkpoint.path)}: lacks {missing[0]}, which {task} needs; "
            "give an export of the pretrained model with its heads"
        )


def _read_lineage(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / LINEAGE
    with reading(path):
        if not is_file(path):
            return {}
        content = path.read_bytes()
    try:
        lineage = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({error}); copy the export anew") from error
    if not isinstance(lineage, dict):
        raise UsageError(f"{path}: not a JSON object; copy the export anew")
    try:
        Lineage.model_validate(lineage, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc']))} is {first['input']!r}, not as an export of ours has it"
        raise UsageError(f"{path}: {wrong}; delete the file") from error
    return lineage


def open_stream(shards: Path | None, checkpoint: Checkpoint, asked: int | None) -> SampleStream:
    """The held-out samples, made with the export's vocabulary and no longer than its model reads.

    Args:
        shards: a shard directory.
        checkpoint: the export.
        asked: the sequence length; None for the longest that there is and that fits.

    Raises:
        UsageError: no shards, incomplete ones, ones without held-out samples or with damaged ones, of another
            vocabulary or too long.
        UnavailableError: they can't be read now.
    """
    if shards is None:
        raise UsageError("the tasks read held-out samples; give the shards with --shards")
    with _as_usage_error():
        directory, words = ShardDirectory(shards), load_words(checkpoint.path)
    if checksum_of(vocabulary_text(words).encode()) != directory.manifest.vocabulary.blake2b:
        listed = is_file(checkpoint.path / VOCABULARY_FILE)  # unlike in what transformers 5 saves
        vocabulary = checkpoint.path / (VOCABULARY_FILE if listed else TOKENIZER_FILE)
        raise UsageError(f"{shards}: made with another vocabulary than {vocabulary}; give shards made with that one")
    length = choose_length(asked, directory.manifest.sequence_lengths, checkpoint.positions)
    with _as_usage_error():
        stream = validation_stream(directory, length, checkpoint.export.config.is_decoder)
        directory.verify("validation")  # the results will name these bytes by their manifest
    if stream.size < FEWEST:
        raise UsageError(f"{shards}: {stream.size} held-out sample is too few for an estimate; hold out more documents")
    return stream


def choose_length(asked: int | None, lengths: Sequence[int], positions: int) -> int:
    """The sequence length to evaluate at: as asked, else the longest of the shards' that the model can read.

    Raises:
        UsageError: longer than the model has positions.
    """
    fitting = [length for length in ([asked] if asked else lengths) if length <= positions]
    if not fitting:
        raise UsageError(
            f"sequences of {asked or min(lengths)} tokens, but the model has {positions} positions; "
            "give shorter ones by --sequence-length, which the shards must have"
        )
    return max(fitting)


def list_sentences(path: Path) -> list[tuple[int, str]]:
    """The lines of a file that are not empty, with their numbers from 1.

    Raises:
        UsageError: can't be read.
    """
    lines = enumerate(read_lines(path), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def read_sentences(path: Path, checkpoint: Checkpoint) -> list[str]:
    """The sentences of a file, one a line; empty lines are skipped.

    Raises:
        UsageError: can't be read, holds no sentence, one without [MASK], or one longer than the model reads.
    """
    numbered = list_sentences(path)
    if not numbered:
        raise UsageError(f"{path}: no sentences; write one a line, with {MASK} in it")
    for number, sentence in numbered:
        if MASK not in sentence:
            raise UsageError(f"{path}: line {number} has no {MASK}; write it where a word is to be guessed")
        check_sentence(sentence, checkpoint, f"{path}: line {number}")
    return [sentence for _, sentence in numbered]


def check_sentence(sentence: str, checkpoint: Checkpoint, where: str) -> None:
    """See that a model can fill the masks of a sentence, whose place is named by ``where``.

    Raises:
        UsageError: it is longer than the model reads, or its masks are words to the tokenizer.
    """
    encoding = checkpoint.tokenizer.encode(sentence)
    if len(encoding) > checkpoint.positions:
        raise UsageError(f"{where} has {len(encoding)} tokens, but the model {checkpoint.positions} positions")
    if not mask_places(checkpoint.tokenizer, encoding):
        file = checkpoint.path / TOKENIZER_FILE
        raise UsageError(f"{file}: takes the {MASK} of a sentence for words; add it to added_tokens there")
