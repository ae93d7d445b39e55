"""Names in messages and tables."""

from pathlib import Path

import pytest

from trainer.naming import name_some, tell_apart


@pytest.mark.parametrize(
    ("names", "expected"),
    [([], ""), (["a"], "a"), (list("abcd"), "a, b, c, d"), (list("abcdefg"), "a, b, c, d and 3 more")],
)
def test_the_first_four_are_named(names, expected):
    assert name_some(names) == expected


def test_paths_are_told_apart_by_as_little_as_can_be():
    paths = [Path(path) for path in ("/a/x/large", "/b/x/large", "/b/base", "/base", "/c/x")]
    assert list(tell_apart([*paths, paths[0]]).values()) == ["a/x/large", "b/x/large", "b/base", "/base", "x"]
