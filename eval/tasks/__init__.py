"""The tasks that an export can be evaluated on. A task is a row of a table; a group is a name for several.

Rows of tasks that need no training are in eval.tasks.intrinsic, all others in eval.tasks.finetuned; a file of the
user's may describe one more (eval.tasks.own).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from eval.errors import UsageError
from eval.results import FINAL, MODELS, PREDICTED, STATES
from eval.tasks.finetuned import FINE_TUNED, FineTuned
from eval.tasks.intrinsic import INTRINSIC, Intrinsic
from eval.tasks.own import SUFFIX, read_task

Task = Intrinsic | FineTuned
TASKS: dict[str, Task] = {**INTRINSIC, **FINE_TUNED}
GROUPS = {
    "pretraining": ("mlm", "nsp"),
    "glue": ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"),
    "squad": ("squad_v1", "squad_v2"),
    "conll2003_features": tuple(name for name in FINE_TUNED if name.startswith("conll2003_")),
    "korean": ("nsmc", "kornli", "korsts", "korquad"),
}


def select(names: Sequence[str]) -> list[Task]:
    """The tasks that names of tasks and groups, and files that describe one, stand for, each once, by first mention.

    Raises:
        UsageError: an unknown name, or none; a file that describes no task, or one whose name is taken.
    """
    own = {name: _read_own(Path(name)) for name in dict.fromkeys(names) if name.endswith(SUFFIX)}
    if len({task.name for task in own.values()}) < len(own):
        raise UsageError(f"two of {', '.join(own)} have one name; rename one")
    resolved = [task for name in names for task in GROUPS.get(name, (name,))]
    if unknown := [name for name in resolved if name not in TASKS and name not in own]:
        raise UsageError(f"no task is named {unknown[0]!r}; {_advice(unknown[0])}")
    if not resolved:
        raise UsageError(f"no tasks; name some of {', '.join([*TASKS, *GROUPS])}")
    return list({task.name: task for task in ((TASKS | own)[name] for name in resolved)}.values())


def list_all() -> str:
    """All tasks, and all groups with their members, for a reader."""
    groups = ", ".join(f"{group} ({' + '.join(members)})" for group, members in GROUPS.items())
    return f"Tasks: {', '.join(TASKS)}; groups: {groups}."


def _advice(name: str) -> str:
    """What may be meant by an unknown name: the file of a task that lies there, or a name that is spelled alike."""
    place = Path(name)
    file = place.parent / f"{place.name.partition('.')[0] or 'tickets'}{SUFFIX}"
    if os.path.isfile(file):  # noqa: PTH113  where it can't be looked for pathlib's raises
        return f"a task of your own is named by its file, {file}"
    if near := get_close_matches(name.lower(), (*TASKS, *GROUPS)):
        return f"did you mean {' or '.join(near)}?"
    known = f"there are {', '.join(INTRINSIC)}, the groups {', '.join(GROUPS)} and what python -m eval.run --help lists"
    return "; ".join([*([] if place.suffix else [known]), f"a task of your own is a file, such as {file}"])


def _read_own(path: Path) -> Task:
    task = read_task(path)
    if task.name.lower() in (*TASKS, *GROUPS, PREDICTED, MODELS, STATES, FINAL):
        raise UsageError(f"{path}: {task.name} is a name of ours; give the file another one")
    return task
