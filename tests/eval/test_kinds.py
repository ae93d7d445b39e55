"""What the scores of a model mean, by the kind of the task."""

from pathlib import Path

import numpy as np
import pytest

from eval.kinds import PREDICTIONS, Questions, Texts, read_predictions
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


@pytest.mark.parametrize(("labels", "expected"), [(("no", "yes"), [1, 0]), ((), [0.25, 1.5])])
def test_predictions_are_read_as_they_were_written(tmp_path: Path, labels: tuple[str, ...], expected: list) -> None:
    """Whatever an id holds: lines end with LF alone."""
    examples = [TextExample(id, "", None, None) for id in ("a\rb", "\u2028")]  # noqa: A001
    scores = np.array([[0.25, 0.5], [1.5, 0.0]])
    found = Texts(labels).conclude(examples, [], list(scores))
    assert found.metrics == {}
    (tmp_path / PREDICTIONS).write_text(found.files[PREDICTIONS], encoding="utf-8")
    assert read_predictions(tmp_path / PREDICTIONS, labels) == list(zip(("a\rb", "\u2028"), expected, strict=True))


def test_points_of_the_usual_lengths_are_made_as_before_windows_of_short_sequences_overlapped() -> None:
    kind = Questions("v1.1")
    assert [kind.encoding(length) for length in (384, 256, 225)] == [{}, {}, {}]
    assert [kind.encoding(length)["stride"] for length in (224, 192, 128)] == [127, 95, 31]
    assert Texts(("a", "b")).encoding(128) == {}
