"""What a run says of the code and the libraries that it was made with."""

from importlib import metadata
from unittest import mock

from trainer.lineage import code_version


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
