"""Names in messages and tables."""

from pathlib import Path, PurePosixPath

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


class _Looked(PurePosixPath):
    """Counts how often its parts are looked at."""

    looks = 0

    @property
    def parts(self):
        type(self).looks += 1
        return super().parts


def test_of_many_paths_none_is_compared_with_all_others():
    """Of a thousand directories that took half a second, each time that one was to be named."""
    paths = [_Looked(f"/data/{number:03}/shards") for number in range(500)]
    assert list(tell_apart(paths).values()) == [f"{number:03}/shards" for number in range(500)]
    assert _Looked.looks < 20 * len(paths)
