"""What lies beside results.json: the best points' predictions, and GLUE's submission, which is made of them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence, Set
from pathlib import Path

from eval.experiment import Experiment
from eval.kinds import PREDICTIONS, read_predictions
from eval.options import SUBMISSION
from eval.results import MODELS, PREDICTED, RESULTS
from eval.storage import reading
from eval.submission import tables_in, write_glue_submission
from eval.tasks import GROUPS
from eval.tasks.finetuned import FINE_TUNED, FineTuned
from eval.workers import going_on
from preprocessing.status import is_file

_Labels = dict[str, list[tuple[str, float]]]  # data set -> (id, label) of each example


def publish(
    output: Path, experiments: Sequence[Experiment], there: Collection[str], failed: dict[str, str]
) -> list[str]:
    """Put the best points' predictions into a folder; all that lie there of GLUE's test sets are its submission.

    Args:
        output: of the evaluation.
        experiments: those of this command that have results.
        there: tasks that have results, those of earlier commands too.
        failed: tasks that are known to have failed, and why; those are added whose predictions can't be written, or
            whose points can't be read any more, and GLUE's where its submission can't be written.

    Returns:
        The paths of both, as far as there is something of this command in them, below the output.
    """
    names = []
    for experiment in experiments:
        with going_on(failed, experiment.task.name, without="its predictions"):
            experiment.publish()
            names.append(experiment.task.name)
        with going_on(failed, experiment.task.name):
            if experiment.has_another_model:
                told = f"{MODELS}/{experiment.task.name} is of another point than {RESULTS} has"
                print(f"note: {told}; --save-models replaces it", file=sys.stderr)
    published = [f"{PREDICTED}/{name}" for name in names]
    outdated = {experiment.task.name for experiment in experiments} - {*names}
    submitted, lost = False, dict[str, str]()
    with going_on(lost, SUBMISSION):
        submitted = _submit(output, there, outdated, names, failed)
    for name in names:
        if lost and name in GROUPS["glue"]:
            failed.setdefault(name, f"without {SUBMISSION}: {lost[SUBMISSION]}")
    return [*published, SUBMISSION] if submitted else published


def _submit(
    output: Path, there: Collection[str], outdated: Set[str], names: Sequence[str], failed: dict[str, str]
) -> bool:
    """Make GLUE's submission of what lies in the output; of what goes from one that was there, a note is told.

    One that is there stays where predictions can't be read, or where none are left but of tasks that are outdated.

    Args:
        output: of the evaluation.
        there: tasks that have results.
        outdated: those of them whose predictions could not be written, so that what lies there may be another point's.
        names: those of them whose predictions are new.
        failed: tasks that are known to have failed, and why; those are added whose predictions can't be read.

    Returns:
        Whether there is something of those in it.
    """
    file, tests = output / SUBMISSION, dict[str, _Labels]()
    glue = [FINE_TUNED[name] for name in GROUPS["glue"] if name in there]
    for task in glue:
        if task.name not in outdated:
            with going_on(failed, task.name):
                tests[task.name] = _tests_of(output, task)
    labels = {dataset: labels for of_task in tests.values() for dataset, labels in of_task.items()}
    lacking = [task.name for task in glue if task.name not in tests]
    if lacking and not (labels and outdated >= {*lacking}) and is_file(file):
        told = f"{SUBMISSION} stays as it was: predictions of {', '.join(lacking)} can't be written or read now"
        print(f"note: {told}; run the same command again", file=sys.stderr)
        return False
    before, problems = tables_in(file), tuple[str, ...]()
    if labels:
        problems = write_glue_submission(labels, file)
    else:
        file.unlink(missing_ok=True)
    left = tables_in(file)
    if gone := [name for name in before if name not in left]:
        print(f"note: {SUBMISSION} has no {', '.join(gone)} any more; --test brings it back", file=sys.stderr)
    if not any(tests.get(name) for name in names):
        return False
    if problems:
        print(f"note: GLUE will reject {SUBMISSION}: {'; '.join(problems)}", file=sys.stderr)
    return True


def _tests_of(output: Path, task: FineTuned) -> _Labels:
    """Data set -> (id, label) of each test example, of a task's test sets that were predicted.

    A damaged table, of an earlier command perhaps, is told and left out: it is no reason to lose what was measured now.

    Raises:
        UsageError: a table is not for this user to read.
        UnavailableError: a table can't be read now.
    """
    found: _Labels = {}
    for part, (dataset, _) in task.test_splits.items():
        file = output / PREDICTED / task.name / f"{part}_{PREDICTIONS}"
        with reading(file):
            try:
                if is_file(file):
                    found[dataset] = read_predictions(file, task.kind.classes)
            except (ValueError, IndexError) as error:
                told = f"{SUBMISSION} goes without {dataset}: {file} is damaged ({error})"
                print(f"note: {told}; evaluate {task.name} with --test again", file=sys.stderr)
    return found
