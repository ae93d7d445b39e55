"""What the scores of a model mean, by the kind of the task."""

import numpy as np

from eval.kinds import Texts
from eval.readers.examples import TextExample


def test_confusion_has_a_row_for_each_class_and_a_column_for_what_it_was_taken_for() -> None:
    examples = [TextExample(str(i), "", None, label) for i, label in enumerate([0, 0, 1, 2, 2])]
    scores = list(np.eye(4)[[0, 1, 1, 0, 2]])
    found = Texts(("a", "b", "c", "d")).conclude(examples, [], scores)
    assert found.files["confusion.tsv"].splitlines() == [
        "label\ta\tb\tc\td",
        "a\t1\t1\t0\t0",
        "b\t0\t1\t0\t0",
        "c\t1\t0\t1\t0",
        "d\t0\t0\t0\t0",
    ]
