from __future__ import annotations

import os

import pytest

from cluster.paths import current_folder, fingerprint, is_seen, whole
from trainer.settings import ConfigError


@pytest.fixture
def linked(tmp_path, monkeypatch):
    """A folder real/deep, a link to it, and the current folder above both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/deep")
    return tmp_path


def test_a_path_is_made_whole_and_keeps_its_links(linked):
    assert whole("link/new") == linked / "link" / "new"
    assert whole(linked / "link") == linked / "link"
    assert whole("./link//x/") == linked / "link" / "x"
    assert whole(".") == linked


def test_two_dots_lead_up_from_where_the_link_leads_to_as_they_do_for_every_program(linked):
    (linked / "real" / "x").mkdir()
    assert whole("link/../x") == linked / "real" / "x"
    assert whole("link/../x").samefile("link/../x")
    assert whole("../../" + "../" * 20 + "etc/passwd").as_posix() == "/etc/passwd"


def test_a_leading_tilde_is_the_home_folder(linked, monkeypatch):
    monkeypatch.setenv("HOME", str(linked / "real"))
    assert whole("~/runs") == linked / "real" / "runs"
    assert whole("link/~") == linked / "link" / "~"


@pytest.mark.parametrize("path", ["$FOO/shards", "$foo/shards", "a/${FOO}/b", "/x/$HOME", "~nobody-of-this-name/x"])
def test_what_only_a_shell_would_replace_is_refused(linked, path):
    with pytest.raises(ConfigError, match="no shell reads this, so it is not replaced; write the path out"):
        whole(path)


def test_an_empty_path_is_not_the_current_folder(linked):
    """A shell makes one of a variable that is not set."""
    with pytest.raises(ConfigError, match="the path is empty"):
        whole("")


@pytest.mark.parametrize("path", ["a$", "5$/b", "$(x)", "$5", "x~", "./~x"])
def test_dollars_and_tildes_that_a_name_may_have_are_left(linked, path):
    assert whole(path) == linked / path


@pytest.mark.parametrize("path", ["circle/x", "circle/../x", "real/../circle/x", "nothing/../circle/x", "~/circle"])
def test_links_that_lead_in_a_circle_are_refused(linked, monkeypatch, path):
    monkeypatch.setenv("HOME", str(linked))
    (linked / "circle").symlink_to("around")
    (linked / "around").symlink_to("circle")
    with pytest.raises(ConfigError, match=f"^{path}: its links lead in a circle"):
        whole(path)


def test_the_link_behind_two_dots_stays(linked, monkeypatch):
    monkeypatch.chdir(linked / "real")
    assert whole("../link/x") == linked / "link" / "x"


@pytest.mark.parametrize(
    ("shell", "right"),
    [("link", True), ("real/deep", True), ("link/../deep", False), ("real", False), ("nowhere", False),
     ("file/x", False), (None, False)],
)  # fmt: skip
def test_the_current_folder_is_called_as_the_shell_calls_it_where_it_is_that_one(linked, monkeypatch, shell, right):
    (linked / "file").touch()
    monkeypatch.chdir(linked / "link")
    monkeypatch.delenv("PWD", raising=False)
    if shell:
        monkeypatch.setenv("PWD", f"{linked}/{shell}")
    assert current_folder() == (linked / str(shell) if right else linked / "real" / "deep")
    assert current_folder().samefile(os.curdir)


def test_a_relative_name_in_the_environment_is_no_current_folder(linked, monkeypatch):
    monkeypatch.setenv("PWD", ".")
    assert current_folder() == linked


def test_seen_is_what_lies_in_a_folder_and_leads_to_nothing_outside(linked):
    (linked / "link" / "out").symlink_to("/etc")
    (linked / "link" / "other").symlink_to(linked / "other")
    assert is_seen(linked / "link" / "new" / "x", [linked / "link"])
    assert not is_seen(linked / "link" / "out" / "passwd", [linked / "link"])
    assert not is_seen(linked / "link" / "other", [linked / "link"])
    assert is_seen(linked / "link" / "other" / "x", [linked / "link", linked / "other"])
    assert not is_seen(linked / "real" / "deep" / "x", [linked / "link"])  # not by this name
    assert not is_seen(linked / "link" / "x", [linked / "real"])  # what it leads to alone
    assert not is_seen(linked / "linked", [linked / "link"])
    (linked / "apart").mkdir()
    (linked / "apart" / "x").symlink_to(linked / "real" / "deep" / "x")
    assert not is_seen(linked / "apart" / "x", [linked / "apart", linked / "link"])  # that folder is not seen as real
    assert not is_seen(linked, [])


def test_a_fingerprint_is_one_for_all_names_of_a_path_and_another_for_another(linked):
    assert fingerprint(linked / "link" / "x") == fingerprint(linked / "real" / "deep" / "x")
    assert fingerprint(linked / "link" / "x") != fingerprint(linked / "real" / "x")
