"""Curves and tables of runs, beside the paper's.

    python -m eval.report runs/large [RUN...] --output report/ [--results results/results.json]

    OUTPUT/report.md, report.html    the last figures of the training; scores beside the paper's tables and their
                                     baselines; which data, settings and code they are of
    OUTPUT/curves.png                losses, next-sentence accuracy and learning rate over the steps
    OUTPUT/scores.png                what the exports score, over the steps

All are made from files: of the run directories, and results.json of evaluations. Those given are taken, or else any in
OUTPUT, in a run directory, one folder below, or in RUN/evaluations. The page needs nothing but itself.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from preprocessing.extras import needs
from preprocessing.status import is_dir, is_file, make_folder

with needs("eval"):
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    from eval.comparison import MeasuredExport, compare, exports_of, is_measured, on_same_data, side_by_side
    from eval.curves import WINDOWS, baselines, draw, draw_scores, measured_scores
    from eval.errors import UsageError
    from eval.evaluated import Evaluated, find_results, of_present_weights, on_each_data, read_evaluations
    from eval.histories import History, predicting, read_histories
    from eval.pages import render_page
    from eval.paper import TABLES
    from eval.pictures import save_picture
    from eval.results import NEXT_WORDS, RESULTS
    from eval.showing import best_points, figures_table, filled_table, told_limit
    from eval.storage import check_output, reading
    from preprocessing.command_line import OneLineParser, parse_path
    from preprocessing.markdown import markdown_table, plain
    from preprocessing.schema import checksum
    from preprocessing.storage_errors import UnavailableError, exit_code
    from preprocessing.terminal import in_line, show, tell_error
    from trainer.files import write_atomically
    from trainer.metrics import of_directory
    from trainer.naming import name_some, tell_apart

CURVES, SCORES, REPORT, PAGE = "curves.png", "scores.png", "report.md", "report.html"
_OF_MLFLOW = re.compile(r"mlflow\.db(-wal|-shm|-journal|\.lock)?|mlartifacts")  # beside runs, see trainer.tracking
_NAMED = 3  # of what is left out; the others are counted
_BESIDE = (
    "Devlin et al. (2019). Figures are in per cent, but for perplexities; empty is what was not measured. Ours is the "
    "best on the dev set of the points that were tried, which the evaluation names; under seeds stand their number, "
    "and mean ± standard deviation of all that share its other hyperparameters."
)
_BARS = "Bars are halves of 95 % intervals, or standard deviations around the mean of seeds; dashed is the baseline."


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report; the exit code is 0, 1 if the storage failed, or 2 for a mistake in what was asked for."""
    arguments = _parse(argv)
    try:
        written = _make(arguments)
    except (UsageError, OSError, UnavailableError) as error:
        tell_error(error)
        return exit_code(error)
    show("\n".join(in_line(str(path)) for path in written))
    return 0


def _make(arguments: argparse.Namespace) -> list[Path]:
    """Write the report of what the command names; returns the files."""
    histories, left_out = read_histories(arguments.runs) if arguments.runs else ([], [])
    runs = [history.run.path for history in histories]
    output = arguments.output or (runs or [arguments.results[0].parent])[0] / "report"
    check_output(output)
    directories = [run.resolve() for run in runs]
    found = read_evaluations(arguments.results or find_results([output, *runs]), directories)
    names = tell_apart([*directories, *(evaluated.directory for evaluated in found)])
    histories = [replace(history, name=names[run]) for history, run in zip(histories, directories, strict=True)]
    evaluations, outdated = of_present_weights(found)
    exports = exports_of(evaluations)
    others = [path for path in left_out if not _OF_MLFLOW.fullmatch(path.name)]
    _tell_left_out(others, "no run that has begun to train")
    _tell_left_out([evaluated.file for evaluated in outdated], "of other weights than that step has now")
    try:
        make_folder(output, parents=True)
        return write_report(output, histories, evaluations, exports)
    except OSError as error:
        raise UsageError(f"the report can't be written: {error}") from error


def _tell_left_out(paths: Sequence[Path], why: str) -> None:
    for path in paths[:_NAMED]:
        print(in_line(f"note: {path} is left out: {why}"), file=sys.stderr)
    if more := len(paths[_NAMED:]):
        print(f"note: {more:,} more {'is' if more == 1 else 'are'} left out for the same reason", file=sys.stderr)


def write_report(
    output: Path, histories: Sequence[History], evaluations: Sequence[Evaluated], exports: Sequence[MeasuredExport]
) -> list[Path]:
    """Write pictures, report.md and report.html; returns the files."""
    pictures = []
    if histories:
        save_picture(draw(histories, baselines(evaluations)), output / CURVES)
        pictures.append(CURVES)
    stepped, left_out = on_same_data([export for export in exports if export.step is not None])
    if measured_scores(stepped):
        save_picture(draw_scores(stepped), output / SCORES)
        pictures.append(SCORES)
    text = "\n".join(report(histories, evaluations, exports, left_out if SCORES in pictures else None)) + "\n"
    write_atomically(output / REPORT, text)
    write_atomically(output / PAGE, page(text, output, pictures))
    return [output / name for name in (*pictures, REPORT, PAGE)]


def page(text: str, folder: Path, pictures: Sequence[str]) -> str:
    """The report in HTML, its pictures within. Marks of HTML in the text stay text, and nothing is fetched."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    heading, body = markdown.parse(text)[1], markdown.render(text)
    for name in pictures:
        data = base64.b64encode((folder / name).read_bytes()).decode()
        body = body.replace(f'src="{name}"', f'src="data:image/png;base64,{data}"')
    title = "".join(child.content for child in heading.children or [])
    return render_page("report.html.j2", title=title, body=Markup(body))  # noqa: S704  escaped by MarkdownIt


def report(
    histories: Sequence[History],
    evaluations: Sequence[Evaluated],
    exports: Sequence[MeasuredExport],
    left_out: Sequence[str] | None,
) -> Iterator[str]:
    """The paragraphs of report.md; ``left_out`` is what the picture of scores lacks, None where there is no picture."""
    names = [history.name for history in histories] or dict.fromkeys(evaluated.run for evaluated in evaluations)
    yield f"# {plain(', '.join(names))}\n"
    if histories:
        yield f"![Losses, accuracy and learning rate over the steps]({CURVES})\n"
        yield "## Last figures\n"
        yield _last_figures_table(histories)
        if apart := list(_held_out_apart(histories)):
            yield f"Held-out figures of these runs don't compare: they are {' and '.join(apart)}.\n"
    if rows := side_by_side(exports):
        yield "## Side by side\n"
        yield "± is half of the 95 % interval. What one model alone was measured on is left out.\n"
        yield markdown_table(rows, numbers=range(1, len(rows[0])))
    if exports:
        yield from _beside_the_paper(exports)
    if left_out is not None:
        yield "## Scores over the steps\n"
        yield f"![What the exports score, over the steps]({SCORES})\n"
        yield f"{_BARS}\n"
        if left_out:
            why = "they were measured on other data, over fewer samples or for another objective than those that are"
            yield f"Not drawn, as {why}: {plain(name_some(left_out, _NAMED))}.\n"
    for group in _newest(evaluations):
        yield from _evaluation(group)
    if histories:
        yield "## Origin\n"
        origins = map(_origin, histories)
        yield markdown_table([["run", "configuration", "shards", "began with", "commit", "directory"], *origins])


def _held_out_apart(histories: Sequence[History]) -> Iterator[str]:
    """What the last held-out figures of some runs are of that differs among them."""
    if len({history.held_out_length for history in histories} - {None}) > 1:
        yield "of sequences of different lengths"
    validated = [history.run.manifest for history in histories if len(history.validation["step"])]
    if len({_checksum(manifest) for manifest in validated} - {""}) > 1:
        yield "of different shards, see under Origin"


def _beside_the_paper(exports: Sequence[MeasuredExport]) -> Iterator[str]:
    yield "## Beside the paper\n"
    measured = [table for table in TABLES if is_measured(table, exports)]
    if measured:
        yield f"{_BESIDE}\n"
    for table in measured:
        yield f"### {table.title} ({table.source})\n"
        rows = compare(table, exports)
        yield f"{table.about}\n"
        yield markdown_table(rows, numbers=range(1, len(rows[0])))
    if others := [table.title for table in TABLES if table not in measured]:
        yield f"Not measured: {'; '.join(others)}.\n"


def _newest(evaluations: Sequence[Evaluated]) -> list[list[Evaluated]]:
    """Those of the last export of each run."""
    last = {evaluated.run: evaluated.weights_blake2b for evaluated in evaluations}  # they ascend by step
    return [[e for e in evaluations if (e.run, e.weights_blake2b) == newest] for newest in last.items()]


def _last_figures_table(histories: Sequence[History]) -> str:
    rows = [["", *(history.name for history in histories)]]
    columns = [_last_figures(history) for history in histories]
    names = dict.fromkeys(name for of_run in columns for name in of_run)  # a run may lack validations
    rows += [row for name in names if any((row := [name, *(of_run.get(name, "") for of_run in columns)])[1:])]
    return markdown_table(rows, numbers=range(1, len(rows[0])))


def _last_figures(history: History) -> dict[str, str]:
    training, held_out = history.training, history.validation
    _, losses = predicting(training, "mlm_loss")
    window = max(1, len(losses) // WINDOWS)
    figures = {
        "steps": f"{training['step'][-1]:,.0f}",
        "samples": f"{training['samples'][-1]:,.0f}",
        **_of_words(history, "training MLM loss", f"{losses[-window:].mean():.4f}" if len(losses) else ""),
        "training loss: last steps averaged": str(window),
        "tokens a second, median": f"{np.median(training['tokens_per_second']):,.0f}",
        "hours": f"{_hours(training):.2f}",
    }
    if len(held_out["step"]):
        figures |= {
            "held out, at step": f"{held_out['step'][-1]:,.0f}",
            "held out, tokens of a sample": str(history.held_out_length or ""),
            **_of_words(history, "held out: MLM loss", f"{held_out['mlm_loss'][-1]:.4f}"),
            **_of_words(history, "held out: perplexity", f"{held_out['perplexity'][-1]:,.1f}"),
            **_of_words(history, "held out: MLM accuracy", f"{100 * held_out['mlm_accuracy'][-1]:.2f} %"),
        }
        for name in history.directories:
            of_it = held_out[of_directory("perplexity", name)][-1]
            if not math.isnan(of_it):
                figures |= _of_words(history, f"held out, {name}: perplexity", f"{of_it:,.1f}")
        if history.next_sentence:
            figures["held out: NSP accuracy"] = f"{100 * held_out['nsp_accuracy'][-1]:.2f} %"
    return figures


def _of_words(history: History, name: str, figure: str) -> dict[str, str]:
    """A figure of masked words and one of next words, which don't compare; that which is not the run's is empty."""
    masked, following = ("", figure) if history.next_words else (figure, "")
    return {name: masked, f"{name.replace('MLM ', '')} of {NEXT_WORDS}": following}


def _hours(training: Mapping[str, np.ndarray]) -> float:
    """Time spent on steps, without validations, checkpoints and interruptions."""
    return float((training["data_seconds"] + training["compute_seconds"]).sum()) / 3600


def _evaluation(group: Sequence[Evaluated]) -> Iterator[str]:
    """A section of all that was evaluated on an export."""
    export = group[0].export.name
    yield f"## Evaluation of {plain(export if group[0].run == export else f'{group[0].run} {export}')}\n"
    failed = {name: e for e in group for name in e.results["failed"]}
    counting, *on_other_data = on_each_data(group)
    yield from _figures(group, counting, failed)
    for name, e in failed.items():
        reason = e.results["failed"][name]
        yield f"Failed: {plain(f'{name}: {reason}')}\n"
    for counting in on_other_data:
        yield "On other data:\n"
        yield from _figures(group, counting)


def _figures(
    group: Sequence[Evaluated], counting: Mapping[str, Evaluated], failed: Mapping[str, Evaluated] | None = None
) -> Iterator[str]:
    """The figures of tasks, each from the evaluation that counts, and what they are of."""
    for e in group:
        tasks = [task for task, of in counting.items() if of is e]
        without = [f"{name} (failed)" for name, of in (failed or {}).items() if of is e]
        if tasks or without:
            facts = [", ".join([*tasks, *without]), *_facts(e, tasks)]
            yield f"{plain('; '.join(facts))}. ± is half of the 95 % confidence interval.\n"
    shown = {"tasks": {task: e.results["tasks"][task] for task, e in counting.items()}}
    points = [line for task, e in counting.items() for line in best_points(e.results, [task])]
    learned = "".join(f"- {plain(line)}\n" for line in points)
    yield from filter(None, (figures_table(shown), learned, filled_table(shown)))


def _facts(evaluated: Evaluated, tasks: Sequence[str]) -> Iterator[str]:
    """What the figures of tasks in a results.json are of."""
    result = evaluated.results
    if shards := result["shards"]:
        yield f"{shards['samples']:,} held-out samples of {shards['sequence_length']} tokens"
    for limit in {limit for task in tasks if (limit := evaluated.limit(task)) is not None}:
        yield told_limit(limit)
    yield f"weights {evaluated.weights_blake2b}"
    if shards:
        yield f"shards {shards['path']}, {shards['manifest_blake2b']}"
    yield f"evaluated by {_commit(result['code'])}"


def _origin(history: History) -> list[str]:
    """Name, hashes of configuration and data, initial weights, commit and place of a run."""
    run = history.run
    hashes = [_checksum(path) for path in (run.config, run.manifest)]
    with reading(run.code):
        try:
            commit = _commit(json.loads(run.code.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):  # or damaged: it costs no figure
            commit = "unknown"
    with reading(run.initial_weights):
        try:
            given = run.read_initial_weights()
            began_with = f"{given['directory']}, {given['blake2b']}" if given else "new weights"
        except ValueError:  # as above
            began_with = "unknown"
    return [history.name, *hashes, began_with, commit, str(run.path)]


def _checksum(path: Path) -> str:
    """Of a file of a run; empty where it has none."""
    with reading(path):
        return checksum(path) if is_file(path) else ""


def _commit(code: dict[str, Any]) -> str:
    commit = f"commit {code['commit'][:12]}" if code["commit"] else f"version {code['version']}"
    return commit + (" with changes" if code["modified"] else "")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="python -m eval.report", description="Curves and tables of runs.")
    parser.add_argument(
        "runs", type=parse_path, nargs="*", metavar="RUN", help="a run directory; runs/* will do; none with --results"
    )
    parser.add_argument(
        "--output", type=parse_path, metavar="DIR",
        help=f"for {REPORT}, {PAGE} and pictures (default: report/ in the first run, or beside the results)",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=parse_path, action="append", metavar="PATH",
        help=f"a {RESULTS} of eval.run or its folder, once or several times (default: those found in the output and "
        "the runs)",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    arguments.results = [path / RESULTS if is_dir(path) else path for path in arguments.results or ()]
    if not arguments.runs and not arguments.results:
        parser.error(f"give a run directory, or the {RESULTS} of an export that is of no run with --results")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
