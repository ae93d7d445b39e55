"""Histograms of a shard directory: lengths and unknown tokens, counted and drawn."""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from preprocessing.figures import COLOURS, STYLE
from preprocessing.schema import Shard, ShardDirectory
from preprocessing.shards import count_by_row
from preprocessing.status import make_folder
from preprocessing.tokenization import VOCABULARY_FILE, load_vocabulary, special_ids

LENGTH_BINS = np.geomspace(1, 2**31, 31 * 4 + 1)  # of documents: four to each doubling
PAIR_BINS = 32
UNKNOWN_BINS = np.array([0, 1e-10, 1e-4, 1e-3, 1e-2, 1e-1, 1])
UNKNOWN_LABELS = ("none", "to 0.01%", "to 0.1%", "to 1%", "to 10%", "more")
DOCUMENTS, PAIRS, UNKNOWN = "document_length.png", "pair_length.png", "unknown_share.png"


@dataclass
class Histograms:
    """What the shards hold, counted.

    Attributes:
        document_lengths: source -> documents by LENGTH_BINS of tokens.
        unknown_shares: source -> documents by UNKNOWN_BINS of their share of unknown tokens.
        pair_lengths: sequence length -> pairs by number of tokens, special ones included, [sequence length + 1].
        sums: totals by name, for the means that the figures tell.
    """

    document_lengths: dict[str, Any] = field(default_factory=lambda: defaultdict(int))
    unknown_shares: dict[str, Any] = field(default_factory=lambda: defaultdict(int))
    pair_lengths: dict[int, Any] = field(default_factory=lambda: defaultdict(int))
    sums: Counter[str] = field(default_factory=Counter)

    def add(self, shard: Shard, sequence_lengths: Iterable[int], unknown_id: int) -> None:
        """Count a shard.

        Raises:
            ShardError: it is damaged.
        """
        lengths = np.diff(shard.token_offsets)
        unknown = count_by_row(shard.tokens == unknown_id, shard.token_offsets)
        sources = np.array(shard.text("source").to_pylist())
        for source in sorted(set(sources.tolist())):
            own = sources == source
            self.document_lengths[source] += np.histogram(lengths[own], LENGTH_BINS)[0]
            self.unknown_shares[source] += np.histogram(unknown[own] / lengths[own], UNKNOWN_BINS)[0]
            self.sums.update(
                {f"tokens/{source}": int(lengths[own].sum()), f"unknown/{source}": int(unknown[own].sum())}
            )
        for length in sequence_lengths:
            pairs = shard.pairs(length)
            shard.spans(pairs, length)  # refuses damaged ones
            self.pair_lengths[length] += np.bincount(pairs.lengths, minlength=length + 1)


def count_all(shards: ShardDirectory) -> Histograms:
    """Read every shard and count.

    Raises:
        ShardError: a shard is damaged.
        UnavailableError: one, or the vocabulary, can't be read now.
    """
    histograms = Histograms()
    unknown_id = special_ids(load_vocabulary(shards.tokenizer / VOCABULARY_FILE)).unknown
    for entry in shards.manifest.shards:
        histograms.add(shards.shard(entry), shards.manifest.sequence_lengths, unknown_id)
    return histograms


def draw(histograms: Histograms, folder: Path) -> list[Path]:
    """Draw the histograms into a folder; returns the files."""
    make_folder(folder, parents=True)
    drawn = []
    for name, fill in ((DOCUMENTS, _draw_documents), (PAIRS, _draw_pairs), (UNKNOWN, _draw_unknown)):
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
            fill(figure.add_subplot(), histograms)
            drawn.append(folder / name)
            _save(figure, drawn[-1])
    return drawn


def _save(figure: Figure, path: Path) -> None:
    """Write a PNG that has its name once it is whole."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(unfinished, format="png")
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _steps(axes: Axes, edges: np.ndarray, series: dict[str, np.ndarray]) -> None:
    """Some histograms as outlines over each other, each as shares of its own whole."""
    for colour, (label, counts) in zip(COLOURS * len(series), series.items(), strict=False):
        shares = counts / max(1, counts.sum())
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.15)
        axes.stairs(shares, edges, color=colour, linewidth=1.8, label=label)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _percent(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))
    axes.grid(axis="x", visible=False)


def _draw_documents(axes: Axes, histograms: Histograms) -> None:
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


def in_pair_bins(counts: np.ndarray) -> np.ndarray:
    """Pairs by number of tokens, [sequence length + 1] -> [PAIR_BINS] of equal width; each counts once."""
    bins, _ = np.histogram(np.arange(len(counts)), PAIR_BINS, range=(0, len(counts)), weights=counts)
    return bins


def _draw_pairs(axes: Axes, histograms: Histograms) -> None:
    series = {}
    for length, counts in sorted(histograms.pair_lengths.items()):
        label = f"for {length}\n{counts.sum():,} pairs,\n{counts[-1] / max(1, counts.sum()):.0%} of full length"
        series[label] = in_pair_bins(counts)
    _steps(axes, np.linspace(0, 1, PAIR_BINS + 1), series)
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
        bars = axes.bar(places, counts / counts.sum(), width * 0.92, label=label, color=COLOURS[number % len(COLOURS)])
        axes.bar_label(bars, ["", *(f"{count:,}" if count else "" for count in counts[1:])], fontsize=9, padding=1)
    axes.set_yscale("log")
    axes.set_ylim(1e-4, 2)
    axes.set_xticks(np.arange(len(UNKNOWN_LABELS)), UNKNOWN_LABELS)
    axes.set(title="Unknown tokens", xlabel="share of a document's tokens", ylabel="share of the source's documents")
    _percent(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
