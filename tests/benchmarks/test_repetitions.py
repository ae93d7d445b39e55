"""The records that are made up are those of a first pass, with repeated lines or near duplicates and without."""

import math

import pytest

from preprocessing.dedup import Reason, Review
from preprocessing.fingerprints import RepeatRule
from repetitions import PER_RUN, made_up, search

RULE = RepeatRule(documents=True, lines=True, line_characters=100, near_duplicates=None)
NEAR = RepeatRule(documents=True, lines=False, line_characters=100, near_duplicates=0.6)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.5, 50_000 * 0.5 * math.exp(-0.5))])
def test_lines_are_repeated_as_often_as_asked(tmp_path, share, expected):
    runs = made_up(tmp_path, 10_000, 5, share)
    assert [run.documents.num_rows for run in runs] == [PER_RUN, PER_RUN, 2_000]
    found = Review(runs, RULE)  # as many repeat another one as there are hashes that no line has
    assert sum(batch.num_rows for batch in found.drop_lines(1)) == pytest.approx(expected, rel=0.02)
    assert set(found.lost.tolist()) <= {0, Reason.REPEATED_LINES}


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.3, 10_000 * 0.3 * math.exp(-0.3))])
def test_documents_are_near_duplicates_as_often_as_asked(tmp_path, share, expected):
    runs = made_up(tmp_path, 10_000, 0, 0.0, share)
    assert search(runs, NEAR) == pytest.approx(expected, rel=0.05)
