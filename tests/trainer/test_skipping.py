"""What messages say of samples that are passed over."""

import pytest

from trainer.config import load_recipe
from trainer.skipping import count_skipped, skip_setting


@pytest.mark.parametrize(("ranges", "expected"), [
    ([(24, 80)], ((24, 80),)),
    ([(24, 80), (2, 4)], ((2, 4), (24, 80))),
    ([(2, 4), (4, 6), (5, 9), (6, 7)], ((2, 9),)),
    ([(2, 9), (2, 3), (10, 11)], ((2, 9), (10, 11))),
])  # fmt: skip
def test_it_has_all_ranges_and_may_be_given_as_it_is(recipe, ranges, expected):
    """One word to a shell."""
    setting = skip_setting(ranges)
    assert " " not in setting
    assert load_recipe(recipe, [setting]).data.skip == expected


@pytest.mark.parametrize(("first", "last", "expected"), [(0, 100, 17), (3, 100, 16), (0, 21, 8), (9, 20, 0), (4, 5, 1)])
def test_a_sample_that_two_ranges_have_is_skipped_once(first, last, expected):
    assert count_skipped([(20, 30), (2, 8), (5, 9)], first, last) == expected
