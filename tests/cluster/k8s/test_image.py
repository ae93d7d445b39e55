"""The images' Dockerfile and the versions in them; tests/cluster/test_kubernetes.py builds one."""

from __future__ import annotations

import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import ROOT

IMAGE = ROOT / "cluster" / "image"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LEFT_OUT = {"deepspeed", "mlflow", "nvidia-ml-py", "torch"}  # of the preprocessing image


def locked(name: str) -> dict[str, Version]:
    lines = (IMAGE / name).read_text(encoding="utf-8").splitlines()
    pinned = [line.partition(";")[0].strip().partition("==") for line in lines]
    return {canonicalize_name(package): Version(version) for package, _, version in pinned}


def wanted(*extras: str) -> list[Requirement]:
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


def stage_of(name: str) -> str:
    """The lines of a stage of the Dockerfile."""
    return (IMAGE / "Dockerfile").read_text(encoding="utf-8").partition(f" AS {name}\n")[2].partition("FROM ")[0]


def test_the_linter_finds_nothing():
    linted = subprocess.run(["hadolint", IMAGE / "Dockerfile"], capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize(
    ("name", "extras", "left_out"),
    [("pretraining.txt", ["eval"], set()), ("preprocessing.txt", ["preprocess", "fast"], LEFT_OUT)],
)
def test_the_locked_versions_are_what_the_project_wants(name, extras, left_out):
    found = locked(name)
    for requirement in wanted(*extras):
        version = found.get(canonicalize_name(requirement.name))
        if requirement.name in left_out:
            assert version is None
        else:
            assert version in requirement.specifier if version else False, f"{requirement}: run cluster/image/lock"


@pytest.mark.parametrize("name", ["pretraining", "preprocessing"])
def test_packages_of_a_user_s_own_leave_the_locked_versions_alone(name):
    stage = stage_of(f"install-{name}")
    (adds,) = [line for line in stage.splitlines() if line.endswith(" $PACKAGES")]
    assert f"--constraints /opt/{name}.txt " in adds
    assert stage.index("ARG PACKAGES") < stage.index(adds)


@pytest.mark.parametrize("name", ["pretraining", "preprocessing"])
def test_the_images_user_may_read_the_code_of_any_checkout(name):
    """COPY keeps the modes of files, which a umask of 077 makes their owner's alone."""
    assert "RUN chmod -R a+rX . " in stage_of(f"install-{name}").partition("COPY . .\n")[2]


def test_nccl_finds_the_libraries_of_adapters_in_the_image():
    """It loads libibverbs by name, and without it takes TCP and says nothing."""
    assert {"libibverbs1", "ibverbs-providers", "librdmacm1"} <= set(stage_of("pretraining").split())


def test_both_images_write_and_read_shards_with_the_same_libraries():
    pretraining, preprocessing = locked("pretraining.txt"), locked("preprocessing.txt")
    for package in ("numpy", "pyarrow", "tokenizers"):
        assert pretraining[package] == preprocessing[package]


def test_the_beam_of_the_image_is_the_beam_of_its_worker_program_and_job_server():
    beam = str(locked("preprocessing.txt")["apache-beam"])
    assert f"apache/beam_python3.11_sdk:{beam}" in (IMAGE / "Dockerfile").read_text(encoding="utf-8")
    submit = ROOT / "cluster" / "k8s" / "base" / "preprocess" / "flink" / "submit.yaml"
    assert f"_job_server:{beam}" in submit.read_text(encoding="utf-8")


def test_the_images_of_the_manifests_have_the_projects_version():
    for pod in (ROOT / "cluster" / "k8s" / "base").glob("*/pod.yaml"):
        assert f":{PROJECT['version']}\n" in pod.read_text(encoding="utf-8")
    assert metadata.version("bert-pretraining") == PROJECT["version"]


def test_only_the_project_goes_into_the_image():
    kept = {line[1:] for line in (IMAGE / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in kept)
    assert {path.name for path in map(Path, kept)} >= {"trainer", "preprocessing", "eval", "cluster", "ds_config.json"}
