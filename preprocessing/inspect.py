"""Look into a shard directory: the command.

    python -m preprocessing.inspect shards/                               what the manifest says, as tables
    python -m preprocessing.inspect shards/ --sample 5                    some pairs, decoded
    python -m preprocessing.inspect shards/ --histograms figures/         lengths and unknown tokens, as PNG
    python -m preprocessing.inspect shards/ --verify                      read everything, compare checksums

Needs neither Beam nor the corpus. Memory does not grow with the number of documents.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from preprocessing.schema import (
    MANIFEST,
    SPECIAL_TOKENS_OF_A_PAIR,
    SPECIAL_TOKENS_OF_A_SINGLE,
    Manifest,
    Pairs,
    Shard,
    ShardDirectory,
    ShardError,
    Split,
)
from preprocessing.shards import count_by_row
from preprocessing.tokenization import VOCABULARY_FILE, VocabularyError, load_tokenizer, load_vocabulary, special_ids

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTH_BINS = np.geomspace(1, 2**31, 31 * 4 + 1)  # of documents: four to each doubling
UNKNOWN_BINS = np.array([0, 1e-10, 1e-4, 1e-3, 1e-2, 1e-1, 1])
UNKNOWN_LABELS = ("none", "to 0.01%", "to 0.1%", "to 1%", "to 10%", "more")
DOCUMENTS, PAIRS, UNKNOWN = "document_length.png", "pair_length.png", "unknown_share.png"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: for all eyes
_STYLE = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "legend.frameon": False,
}


# --- Tables ---


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table that can be read as it is; all columns but the first are numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [f"{cell:<{width}}" if not column else f"{cell:>{width}}" for column, (cell, width) in
                 enumerate(zip(row, widths, strict=True))]  # fmt: skip
        return f"| {' | '.join(cells)} |"

    rule = ["-" * width if not column else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join([line(rows[0]), line(rule), *map(line, rows[1:])])


def describe(manifest: Manifest) -> Iterator[str]:
    """The manifest in paragraphs."""
    statistics = manifest.statistics
    yield "\n".join(f"{name:<16}{value}" for name, value in _overview(manifest))
    yield table(list(_by_source(statistics["sources"])))
    passed_over = list(_passed_over(statistics["sources"]))
    if passed_over:
        yield table([["passed over", "reason", "number"], *passed_over])
    yield table(list(_by_length(statistics["pairs"])))
    yield table(list(_by_split(manifest)))


def _overview(manifest: Manifest) -> Iterator[tuple[str, str]]:
    statistics, vocabulary = manifest.statistics, manifest.vocabulary
    size = sum(entry.bytes for entry in manifest.shards)
    yield "made by", ", ".join(f"{name} {version}" for name, version in sorted(manifest.created_by.items()))
    yield "vocabulary", f"{vocabulary.size:,} entries, {'uncased' if vocabulary.lowercase else 'cased'}"
    yield "seed", str(manifest.seed)
    yield "documents", f"{sum(entry.rows for entry in manifest.shards):,}"
    yield "sentences", f"{statistics['sentences']:,}"
    yield "tokens", f"{statistics['tokens']:,}"
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
        for reason, count in source["skipped"].items():
            yield [name, reason, f"{count:,}"]
        if source["collisions"]:
            yield [name, "older version of a document (same id)", f"{source['collisions']:,}"]
        for what, count in source.get("repeated", {}).items():
            if count:
                yield [name, f"repeated {what}", f"{count:,}"]


def _by_length(pairs: dict[str, dict[str, Any]]) -> Iterator[list[str]]:
    yield ["pairs of", "split", "pairs", "B is next", "tokens in no pair"]
    for length, splits in pairs.items():
        for split, counts in splits.items():
            unreached = f"{counts['unreached_tokens']:,}" if "unreached_tokens" in counts else "?"  # of earlier shards
            yield [length, split, f"{counts['pairs']:,}", f"{counts['is_next_rate']:.1%}", unreached]


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
    """So many pairs of each sequence length, drawn evenly from a split; one that has fewer gives all."""
    entries = shards.manifest.split(split)
    for length in shards.manifest.sequence_lengths:
        ends = np.cumsum([entry.pairs[str(length)] for entry in entries], dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        chosen = np.random.default_rng([seed, length]).choice(total, size=min(count, total), replace=False)
        for number in chosen.tolist():
            place = int(np.searchsorted(ends, number, side="right"))
            shard = shards.shard(entries[place])
            begin = int(ends[place - 1]) if place else 0
            yield _sampled(shard, length, shard.pairs(length, np.array([number - begin])))


def _sampled(shard: Shard, length: int, pair: Pairs) -> Sampled:
    row, b_row = int(pair.row[0]), int(pair.b_row[0])
    return Sampled(
        shard=shard.path.name,
        doc_id=shard.table.column("doc_id")[row].as_py(),
        sequence_length=length,
        is_next=bool(pair.is_next[0]),
        a=shard.document(row)[pair.a_begin[0] : pair.a_end[0]],
        b=shard.document(b_row)[pair.b_begin[0] : pair.b_end[0]],
    )


def tell_pairs(pairs: Iterable[Sampled], tokenizer: Any) -> Iterator[str]:
    """Pairs as text."""
    for pair in pairs:
        label = "single" if not len(pair.b) else "is next" if pair.is_next else "random"
        yield f"{label}, {len(pair.a)} + {len(pair.b)} tokens for {pair.sequence_length}: {pair.doc_id} in {pair.shard}"
        yield f"  A: {tokenizer.decode(pair.a.tolist(), skip_special_tokens=False)}"
        if len(pair.b):
            yield f"  B: {tokenizer.decode(pair.b.tolist(), skip_special_tokens=False)}"
        yield ""


# --- Histograms ---


def _counter() -> dict[str, np.ndarray]:
    return defaultdict(lambda: np.zeros(0, dtype=np.int64))


@dataclass
class Histograms:
    """What the shards hold, counted.

    Attributes:
        document_lengths: source -> documents by LENGTH_BINS of tokens.
        unknown_shares: source -> documents by UNKNOWN_BINS of their share of unknown tokens.
        pair_lengths: sequence length -> pairs by number of tokens, special ones included, [sequence length + 1].
        sums: totals by name, for the means that the figures tell.
    """

    document_lengths: dict[str, np.ndarray] = field(default_factory=_counter)
    unknown_shares: dict[str, np.ndarray] = field(default_factory=_counter)
    pair_lengths: dict[int, np.ndarray] = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)

    def add(self, shard: Shard, sequence_lengths: Iterable[int], unknown_id: int) -> None:
        """Count a shard."""
        lengths = np.diff(shard.token_offsets)
        unknown = count_by_row(shard.tokens, shard.token_offsets, unknown_id)
        sources = np.array(shard.table.column("source").to_pylist())
        for source in sorted(set(sources.tolist())):
            own = sources == source
            _add(self.document_lengths, source, np.histogram(lengths[own], LENGTH_BINS)[0])
            _add(self.unknown_shares, source, np.histogram(unknown[own] / lengths[own], UNKNOWN_BINS)[0])
            self.sums.update(
                {f"tokens/{source}": int(lengths[own].sum()), f"unknown/{source}": int(unknown[own].sum())}
            )
        for length in sequence_lengths:
            pairs = shard.pairs(length)
            b = pairs.b_end - pairs.b_begin
            special = np.where(b > 0, SPECIAL_TOKENS_OF_A_PAIR, SPECIAL_TOKENS_OF_A_SINGLE)
            counts = np.bincount(pairs.a_end - pairs.a_begin + b + special, minlength=length + 1)
            self.pair_lengths[length] = self.pair_lengths.get(length, 0) + counts


def _add(counts: dict[str, np.ndarray], name: str, more: np.ndarray) -> None:
    counts[name] = counts[name] + more if len(counts[name]) else more


def count_all(shards: ShardDirectory) -> Histograms:
    """Read every shard and count."""
    histograms = Histograms()
    unknown_id = special_ids(load_vocabulary(shards.tokenizer / VOCABULARY_FILE)).unknown
    for entry in shards.manifest.shards:
        histograms.add(shards.shard(entry), shards.manifest.sequence_lengths, unknown_id)
    return histograms


def draw(histograms: Histograms, folder: Path) -> list[Path]:
    """Draw the histograms into a folder; returns the files."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, fill in ((DOCUMENTS, _draw_documents), (PAIRS, _draw_pairs), (UNKNOWN, _draw_unknown)):
        with mpl.rc_context(_STYLE):
            figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
            FigureCanvasAgg(figure)
            fill(figure.add_subplot(), histograms)
            drawn.append(folder / name)
            figure.savefig(drawn[-1])
    return drawn


def _steps(axes: Axes, edges: np.ndarray, series: dict[str, np.ndarray]) -> None:
    """Some histograms as outlines over each other, each as shares of its own whole."""
    for colour, (label, counts) in zip(_COLOURS * len(series), series.items(), strict=False):
        shares = counts / max(1, counts.sum())
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.15)
        axes.stairs(shares, edges, color=colour, linewidth=1.8, label=label)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _percent(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))
    axes.grid(axis="x", visible=False)


def _draw_documents(axes: Axes, histograms: Histograms) -> None:
    from matplotlib.ticker import FuncFormatter

    series = {
        f"{source}\n{counts.sum():,} documents,\n{histograms.sums[f'tokens/{source}'] / counts.sum():,.0f} tokens each":
        counts for source, counts in sorted(histograms.document_lengths.items())
    }  # fmt: skip
    used = np.flatnonzero(sum(series.values()))
    low, high = used[0], used[-1] + 1
    _steps(axes, LENGTH_BINS[low : high + 1], {label: counts[low:high] for label, counts in series.items()})
    axes.set_xscale("log")
    axes.set(title="Length of documents", xlabel="tokens", ylabel="share of the source's documents")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _percent(axes)


def _draw_pairs(axes: Axes, histograms: Histograms) -> None:
    series = {}
    for length, counts in sorted(histograms.pair_lengths.items()):
        bins = np.add.reduceat(counts, np.linspace(0, length + 1, 33).astype(int)[:-1])
        label = f"for {length}\n{counts.sum():,} pairs,\n{counts[-1] / max(1, counts.sum()):.0%} of full length"
        series[label] = bins
    _steps(axes, np.linspace(0, 1, 33), series)
    axes.set_yscale("log")
    axes.set(title="Length of pairs", xlabel="length, as a share of the sequence length", ylabel="share of the pairs")
    _percent(axes)
    axes.set_xlim(0, 1)
    axes.set_ylim(1e-4, 1)
    axes.xaxis.set_major_formatter(axes.yaxis.get_major_formatter())


def _draw_unknown(axes: Axes, histograms: Histograms) -> None:
    width = 0.8 / max(1, len(histograms.unknown_shares))
    for number, (source, counts) in enumerate(sorted(histograms.unknown_shares.items())):
        of_all = histograms.sums[f"unknown/{source}"] / histograms.sums[f"tokens/{source}"]
        places = np.arange(len(counts)) + (number + 0.5) * width - 0.4
        label = f"{source}\n{of_all:.4%} of all tokens"
        bars = axes.bar(
            places, counts / counts.sum(), width * 0.92, label=label, color=_COLOURS[number % len(_COLOURS)]
        )
        axes.bar_label(bars, ["", *(f"{count:,}" if count else "" for count in counts[1:])], fontsize=9, padding=1)
    axes.set_yscale("log")
    axes.set_ylim(1e-4, 2)
    axes.set_xticks(np.arange(len(UNKNOWN_LABELS)), UNKNOWN_LABELS)
    axes.set(title="Unknown tokens", xlabel="share of a document's tokens", ylabel="share of the source's documents")
    _percent(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


# --- The command ---


def _count(text: str) -> int:
    """An argparse type: a whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m preprocessing.inspect",
        description="What a shard directory holds: its manifest and statistics as tables.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", help="a finished shard directory")
    parser.add_argument("--sample", type=_count, default=0, metavar="N", help="decode N pairs of each sequence length")
    parser.add_argument("--split", choices=["train", "validation"], default="train", help="which pairs to decode")
    parser.add_argument("--seed", type=_count, default=0, metavar="N", help="of the sample (default: %(default)s)")
    parser.add_argument("--histograms", type=Path, metavar="FOLDER", help="draw histograms there, as PNG")
    parser.add_argument("--verify", action="store_true", help="read every shard and compare its checksum")
    return parser


def run(argv: Sequence[str]) -> None:
    """Print what is asked for; see --help.

    Raises:
        ShardError: no finished shards there, or damaged ones.
        VocabularyError: a damaged tokenizer.
    """
    ours = parser()
    found = ours.parse_args(argv)
    shards = ShardDirectory(found.directory)
    try:
        print("\n\n".join(describe(shards.manifest)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ShardError(
            f"{shards.path / MANIFEST}: its statistics are not those of a job ({error!r}); make the shards again"
        ) from error
    if found.sample:
        tokenizer = load_tokenizer(shards.tokenizer)
        print()
        print(*tell_pairs(sample(shards, found.sample, found.split, found.seed), tokenizer), sep="\n")
    if found.histograms:
        try:
            print("\nDrawn:", *draw(count_all(shards), found.histograms), sep="\n  ")
        except OSError as error:
            ours.error(f"--histograms {found.histograms}: can't write there ({error.strerror}); name a folder")
    if found.verify:
        shards.verify()
        print(f"\nVerified: the checksums of {len(shards.manifest.shards)} shards are those of the manifest.")


def main(argv: Sequence[str] | None = None) -> None:
    """The command: errors of the user's in one line, exit code 2."""
    try:
        run(sys.argv[1:] if argv is None else argv)
    except (ShardError, VocabularyError) as error:
        print(f"inspect: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except ModuleNotFoundError as error:
        print(f"inspect: error: {error.name} is missing: pip install -e '.[preprocess]'", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads may have seen enough, as `head` has
    main()
