"""Our figures beside each other and the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval.evaluated import Evaluated, Place, on_each_data
from eval.paper import Table
from eval.results import diverged_seeds
from eval.showing import shown_figures, spread
from trainer.naming import tell_apart


@dataclass(frozen=True)
class Score:
    """A figure of ours.

    Attributes:
        value: the one that counts: of the grid's best point, where there was a grid.
        seeds: those of all seeds with the hyperparameters of that point; empty for a task that learns nothing.
        diverged: seeds with these that have none.
        half_width: half of the 95 % interval over the examples; None where it is not known.
    """

    value: float
    seeds: tuple[float, ...]
    diverged: int
    half_width: float | None


@dataclass(frozen=True)
class MeasuredExport:
    """An export, and everything that was evaluated on its weights.

    Attributes:
        run: name of its run, which no other has.
        step: of it; None where another program wrote it.
        tasks: name -> content, see eval.results; of the evaluation that counts, see eval.evaluated.on_each_data.
        data: name of a task -> what tells the data that it was measured on from others, and from a part of them.
        places: name of a task -> where these data lay.
        settings: of the run, section.key -> value; empty where its config.toml is out of reach.
        limits: name of a task that was only tried out -> examples of each data set that were taken at most, or held-out
            samples that were, where the run was measured over more of them.
        on_other_data: the same weights with tasks that were measured on other data too.
    """

    run: str
    step: int | None
    tasks: Mapping[str, Any]
    data: Mapping[str, str]
    places: Mapping[str, Place]
    settings: Mapping[str, Any]
    limits: Mapping[str, int]
    on_other_data: Sequence[MeasuredExport] = ()

    @property
    def name(self) -> str:
        """Of the column; it says where data sets were not whole."""
        step = "" if self.step is None else f" {self.step:,}"
        return f"{self.run}{step}" + (f" ({min(self.limits.values()):,} examples)" if self.limits else "")

    @property
    def whole(self) -> MeasuredExport:
        """With the figures of whole data sets alone."""
        return self.of([task for task in self.tasks if task not in self.limits])

    def of(self, tasks: Collection[str]) -> MeasuredExport:
        """With the figures of some tasks alone."""
        return replace(
            self,
            tasks={task: content for task, content in self.tasks.items() if task in tasks},
            limits={task: limit for task, limit in self.limits.items() if task in tasks},
        )

    def instead(self, task: str) -> str | None:
        """What the figures of a task are of where it is not what the task is named for."""
        found: str | None = self.tasks[task]["details"].get("instead")
        return found

    def score(self, task: str, metric: str) -> Score | None:
        """What was measured; None where nothing was."""
        content = self.tasks.get(task, {"metrics": {}})
        measured = content["metrics"].get(metric)
        if measured is None:
            return None
        seeds = content["details"].get("seeds", {}).get(metric, ())
        return Score(float(measured["value"]), tuple(seeds), diverged_seeds(content["details"]), measured["half_width"])


def exports_of(evaluations: Iterable[Evaluated]) -> list[MeasuredExport]:
    """The exports behind some evaluations, by run and step."""
    by_weights: dict[tuple[str, str], list[Evaluated]] = {}
    most: dict[tuple[str, str, str], int] = {}  # run, task and data -> samples
    for evaluated in evaluations:
        by_weights.setdefault((evaluated.run, evaluated.weights_blake2b), []).append(evaluated)
        for task in evaluated.results["tasks"]:
            measured = evaluated.run, task, evaluated.data(task)
            most[measured] = max(evaluated.samples(task), most.get(measured, 0))
    exports = []
    for group in by_weights.values():
        first, *others = [_measured(group[0], counting, most) for counting in on_each_data(group)]
        exports.append(replace(first, on_other_data=others))
    return sorted(exports, key=lambda export: (export.run, export.step or 0))


def _measured(
    export: Evaluated, counting: Mapping[str, Evaluated], most: Mapping[tuple[str, str, str], int]
) -> MeasuredExport:
    limits = {task: evaluated.limit(task) for task, evaluated in counting.items()}
    fewer = {
        task: samples
        for task, evaluated in counting.items()
        if (samples := evaluated.samples(task)) < most[evaluated.run, task, evaluated.data(task)]
    }
    return MeasuredExport(
        run=export.run,
        step=export.step,
        tasks={task: evaluated.results["tasks"][task] for task, evaluated in counting.items()},
        data={task: f"{evaluated.data(task)}, {fewer.get(task, 'all')}" for task, evaluated in counting.items()},
        places={task: evaluated.place(task) for task, evaluated in counting.items()},
        settings=export.settings,
        limits={task: limit for task, limit in limits.items() if limit is not None} | fewer,
    )


def on_same_data(exports: Sequence[MeasuredExport]) -> tuple[list[MeasuredExport], list[str]]:
    """What can stand in one picture: of each task the figures on the data that the last export to have it was given.

    Trials on a part of it, or of its samples, don't count, unless there are only trials.

    Args:
        exports: with steps.

    Returns:
        The exports with these alone; and what was left out, in words.
    """
    ascending = sorted(exports, key=lambda export: export.step or 0)
    counting = (*ascending, *(export.whole for export in ascending))  # the last one says
    data = {task: export.data[task] for export in counting for task in export.tasks}
    kept, left_out = [], []
    for export in exports:
        same = [task for task in export.tasks if export.data[task] == data[task]]
        kept.append(export.of(same))
        left_out += [f"{task} of {export.of([task]).name}" for task in export.tasks if task not in same]
    return kept, left_out


def side_by_side(exports: Sequence[MeasuredExport]) -> list[list[str]]:
    """The rows of a table of all figures that several runs have on the same data, of each its newest export's.

    A row says on which data where the table has that figure on several. Trials on a part of some data, or of its
    samples, don't count, unless there are only trials of the task. Empty where there are no rows.
    """
    newest = list({export.run: export for export in exports}.values())  # they ascend by step
    everything = [(export, *export.on_other_data) for export in newest]
    whole = {task for parts in everything for part in parts for task in part.whole.tasks}
    counting = [
        [part.of([task for task in part.tasks if not (task in part.limits and task in whole)]) for part in parts]
        for parts in everything
    ]
    columns = [
        {
            (name, part.data[task]): figure
            for part in parts
            for task, content in part.tasks.items()
            for name, figure in shown_figures(task, content).items()
        }
        for parts in counting
    ]
    places = {part.data[task]: part.places[task] for parts in counting for part in parts for task in part.tasks}
    measured = dict.fromkeys(key for column in columns for key in column)
    shared = [key for key in measured if sum(key in column for column in columns) > 1]
    on_data: dict[str, list[str]] = {}  # figure -> the data that it is there on
    for name, data in shared:
        on_data.setdefault(name, []).append(data)
    directories = tell_apart(
        places[data].directory for several in on_data.values() if len(several) > 1 for data in several
    )
    rows = [
        [f"{name}, {place}" if len(several) > 1 else name, *(column.get((name, data), "") for column in columns)]
        for name, several in on_data.items()
        for data, place in _told({data: places[data] for data in several}, directories).items()
    ]
    return [["", *(_heading(parts[0], set(shared)) for parts in counting)], *rows] if rows else []


def _heading(export: MeasuredExport, shown: Collection[tuple[str, str]]) -> str:
    """The name of a column with some figures on some data: a trial of another task is none of these."""
    tasks = [
        task
        for task, content in export.tasks.items()
        if any((name, export.data[task]) in shown for name in shown_figures(task, content))
    ]
    return export.of(tasks).name


def _told(places: Mapping[str, Place], directories: Mapping[Path, str]) -> dict[str, str]:
    """The places of a figure in words; with the beginning of a digest where something else lay there at another time.

    Args:
        places: by what tells data apart.
        directories: what those are called that are named.
    """
    names = {
        data: directories.get(place.directory, "") + ("" if place.length is None else f" at {place.length}")
        for data, place in places.items()
    }
    contents = {
        name: {places[data].blake2b for data, named in names.items() if named == name} for name in names.values()
    }
    return {
        data: name if len(contents[name]) == 1 else f"{name} ({places[data].blake2b[:8]})"
        for data, name in names.items()
    }


def compare(table: Table, exports: Sequence[MeasuredExport]) -> list[list[str]]:
    """The rows of a table: the paper's models, and for each run its newest export that has a figure for it, or any.

    Figures of whole data sets go before those of trials, however new. Next words are not the paper's masked ones.

    Three columns for each of ours: the figure, its difference to the paper's model that the run compares with, and the
    number of seeds with their mean and standard deviation. What was not measured is empty.
    """
    chosen = _newest(table, exports)
    header = ["", *(model.name for model in table.models)]
    for export in chosen:
        header += [export.name, f"minus {table.counterpart(export.settings).name}", "seeds"]
    return [header, *_lines(table, chosen)]


def is_measured(table: Table, exports: Sequence[MeasuredExport]) -> bool:
    """Whether any of the exports has a figure for a table."""
    return any(_has_figures(table, export) for export in _for_table(table, exports))


def _newest(table: Table, exports: Sequence[MeasuredExport]) -> list[MeasuredExport]:
    """Of each run the newest export with a figure of a whole data set for the table, or else with one, or any."""
    exports = _for_table(table, exports)
    whole = [export.whole for export in exports]
    measured = [export for some in (exports, whole) for export in some if _has_figures(table, export)]
    return list({export.run: export for export in (*whole, *measured)}.values())  # all ascend by step


def _for_table(table: Table, exports: Sequence[MeasuredExport]) -> list[MeasuredExport]:
    """The exports with what they have of the table's tasks alone, without what was measured instead of these."""
    wanted = {measure.task for measure in table.measures}
    return [e.of([task for task in e.tasks if task in wanted and not e.instead(task)]) for e in exports]


def _has_figures(table: Table, export: MeasuredExport) -> bool:
    return any(export.score(measure.task, measure.metric) for measure in table.measures)


def _lines(table: Table, chosen: Sequence[MeasuredExport]) -> Iterator[list[str]]:
    for i, measure in enumerate(table.measures):
        papers = [model.figures[i] for model in table.models]
        digits = max(_digits(figure) for figure in papers)
        ours = [
            cell
            for export in chosen
            for cell in _cells(
                export.score(measure.task, measure.metric), table.counterpart(export.settings).figures[i], digits
            )
        ]
        yield [measure.name, *(_shown(figure, digits) for figure in papers), *ours]
    if table.averaged:
        yield _averages(table, chosen)


def _cells(ours: Score | None, papers: float | None, digits: int) -> list[str]:
    """Figure, difference and seeds."""
    if ours is None:
        return ["", "", ""]
    over_seeds = spread(ours.seeds, ours.diverged, digits)
    return [_shown(ours.value, digits), _difference(ours.value, papers, digits), over_seeds]


def _averages(table: Table, chosen: Sequence[MeasuredExport]) -> list[str]:
    row = ["average", *(_shown(_mean(model.figures)) for model in table.models)]
    for export in chosen:
        figures = [export.score(measure.task, measure.metric) for measure in table.measures]
        ours = _mean([None if figure is None else figure.value for figure in figures])
        row += [_shown(ours), _difference(ours, _mean(table.counterpart(export.settings).figures)), ""]
    return row


def _mean(figures: Sequence[float | None]) -> float | None:
    """Of all; None where one is missing."""
    known = [figure for figure in figures if figure is not None]
    return statistics.fmean(known) if len(known) == len(figures) else None


def _digits(figure: float | None) -> int:
    """As many as the paper gives: most of its figures have one behind the point, perplexities two."""
    return 1 if figure is None else max(1, len(repr(figure).partition(".")[2]))


def _shown(figure: float | None, digits: int = 1) -> str:
    return "" if figure is None else f"{figure:z,.{digits}f}"  # z: there is no -0.0


def _difference(ours: float | None, papers: float | None, digits: int = 1) -> str:
    return "" if ours is None or papers is None else f"{ours - papers:+z,.{digits}f}"
