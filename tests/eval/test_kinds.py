"""What the scores of a model mean, by the kind of the task."""

import numpy as np

from eval.kinds import Questions, Texts
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


def test_points_of_the_usual_lengths_are_made_as_before_windows_of_short_sequences_overlapped() -> None:
    kind = Questions("v1.1")
    assert [kind.encoding(length) for length in (384, 256, 225)] == [{}, {}, {}]
    assert [kind.encoding(length)["stride"] for length in (224, 192, 128)] == [127, 95, 31]
    assert Texts(("a", "b")).encoding(128) == {}
