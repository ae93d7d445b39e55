"""Results for a reader: the text at a terminal, tables in Markdown, and lines."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from eval.results import diverged_seeds, sentences_of, tasks_of
from preprocessing.markdown import markdown_table
from preprocessing.terminal import counted, in_line


def paragraphs(results: dict[str, Any]) -> Iterator[str]:
    """All results, for a terminal."""
    lineage, shards = results["checkpoint"]["lineage"], results["shards"]
    yield in_line(f"{results['checkpoint']['path']}, evaluated in {results['seconds']:.1f} s")
    if shards:
        size = f"{shards['samples']:,} held-out samples of {shards['sequence_length']} tokens"
        yield f"{size}; ± is half of the 95 % interval"
        trained_on = lineage.get("shards_blake2b") or [lineage.get("manifest_blake2b", shards["manifest_blake2b"])]
        if shards["manifest_blake2b"] not in trained_on:
            yield "note: the model was trained on other shards, whose training part may hold these samples"
    if limit := (results["data"] or {}).get("limit"):
        yield told_limit(limit)
    for part in (figures_table(results), "\n".join(best_points(results, results["tasks"])), filled_table(results)):
        if part:
            yield "\n" + part.rstrip("\n")
    if kept := [name for name in tasks_of(results) if name not in results["tasks"]]:
        yield f"\nkept as they were: {', '.join(kept)}"


def figures_table(results: dict[str, Any]) -> str:
    """The figures of all tasks beside their baselines, as a table in Markdown; empty where there are none."""
    rows = [
        [
            _name(name, metric, task),
            _interval(metric, measured),
            _figure(metric, measured["baseline"], measured["unit"]),
            task["baselines"].get(metric, ""),
        ]
        for name, task in results["tasks"].items()
        for metric, measured in task["metrics"].items()
    ]
    return markdown_table([["", "model", "baseline", "which is"], *rows], numbers=(1, 2)) if rows else ""


def shown_figures(name: str, task: Mapping[str, Any]) -> dict[str, str]:
    """The figures of a task, by what figures_table calls them."""
    return {_name(name, metric, task): _interval(metric, measured) for metric, measured in task["metrics"].items()}


def told_limit(limit: int) -> str:
    """What figures are of that were only tried out."""
    return f"at most {limit:,} examples of each data set, so of little weight"


def spread(seeds: Sequence[float], diverged: int, digits: int) -> str:
    """Mean and standard deviation of several seeds, and their number; of how many, where some diverged."""
    number = f"{len(seeds)} of {len(seeds) + diverged}" if diverged else str(len(seeds))
    if len(seeds) < 2:
        return number if seeds else ""
    return f"{number}: {statistics.fmean(seeds):.{digits}f} ± {statistics.stdev(seeds):.{digits}f}"


def best_points(results: Mapping[str, Any], tasks: Iterable[str]) -> Iterator[str]:
    """A line for each of some tasks that was learned: which point of its grid the figures are of, and how it was.

    Of several seeds it has mean and standard deviation too, of the metric that the point is the best by.
    """
    settings = results.get("fine_tuning") or {}
    for name in tasks:
        details = results["tasks"][name]["details"]
        if (point := details.get("best_point")) is None:
            continue
        points, by = details.get("points", ()), details.get("selected_by")
        diverged = sum(bool(tried.get("error")) for tried in points)
        without = f", of which {diverged} diverged," if diverged else ""
        which = f"the best of {len(points)} points{without} by {by}" if len(points) > 1 else "the only point"
        facts = [f"learning rate {point['learning_rate']:g}", counted(point["epochs"], "epoch")]
        facts += [f"batches of {point['batch_size']}", f"seed {point['seed']}"]
        facts += [f"at most {details.get('max_length')} tokens"]
        facts += [settings[name] for name in ("optimizer", "precision") if name in settings]
        judged = [f"{count:,} {part}" for part, count in details.get("examples", {}).items() if part.startswith("dev")]
        facts += [f"on {' and '.join(judged)} examples"] if judged else []
        seeds = details.get("seeds", {}).get(by, ())
        over = f"; {by} over seeds, {spread(seeds, diverged_seeds(details), 2)}" if len(seeds) > 1 else ""
        yield f"{name}: {which}: {', '.join(facts)}{over}"


def filled_table(results: dict[str, Any]) -> str:
    """The filled masks as a table in Markdown; empty where none were asked for."""
    rows = [  # the sentence is named at its first mask
        [sentence["sentence"] if i == 0 else f"... [MASK] {i + 1}", *map(_candidate, candidates)]
        for sentence in sentences_of(results)
        for i, candidates in enumerate(sentence["masks"])
    ]
    columns = zip_longest(["sentence", "most probable, %"], *rows, fillvalue="")
    return markdown_table(list(zip(*columns, strict=True))) if rows else ""


def _candidate(found: dict[str, Any]) -> str:
    """A token and its share, in a cell of its own: any character may be a token, but none has a blank in it."""
    return f"{found['token']} {100 * found['probability']:.3g}"


def _name(name: str, metric: str, task: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, (f"{name} {metric}", task["details"].get("instead"))))


def _interval(metric: str, measured: dict[str, Any]) -> str:
    figures = [measured["value"], *([] if measured["half_width"] is None else [measured["half_width"]])]
    return " ± ".join(_figure(metric, figure, measured["unit"]) for figure in figures)


def _figure(metric: str, value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit:
        return f"{100 * value if unit == 'share' else value:.2f} %"
    return f"{value:,.1f}" if metric == "perplexity" else f"{value:z.4f}"
