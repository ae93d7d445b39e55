"""Evaluate an export.

    python -m eval.run --checkpoint runs/large/exports/step-001000 --tasks glue,squad --data data/ --output results/
    python -m eval.run --checkpoint runs/large/exports/step-001000 --tasks mlm,nsp,fill_mask --shards shards/ \
        --output results/

Everything that can be wrong with what was asked for is looked at before anything is computed. The results lie in
OUTPUT/results.json, are printed as tables, and become a run in MLflow, a child of the training run where there is one.

A task that the model learns leaves what each point of its grid found in OUTPUT/TASK/points, and the same command again
does what is missing. Processes share a grid by --workers on one machine, by --grid-index and --grid-count on several.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from preprocessing.extras import needs
from preprocessing.status import is_dir, make_folder

with needs("eval"):
    from eval.errors import UsageError
    from eval.experiment import Experiment
    from eval.features import FeatureTags
    from eval.locks import is_last, locked, shared
    from eval.options import SUBMISSION, parse
    from eval.plan import Plan, held_out_device, prepare
    from eval.published import publish
    from eval.results import (
        FORMAT_VERSION,
        MODELS,
        RESULTS,
        STATES,
        beside_earlier,
        by_command,
        read_results,
        read_results_of,
        sentences_of,
        tasks_of,
        write_results,
    )
    from eval.selection import prefix_of
    from eval.showing import paragraphs
    from eval.stamps import stamp
    from eval.storage import check_output, check_replaceable
    from eval.tasks import Task
    from eval.tasks.finetuned import FineTuned
    from eval.tasks.intrinsic import Subject
    from eval.tasks.result import Result
    from eval.tracked import track
    from eval.workers import going_on, left_undone, run_points, run_side_by_side, share
    from preprocessing.interruption import end_when_interrupted
    from preprocessing.storage_errors import UnavailableError, exit_code, is_full, is_passing
    from preprocessing.terminal import in_line, show, tell_error
    from trainer.determinism import use_deterministic_kernels
    from trainer.leases import hold_export
    from trainer.run_directory import CheckpointError

_log = logging.getLogger("eval")


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; the exit code is 0, 1 if a task or the storage failed, or 2 for a mistake in what was asked for."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parse(words)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        with hold_export(arguments.checkpoint):
            return evaluate(arguments, words)
    except (CheckpointError, UsageError, UnavailableError) as error:
        return _end(exit_code(error), str(error))
    except OSError as error:
        if is_full(error):
            return _end(1, f"{arguments.output}: no room left there; make some, and run the same command again")
        # Without a name it is of a file that is open, which most likely is one to be written.
        if is_passing(error) or (error.errno and error.filename is None):
            place = error.filename or arguments.output
            return _end(1, f"{place}: {error.strerror}; mend that, and run the same command again")
        if not _is_within(arguments.output, error):
            raise
        return _end(2, f"{error.filename}: {error.strerror}; mend that, or choose another --output")


def _end(code: int, problem: str) -> int:
    tell_error(problem)
    return code


def _is_within(folder: Path, error: OSError) -> bool:
    """Whether an error is about a file in a folder."""
    return isinstance(error.filename, str | Path) and Path(error.filename).absolute().is_relative_to(folder.absolute())


def evaluate(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """What main does with an export that no retention deletes meanwhile.

    Raises:
        UsageError: a mistake in what was asked for, the output among it; or a process that evaluates something else has
            written to the same output meanwhile.
        UnavailableError: something can't be read now.
        OSError: the results can't be written, or storage fails.
    """
    before, collecting = stamp(arguments.output / RESULTS), arguments.output / ".collect.lock"
    try:
        check_output(arguments.output, [collecting])
        for name in (RESULTS, SUBMISSION):
            check_replaceable(arguments.output / name)
        plan = prepare(arguments)
        make_folder(arguments.output, parents=True)
    except OSError as error:
        if is_passing(error) or is_full(error):
            raise
        raise UsageError(str(error)) from error
    use_deterministic_kernels(True, plan.bench.device)
    began = time.perf_counter()
    with _frozen_states(arguments.output, plan) as delete_states:
        failed = learn(arguments, words, plan)
        if _is_mine_to_collect(arguments, plan):
            with locked(collecting):
                by_another = arguments.grid_count > 1 or stamp(arguments.output / RESULTS) != before
                if by_another and _is_collected(arguments, plan):
                    _log.info("%s is there: another process has gathered it", arguments.output / RESULTS)
                else:
                    collect(arguments, plan, failed, began)
            delete_states()
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    return 1 if failed else 0


@contextlib.contextmanager
def _frozen_states(output: Path, plan: Plan) -> Iterator[Callable[[], None]]:
    """Keep what frozen encoders compute while it is used; gives what deletes it, unless other processes use it."""
    if not any(isinstance(experiment.task.kind, FeatureTags) for experiment in plan.experiments.values()):
        yield lambda: None
        return
    with shared(output / f".{STATES}.lock") as lock:

        def delete() -> None:
            if is_last(lock):
                shutil.rmtree(output / STATES, ignore_errors=True)

        yield delete


def learn(arguments: argparse.Namespace, words: Sequence[str], plan: Plan) -> dict[str, str]:
    """Run the points that are missing, or this process's share of them; returns the tasks that failed and why."""
    sharing = arguments.grid_index, arguments.grid_count
    work = share(list(plan.experiments.values()), *sharing)
    if arguments.workers > 1:
        words = [*words, "--checkpoint", str(arguments.checkpoint)]  # whatever a link among them leads to by now
        done = run_side_by_side(words, arguments.workers, *sharing, plan.bench.device)
        return {} if done else left_undone(work)
    if plan.experiments and not work:
        _log.info("there are fewer grid points than the %d processes; none is this one's", arguments.grid_count)
    return run_points(work, wait=arguments.grid_count == 1)


def _is_mine_to_collect(arguments: argparse.Namespace, plan: Plan) -> bool:
    """Whether to gather results: of processes that share a grid, those do that find it finished; others say so."""
    if arguments.points_only or arguments.grid_count == 1:
        return not arguments.points_only
    if missing := sum(len(experiment.missing()) for experiment in plan.experiments.values()):
        _log.info(
            "%d points of the grid are not finished; the process that finishes the last one writes %s. Where none is "
            "at work any more, the command without --grid-index and --grid-count does the rest",
            missing,
            arguments.output / RESULTS,
        )
    return not missing


def _is_collected(arguments: argparse.Namespace, plan: Plan) -> bool:
    """Whether the results are there that this process would write, each task with what it would find.

    Tasks that learn nothing are told by what they read, as only computing them would give their figures.
    """
    try:
        results = read_results(arguments.output / RESULTS)
        learned = {
            name: _content(experiment.task, experiment.collect()) for name, experiment in plan.experiments.items()
        }
    except UsageError:  # no results, or points that give none
        return False
    tasks = results["tasks"]
    filled = [sentence["sentence"] for sentence in sentences_of(results)]
    return (
        results["checkpoint"]["weights_blake2b"] == plan.bench.checkpoint.weights_blake2b
        and all(task.name in tasks and tasks[task.name]["version"] == task.version for task in plan.tasks)
        and all(tasks[name] == json.loads(json.dumps(content)) for name, content in learned.items())
        and (not learned or results["data"] == _data(arguments))
        and not any(experiment.lacks for experiment in plan.experiments.values())
        and (plan.subject is None or results["shards"] == _shards(plan.subject))
        and (plan.subject is None or filled in ([], list(plan.subject.sentences)))
    )


def collect(arguments: argparse.Namespace, plan: Plan, failed: dict[str, str], began: float) -> None:
    """Evaluate what needs no training, gather what the grids found, write it all down and show it.

    To ``failed``, tasks and why, those are added that fail now; the work ``began`` at this reading of the clock.
    """
    output, bench, learns = arguments.output, plan.bench, bool(plan.experiments)
    before = read_results_of(output / RESULTS, bench.checkpoint.weights_blake2b)
    incomplete = _complete([experiment for name, experiment in plan.experiments.items() if name not in failed])
    found = {task.name: _result(task, plan, failed) for task in plan.tasks if task.name not in failed}
    failed.update(incomplete | failed)
    tasks = {task.name: _content(task, result) for task in plan.tasks if (result := found.get(task.name)) is not None}
    learned = [plan.experiments[name] for name in tasks if name in plan.experiments]
    there = {*tasks, *(tasks_of(before) if before else ())}
    files = publish(output, learned, there, failed)
    results = {
        "format_version": FORMAT_VERSION,
        "checkpoint": {
            "path": str(bench.checkpoint.path),
            "weights_blake2b": bench.checkpoint.weights_blake2b,
            "lineage": bench.checkpoint.lineage,
        },
        "shards": _shards(plan.subject),
        "data": _data(arguments) if learns else None,
        "settings": {
            "dtype": "float32",
            "device": held_out_device(arguments),
            "batch_size": arguments.batch_size,
            "threads": torch.get_num_threads(),
        },
        "fine_tuning": {**dataclasses.asdict(bench.settings), "device": str(bench.device)} if learns else None,
        "tasks": tasks,
        "failed": failed,
        "files": files,
        "code": bench.code,
        "seconds": time.perf_counter() - began,
    }
    whole = beside_earlier(results, before)
    write_results(output / RESULTS, whole)
    for note in _lost_tests(before, learned, tasks) if before and not arguments.test else ():
        print(f"note: {note}", file=sys.stderr)
    tracked = track(output / RESULTS, results) if arguments.tracking else None
    places = [f"results: {output / RESULTS}", *([f"models: {output / MODELS}"] if is_dir(output / MODELS) else [])]
    show("\n".join([*paragraphs(whole), "", *map(in_line, [*places, *([tracked] if tracked else [])])]))


def _content(task: Task, result: Result) -> dict[str, Any]:
    """What results.json has of a task."""
    return {"version": task.version, **dataclasses.asdict(result)}


def _result(task: Task, plan: Plan, failed: dict[str, str]) -> Result | None:
    """What a task found; None, and a reason in ``failed``, where it fails."""
    with going_on(failed, task.name):
        if isinstance(task, FineTuned):
            return plan.experiments[task.name].collect()
        assert plan.subject is not None
        return task.evaluate(plan.subject)
    return None


def _complete(experiments: Sequence[Experiment]) -> dict[str, str]:
    """See that the best points have what was asked for of them; returns the tasks where that fails, and why."""
    failed: dict[str, str] = {}
    for experiment in experiments:
        task = experiment.task.name
        with going_on(failed, task):
            if lacks := experiment.lacks:
                with going_on(failed, task, without=f"its {' and '.join(lacks)}"):
                    experiment.complete()
    return failed


def _lost_tests(before: dict[str, Any], experiments: Sequence[Experiment], tasks: Mapping[str, Any]) -> Iterator[str]:
    """Lines on the figures of test sets that results had of some experiments, and that their tasks have no more."""
    known = {name: task["metrics"] for found in by_command(before) for name, task in found["tasks"].items()}
    for task in (experiment.task for experiment in experiments):
        of_tests = tuple(prefix_of(part) for part in task.test_splits)
        left = tasks[task.name]["metrics"]
        if lost := [name for name in known.get(task.name, ()) if name.startswith(of_tests) and name not in left]:
            yield f"{RESULTS} has no {', '.join(lost)} of {task.name} any more; --test brings them back"


def _shards(subject: Subject | None) -> dict[str, Any] | None:
    if subject is None or subject.stream is None:
        return None
    return {
        "path": str(subject.stream.directory.path.resolve()),
        "manifest_blake2b": subject.stream.directory.manifest_blake2b,
        "sequence_length": subject.stream.sequence_length,
        "samples": subject.samples,
    }


def _data(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"path": "hub" if arguments.hub else str(arguments.data.resolve()), "limit": arguments.limit}


if __name__ == "__main__":
    end_when_interrupted("eval.run: interrupted; the same command goes on")
    sys.exit(main())
