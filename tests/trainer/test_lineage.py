"""What a run says of the code and the libraries that it was made with."""

import platform
import shutil
import socket
import subprocess
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest

from trainer import lineage
from trainer.lineage import code_version, environment, uncommitted_changes, unlike


def test_what_is_not_installed_has_no_version_and_ends_no_run():
    installed = metadata.version

    def version(package: str) -> str:
        if package in ("bert-pretraining", "mlflow"):  # a checkout on the module path, and tracking turned off
            raise metadata.PackageNotFoundError(package)
        return installed(package)

    with mock.patch("trainer.lineage.metadata.version", version):
        code = code_version()
    assert code["version"] is None
    assert code["libraries"]["mlflow"] is None
    assert code["libraries"]["torch"] == installed("torch")


def test_the_machine_is_told_by_its_name_too():
    assert code_version()["machine"] == {
        "system": platform.platform(), "processor": platform.machine(), "host": socket.gethostname(),
    }  # fmt: skip


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with an empty commit in the place of the project's."""
    commands = (["init", "--quiet"], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet",
                "--allow-empty", "-m", "first"])  # fmt: skip
    for command in commands:
        git(tmp_path, *command)
    monkeypatch.setattr(lineage, "_ROOT", tmp_path)
    return tmp_path


def git(checkout, *arguments, **options):
    subprocess.run(["git", "-C", str(checkout), *arguments], check=True, **options)


def write(checkout, name, content):
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text(content)


def test_the_commit_is_told_without_the_line_s_end_that_git_and_a_snapshot_give_it(checkout):
    told = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert code_version()["commit"] == told.stdout.removesuffix("\n")
    write(checkout, lineage.COMMIT, "c0ffee\n")
    assert code_version()["commit"] == "c0ffee"


def test_a_machine_without_git_ends_no_run(checkout, monkeypatch):
    """As a container's image is."""
    monkeypatch.setenv("PATH", str(checkout))
    assert code_version()["commit"] is None
    assert uncommitted_changes() == ""


def test_a_snapshot_has_the_changes_of_the_checkout_that_it_was_taken_from(checkout):
    write(checkout, lineage.DIFF, "+x = 1\n")
    assert uncommitted_changes() == "+x = 1\n"
    assert code_version()["modified"] is True


def test_a_second_work_tree_of_a_repository_is_a_checkout_too(checkout, monkeypatch):
    """Whose .git is a file."""
    git(checkout, "worktree", "add", "--quiet", "tree")
    monkeypatch.setattr(lineage, "_ROOT", checkout / "tree")
    write(checkout, "tree/trainer/new.py", "x = 1\n")
    assert len(code_version()["commit"]) == 40
    assert "+x = 1\n" in uncommitted_changes()


def test_a_repository_without_a_commit_has_none(tmp_path, monkeypatch):
    """Git says HEAD then, and that this is an error."""
    git(tmp_path, "init", "--quiet")
    monkeypatch.setattr(lineage, "_ROOT", tmp_path)
    assert code_version()["commit"] is None


def test_another_project_s_repository_around_this_one_says_nothing(checkout, monkeypatch):
    """Such as that of somebody who has installed this project below his own."""
    write(checkout, "installed/trainer/model.py", "x = 1\n")
    monkeypatch.setattr(lineage, "_ROOT", checkout / "installed")
    assert code_version()["commit"] is None
    assert uncommitted_changes() == ""


def test_a_change_in_another_encoding_ends_no_run(checkout):
    (checkout / "notes.txt").write_bytes(b"caf\xe9\n")
    git(checkout, "add", "notes.txt")
    assert code_version()["modified"] is True
    assert "+caf\ufffd" in uncommitted_changes()


def test_a_module_that_git_does_not_know_yet_is_a_change(checkout):
    modules = {"trainer/new.py": "x = 1\n", "eval/readers/neu\u00e9 1.py": "y = 2\n", "cluster/__init__.py": ""}
    for name, content in modules.items():
        write(checkout, name, content)
    assert code_version()["modified"] is True
    patch = uncommitted_changes()
    for name in modules:
        (checkout / name).unlink()
    git(checkout, "apply", input=patch.encode())
    assert {name: (checkout / name).read_text() for name in modules} == modules


def test_other_files_that_git_does_not_know_are_none(checkout):
    for name in ("trainer/notes.txt", "scratch.py", "trainer/ignored.py"):
        write(checkout, name, "z = 3\n")
    write(checkout, ".git/info/exclude", "ignored.py\n")
    assert code_version()["modified"] is False


def test_new_modules_without_end_are_named(checkout):
    for name, lines in (("trainer/a.py", 1), ("trainer/b.py", 300_000), ("trainer/c.py", 1)):
        write(checkout, name, f"{name[-4]} = 1\n" * lines)
    patch = uncommitted_changes()
    assert len(patch) < 1000
    assert "new, but too large for this patch: trainer/b.py\n" in patch
    for name in ("trainer/a.py", "trainer/c.py"):
        (checkout / name).unlink()
    git(checkout, "apply", input=patch.encode())
    assert (checkout / "trainer/c.py").read_text() == "c = 1\n"


def test_the_patch_has_room_for_so_many_new_modules_and_names_the_others(checkout):
    """They are copied into every run: none of these is too large by itself."""
    for name in ("trainer/a.py", "trainer/b.py", "trainer/c.py"):
        write(checkout, name, f"{name[-4]} = 1\n" * 70_000)
    patch = uncommitted_changes()
    assert len(patch) < 1 << 20
    assert patch.endswith("new, but too large for this patch: trainer/c.py\n")
    assert "+b = 1\n" in patch


def test_an_environment_is_the_code_that_trains_wherever_it_lies_and_the_libraries(checkout, monkeypatch, tmp_path):
    write(checkout, "trainer/recipes/a.py", "1\n")
    write(checkout, "preprocessing/a.py", "2\n")
    mine = environment()
    assert mine["torch"] == metadata.version("torch")
    shutil.copytree(checkout / "trainer", tmp_path / "elsewhere" / "trainer")
    shutil.copytree(checkout / "preprocessing", tmp_path / "elsewhere" / "preprocessing")
    (tmp_path / "elsewhere" / "trainer" / ".#a.py").symlink_to("nobody@nowhere")  # Emacs has it open
    write(tmp_path / "elsewhere", "eval/a.py", "3\n")
    monkeypatch.setattr(lineage, "_ROOT", tmp_path / "elsewhere")
    assert environment() == mine
    (tmp_path / "elsewhere" / "preprocessing" / "a.py").rename(tmp_path / "elsewhere" / "preprocessing" / "b.py")
    assert unlike(environment(), mine) == ["other code"]
    assert unlike({**mine, "numpy": "1.0"}, {**mine, "numpy": "2.0"}) == ["numpy 1.0, not 2.0"]
    assert unlike(mine, mine) == []


def test_an_environment_is_the_same_whatever_order_a_disk_lists_files_in(checkout, monkeypatch):
    for name in ("a", "b", "recipes/c"):
        write(checkout, f"trainer/{name}.py", "1\n")
    mine, listed = environment(), Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda *given: reversed(list(listed(*given))))
    assert environment() == mine
