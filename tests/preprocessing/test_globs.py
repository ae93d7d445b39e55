from __future__ import annotations

import os
from pathlib import Path

import pytest

from preprocessing.inputs import find_inputs
from preprocessing.sources import SourceError


def test_links_that_lead_back_to_a_folder_are_entered_once(tmp_path: Path) -> None:
    """Two of a folder to itself would make as many paths as there are ways to take one or the other at every step."""
    for folder in ("a/b/c", "other", ".hidden"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.txt").write_text(folder)
    for link, target in {"a/one": ".", "a/two": ".", "a/b/up": "../..", "far": "other", "other/a": "../a"}.items():
        (tmp_path / link).symlink_to(target)
    notes: list[str] = []

    def names(pattern: str) -> list[str]:
        return [file.name for file in find_inputs({"books": [f"{tmp_path}/{pattern}"]}, notes.append)]

    assert names("**/*.txt") == names("**/**/x.txt") == names("**") == ["a/b/c/x.txt", "far/x.txt"]
    assert names("**/b/*/x.txt") == ["a/b/c/x.txt"]
    assert names("a/**/b/**/*.txt") == ["b/c/x.txt", "b/up/far/x.txt"]
    assert names("*/*.txt") == ["far/x.txt"]
    told = f"{tmp_path}/other/x.txt to that of {tmp_path}/far/x.txt"
    assert notes == [f"1 path to a file named already passed over, such as {told}"]


def test_broken_links_and_pipes_that_a_glob_matches_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.txt").mkdir()
    assert [file.name for file in find_inputs({"books": [f"{tmp_path}/*.txt"]}, print)] == ["a.txt"]
    for target in ("nowhere", "link.txt"):
        (tmp_path / "link.txt").symlink_to(target)
        for pattern in ("*.txt", "link.txt"):
            with pytest.raises(SourceError, match=r"link\.txt: a link that leads nowhere; mend it, or remove it$"):
                find_inputs({"books": [f"{tmp_path}/{pattern}"]}, print)
        (tmp_path / "link.txt").unlink()
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(SourceError, match=r"pipe\.txt: no regular file"):
        find_inputs({"books": [f"{tmp_path}/*.txt"]}, print)


@pytest.mark.parametrize("pattern", ["{0}", "{0}/book.txt", "{0}/*.txt"])
def test_a_path_that_can_not_be_looked_at_is_told(tmp_path: Path, pattern: str) -> None:
    """As of a folder that this user may not enter; from Python 3.14 on such a path is one that is not there."""
    with pytest.raises(SourceError, match=r"can't look for input files \(.*File name too long|no input file matches"):
        find_inputs({"books": [f"{tmp_path}/" + pattern.format("a" * 300)]}, print)
