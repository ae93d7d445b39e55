"""What a run says of the code and the libraries that it was made with."""

import subprocess
from importlib import metadata
from unittest import mock

from trainer import lineage
from trainer.lineage import code_version, uncommitted_changes


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


def test_a_change_in_another_encoding_ends_no_run(tmp_path, monkeypatch):
    commands = (["init", "--quiet"], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet",
                "--allow-empty", "-m", "first"])  # fmt: skip
    for command in commands:
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    (tmp_path / "notes.txt").write_bytes(b"caf\xe9\n")
    subprocess.run(["git", "-C", str(tmp_path), "add", "notes.txt"], check=True)
    monkeypatch.setattr(lineage, "_ROOT", tmp_path)
    assert code_version()["modified"] is True
    assert "+caf\ufffd" in uncommitted_changes()
