"""Names in a message."""

import pytest

from trainer.naming import name_some


@pytest.mark.parametrize(
    ("names", "expected"),
    [([], ""), (["a"], "a"), (list("abcd"), "a, b, c, d"), (list("abcdefg"), "a, b, c, d and 3 more")],
)
def test_the_first_four_are_named(names, expected):
    assert name_some(names) == expected
