"""Look into a shard directory: the command.

    python -m preprocessing.inspect shards/                               what the manifest says, as tables
    python -m preprocessing.inspect shards/ --sample 5                    some pairs, decoded
    python -m preprocessing.inspect shards/ --histograms figures/         lengths and unknown tokens, as PNG
    python -m preprocessing.inspect shards/ --verify                      read everything, compare checksums

Needs neither Beam nor the corpus. Memory does not grow with the number of documents.
"""

from __future__ import annotations

import sys
from pathlib import Path

# As in make_shards.py: run by its path, this would take our inspect.py for the standard library's.
if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from preprocessing.command_line import OneLineParser, parse_path, whole_number
from preprocessing.extras import needs
from preprocessing.markdown import markdown_table
from preprocessing.schema import (
    MANIFEST,
    Manifest,
    Pairs,
    Shard,
    ShardDirectory,
    ShardError,
    Split,
    reading,
)
from preprocessing.status import is_file
from preprocessing.storage_errors import UnavailableError, exit_code, is_passing, reason
from preprocessing.terminal import in_line, print_result, tell_error
from preprocessing.tokenization import (
    VOCABULARY_FILE,
    VocabularyError,
    load_tokenizer,
    load_vocabulary,
    tokenizer_files,
)

# --- Tables ---


def describe(manifest: Manifest) -> Iterator[str]:
    """The manifest in paragraphs."""
    statistics = manifest.statistics
    yield "\n".join(f"{name:<16}{in_line(value)}" for name, value in _overview(manifest))
    yield _table(_by_source(statistics["sources"]))
    passed_over = list(_passed_over(statistics["sources"]))
    if passed_over:
        yield _table([["passed over", "reason", "number"], *passed_over])
    yield _table(_by_length(manifest))
    yield _table(_by_split(manifest))


def _table(rows: Iterable[Sequence[str]]) -> str:
    """All columns but the first are numbers."""
    cells = list(rows)
    return markdown_table(cells, numbers=range(1, len(cells[0]))).rstrip("\n")


def _overview(manifest: Manifest) -> Iterator[tuple[str, str]]:
    statistics, vocabulary = manifest.statistics, manifest.vocabulary
    size = sum(entry.bytes for entry in manifest.shards)
    yield "made by", ", ".join(f"{name} {version}" for name, version in sorted(manifest.created_by.items()))
    yield "vocabulary", f"{vocabulary.size:,} entries, {'uncased' if vocabulary.lowercase else 'cased'}"
    yield "seed", str(manifest.seed)
    yield "documents", f"{sum(entry.rows for entry in manifest.shards):,}"
    yield "sentences", f"{statistics['sentences']:,}"
    yield "tokens", f"{statistics['tokens']:,}"
    if "words" in statistics:  # which earlier shards don't have
        yield "tokens a word", f"{statistics['tokens'] / max(1, statistics['words']):.3f}"
    yield "unknown tokens", f"{statistics['unknown_rate']:.4%}"
    yield "bytes", f"{size:,} ({size / max(1, statistics['tokens']):.2f} a token)"


def _by_source(sources: dict[str, dict[str, Any]]) -> Iterator[list[str]]:
    yield ["source", "documents", "sentences", "tokens", "share", "tokens a document", "characters read", "unknown"]
    total = max(1, sum(source["tokens"] for source in sources.values()))
    for name, source in sources.items():
        documents, tokens = max(1, source["documents"]), max(1, source["tokens"])
        yield [
            name,
            *(f"{source[each]:,}" for each in ("documents", "sentences", "tokens")),
            f"{source['tokens'] / total:.1%}",
            f"{source['tokens'] / documents:,.0f}",
            f"{source['characters']:,}",
            f"{source['unknown'] / tokens:.4%}",
        ]


def _passed_over(sources: dict[str, dict[str, Any]]) -> Iterator[list[str]]:
    for name, source in sources.items():
        for why, count in source["skipped"].items():
            yield [name, why, f"{count:,}"]
        if source["collisions"]:
            yield [name, "older version of a document (same id)", f"{source['collisions']:,}"]
        for what, count in source.get("repeated", {}).items():
            if count:
                yield [name, f"repeated {what}", f"{count:,}"]


def _by_length(manifest: Manifest) -> Iterator[list[str]]:
    yield ["pairs of", "split", "pairs", "B is next", "tokens in no pair"]
    for length, splits in sorted(manifest.statistics["pairs"].items(), key=lambda item: int(item[0])):
        for split, counts in splits.items():
            is_next = f"{counts['is_next_rate']:.1%}" if manifest.next_sentence else "no B"
            unreached = f"{counts['unreached_tokens']:,}" if "unreached_tokens" in counts else "?"  # of earlier shards
            yield [length, split, f"{counts['pairs']:,}", is_next, unreached]


def _by_split(manifest: Manifest) -> Iterator[list[str]]:
    yield ["split", "shards", "documents", "tokens", "bytes"]
    splits: tuple[Split, ...] = ("train", "validation")
    for split in splits:
        entries = manifest.split(split)
        counts = (sum(getattr(entry, name) for entry in entries) for name in ("rows", "tokens", "bytes"))
        yield [split, str(len(entries)), *(f"{count:,}" for count in counts)]


# --- Pairs ---


class Sampled(NamedTuple):
    """One pair of a shard."""

    shard: str
    doc_id: str
    sequence_length: int
    is_next: bool
    a: np.ndarray  # ids, without special tokens
    b: np.ndarray  # empty: a single segment


def sample(shards: ShardDirectory, count: int, split: Split, seed: int) -> Iterator[Sampled]:
    """So many pairs of each sequence length, drawn evenly from a split; one that has fewer gives all.

    Raises:
        ShardError: a damaged shard.
    """
    entries = shards.manifest.split(split)
    for length in shards.manifest.sequence_lengths:
        ends = np.cumsum([entry.pairs[str(length)] for entry in entries], dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        chosen = np.random.default_rng([seed, length]).choice(total, size=min(count, total), replace=False)
        for number in chosen.tolist():
            place = int(np.searchsorted(ends, number, side="right"))
            shard = shards.shard(entries[place])
            begin = int(ends[place - 1]) if place else 0
            found = _sampled(shard, length, shard.pairs(length, np.array([number - begin])))
            if np.concatenate([found.a, found.b]).max() >= shards.manifest.vocabulary.size:
                raise shard.wrong("a token that the vocabulary does not have")
            yield found


def _sampled(shard: Shard, length: int, pair: Pairs) -> Sampled:
    [(a, b)] = shard.segments(pair, length)
    doc_id = shard.text("doc_id")[int(pair.row[0])].as_py()
    return Sampled(shard.path.name, doc_id, length, bool(pair.is_next[0]), a, b)


def tell_pairs(pairs: Iterable[Sampled], tokenizer: Any) -> Iterator[str]:
    """Pairs as text."""
    for pair in pairs:
        label = "single" if not len(pair.b) else "is next" if pair.is_next else "random"
        told = f"{label}, {len(pair.a)} + {len(pair.b)} tokens for {pair.sequence_length}"
        yield f"{told}: {in_line(pair.doc_id)} in {pair.shard}"
        for name, segment in (("A", pair.a), ("B", pair.b)):
            if len(segment):
                yield f"  {name}: {in_line(tokenizer.decode(segment.tolist(), skip_special_tokens=False))}"
        yield ""


# --- The command ---


def parser() -> OneLineParser:
    """The parser of the command line."""
    parser = OneLineParser(
        prog="python -m preprocessing.inspect",
        description="Show what a shard directory holds: its manifest and statistics as tables, and what is asked for "
        "beside them.",
    )
    parser.add_argument(
        "directory", type=parse_path, metavar="DIR", help="a finished shard directory, as make_shards writes it"
    )
    parser.add_argument(
        "--sample",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="show N pairs of each sequence length as text",
    )
    parser.add_argument("--split", choices=["train", "validation"], help="which pairs --sample shows (default: train)")
    parser.add_argument(
        "--seed", type=whole_number(0), metavar="N", help="another one draws other pairs for --sample (default: 0)"
    )
    parser.add_argument(
        "--histograms",
        type=parse_path,
        metavar="FOLDER",
        help="draw histograms of lengths and of unknown tokens there, as PNG",
    )
    parser.add_argument(
        "--verify", action="store_true", help="read every shard, and compare its checksum with the manifest's"
    )
    return parser


def run(argv: Sequence[str]) -> None:
    """Print what is asked for; see --help.

    Raises:
        ShardError: no finished shards there, or damaged ones.
        VocabularyError: a damaged tokenizer.
        UnavailableError: one of both can't be read, or a histogram written, now.
    """
    ours = parser()
    found = ours.parse_args(argv)
    if not found.sample and (found.split or found.seed is not None):
        ours.error("--split and --seed say which pairs --sample decodes; give --sample N too, or leave them out")
    shards = ShardDirectory(found.directory)
    if found.verify:  # first, as what else is asked for trusts what it reads
        shards.verify()
        _verify_tokenizer(shards)
    try:
        told = "\n\n".join(describe(shards.manifest))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ShardError(
            f"{shards.path / MANIFEST}: its statistics are not those of a job ({error!r}); make the shards again"
        ) from error
    _show(told)
    if found.sample:
        split: Split = found.split or "train"
        pairs = sample(shards, found.sample, split, found.seed or 0)
        told_pairs = list(tell_pairs(pairs, load_tokenizer(shards.tokenizer)))
        _show("", *(told_pairs or [f"No pair of {split} to show: these shards have none."]))
    if found.histograms:
        with needs("preprocess"):
            from preprocessing.histograms import count_all, draw  # only here is matplotlib needed
        try:
            drawn = draw(count_all(shards), found.histograms)
        except OSError as error:
            told = f"--histograms {found.histograms}: can't write there ({reason(error)})"
            if not is_passing(error):
                ours.error(f"{told}; name a folder")
            raise UnavailableError(f"{told}; give the same command again") from error
        _show("\nDrawn:", *(f"  {in_line(str(path))}" for path in drawn))
    if found.verify:
        _show(f"\nVerified: the checksums of {len(shards.manifest.shards)} shards are those of the manifest.")


def _show(*lines: str) -> None:
    """Print, or end with exit code 2 where it is lost, such as on a full disk."""
    if code := print_result("\n".join(lines)):
        raise SystemExit(code)


def _verify_tokenizer(shards: ShardDirectory) -> None:
    """Compare the tokenizer's files with what its vocabulary makes by the library that made them.

    Raises:
        ShardError, UnavailableError: one differs, or can't be read.
    """
    if shards.manifest.created_by.get("tokenizers") != version("tokenizers"):
        return
    words = load_vocabulary(shards.tokenizer / VOCABULARY_FILE)
    for name, content in tokenizer_files(words, shards.manifest.vocabulary.lowercase).items():
        path = shards.tokenizer / name
        with reading(path):
            same = is_file(path) and path.read_bytes() == content
        if not same:
            raise ShardError(f"{path}: not what the shards were made with; make the shards again")


def main(argv: Sequence[str] | None = None) -> None:
    """The command: errors in one line, exit code 2 for the user's and 1 for those of storage."""
    try:
        run(sys.argv[1:] if argv is None else argv)
    except (ShardError, VocabularyError, UnavailableError) as error:
        tell_error(error, "inspect")
        raise SystemExit(exit_code(error)) from error


if __name__ == "__main__":
    main()
