from __future__ import annotations

import errno
import glob
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from preprocessing.globs import expand, files_below
from preprocessing.inputs import find_inputs
from preprocessing.sources import SourceError, StorageError
from preprocessing.storage_errors import exit_code

Refused = Callable[..., None]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Have a call of os fail on a path and below, as for a user who has no permission there: root has it everywhere."""

    def refuse(call: str, place: Path, error: OSError | None = None) -> None:
        original = getattr(os, call)

        def look(path: object, *others: object, **more: object) -> object:
            if f"{path}/".startswith(f"{place}/"):
                raise error or PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return original(path, *others, **more)

        monkeypatch.setattr(os, call, look)

    return refuse


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


@pytest.mark.parametrize("pattern", ["**/*.txt", "*/*.txt", "locked/*.txt", "**"])
def test_a_folder_that_may_not_be_looked_into_is_told(tmp_path: Path, pattern: str, refused: Refused) -> None:
    """Left out without a word, the corpus would not be the one that was meant."""
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.txt").write_text("x")
    refused("listdir", tmp_path / "locked")
    with pytest.raises(SourceError, match=r"locked: can't be looked into \(Permission denied\); have it readable"):
        find_inputs({"books": [f"{tmp_path}/{pattern}"]}, print)


@pytest.mark.parametrize("pattern", ["**/*.txt", "locked/inner/*.txt", "locked/*/a.txt"])
def test_a_folder_that_may_be_listed_and_not_entered_is_told(tmp_path: Path, pattern: str, refused: Refused) -> None:
    (tmp_path / "locked" / "inner").mkdir(parents=True)
    (tmp_path / "locked" / "inner" / "a.txt").write_text("x")
    for call in ("stat", "listdir"):
        refused(call, tmp_path / "locked" / "inner")
    with pytest.raises(SourceError, match=r"Permission denied"):
        find_inputs({"books": [f"{tmp_path}/{pattern}"]}, print)


@pytest.mark.parametrize(
    ("pattern", "call"),
    [("a.txt", "stat"), ("*.txt", "stat"), ("**", "stat"), ("*.txt", "listdir"), ("**", "listdir")],
)
def test_storage_that_fails_while_inputs_are_looked_for_is_no_mistake(
    tmp_path: Path, pattern: str, call: str, refused: Refused
) -> None:
    """From Python 3.14 on, pathlib's own looks take it for a path that is not there."""
    (tmp_path / "a.txt").write_text("x")
    refused(call, tmp_path, OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path)))
    with pytest.raises(
        StorageError, match=r"can't look for input files \(.*Input/output error.*; once it can be read"
    ) as raised:
        expand(f"{tmp_path}/{pattern}")
    assert exit_code(raised.value) == 1


@pytest.mark.parametrize("call", ["stat", "listdir"])
def test_storage_that_fails_while_a_folder_is_searched_is_no_mistake(
    tmp_path: Path, call: str, refused: Refused
) -> None:
    (tmp_path / "a.txt").write_text("x")
    refused(call, tmp_path, OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path)))
    with pytest.raises(StorageError) as raised:
        files_below(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path}: can't be read (Input/output error); once it can, the same command goes on"
    )
    assert exit_code(raised.value) == 1


def test_a_folder_that_can_not_be_searched_for_another_reason_is_a_mistake(tmp_path: Path, refused: Refused) -> None:
    refused("listdir", tmp_path, OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(tmp_path)))
    with pytest.raises(SourceError, match=r"can't be searched \(.*Invalid argument") as raised:
        files_below(tmp_path)
    assert exit_code(raised.value) == 2


def test_a_folder_that_is_gone_when_it_is_looked_into_is_none(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "a.txt").write_text("x")
    refused("listdir", tmp_path / "gone", FileNotFoundError(errno.ENOENT, "gone"))
    for pattern in ("**/*.txt", "**"):
        assert [file.name for file in find_inputs({"books": [f"{tmp_path}/{pattern}"]}, print)] == ["a.txt"]


def test_a_file_that_is_gone_when_it_is_looked_at_is_none(tmp_path: Path, refused: Refused) -> None:
    for name in ("a.txt", "gone.txt"):
        (tmp_path / name).write_text("x")
    refused("stat", tmp_path / "gone.txt", FileNotFoundError(errno.ENOENT, "gone"))
    assert [file.name for file in expand(f"{tmp_path}/*.txt")] == ["a.txt"]


def test_globs_match_as_those_of_python_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "b/a.txt", "b/c/d.txt", "b/.hidden/e.txt", ".f.txt", "g[1]/h.txt", "b/i-1.txt", "b/i-2.TXT"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    patterns = [
        "*.txt",
        "**",
        "**/*.txt",
        "b/**/*.txt",
        ".*",
        "b/.*/*",
        "*/?.txt",
        "./b/i-[!2]*",
        "g[[]1]/*",
        "b//*.txt",
    ]
    for pattern in (*patterns, "b/../*.txt", "*/../a.txt", "*/", "b/*/", "**/c/*", "**/**/d.txt", "g[1]/h.txt", "b/c"):
        expected = {str((tmp_path / path).resolve()) for path in glob.glob(pattern, recursive=True)}  # noqa: PTH207
        expected = {path for path in expected if Path(path).is_file() and pattern[-1:] != "/"}
        for asked in (pattern, f"{tmp_path}/{pattern}"):
            try:
                found = {str(Path(file.path).resolve()) for file in expand(asked)}
            except SourceError:
                found = set()
            assert found == expected | ({f"{tmp_path}/g[1]/h.txt"} if pattern == "g[1]/h.txt" else set()), pattern
