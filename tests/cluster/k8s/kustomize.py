"""Manifests as a cluster gets them: what `kubectl apply -k` would send."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def build(directory: Path) -> list[dict[str, Any]]:
    """The objects of a kustomization."""
    done = subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def write(directory: Path, files: Mapping[str, str]) -> Path:
    """Write rendered files."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


def pods(value: Any) -> Iterator[dict[str, Any]]:
    """Every Pod's spec within objects of whatever kind."""
    return (template["spec"] for template in pod_templates(value))


def pod_templates(value: Any) -> Iterator[dict[str, Any]]:
    """Every Pod's template within objects of whatever kind."""
    return within(value, lambda found: "containers" in found.get("spec", {}))


def jobs(value: Any) -> Iterator[dict[str, Any]]:
    """Every Job's spec, of a set or by itself, within objects of whatever kind."""
    return within(value, lambda found: {"backoffLimit", "backoffLimitPerIndex"} & found.keys())


def within(value: Any, is_wanted: Callable[[dict[str, Any]], object]) -> Iterator[dict[str, Any]]:
    """Every mapping of a kind within lists and mappings."""
    if isinstance(value, dict):
        if is_wanted(value):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for child in value:
            yield from within(child, is_wanted)


def containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All containers of a Pod, those that come first too."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def only(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one object of a kind."""
    (found,) = [item for item in objects if item["kind"] == kind]
    return found


def variables(container: Mapping[str, Any]) -> dict[str, str]:
    """The variables that have a plain value."""
    return {item["name"]: item["value"] for item in container.get("env", []) if "value" in item}
