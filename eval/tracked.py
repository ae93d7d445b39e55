"""Results as MLflow gets them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.evaluated import run_directory
from eval.results import WITHOUT_MEANING, tags_of
from eval.workers import describe
from preprocessing.schema import checksum_of
from trainer.credentials import without_credentials


def track(file: Path, results: dict[str, Any]) -> str | None:
    """Record results in MLflow; whatever goes wrong there is a warning, as the results are on disk.

    Returns:
        Where they are now; None where they are not.
    """
    try:
        from trainer.tracking import evaluation_store, log_evaluation  # seconds to import

        store = evaluation_store([tracked_run(results["checkpoint"], file)], file.parent)
        files = [file, *(file.parent / name for name in results["files"])]
        name = f"eval {Path(results['checkpoint']['path']).name}"
        run_id = log_evaluation(store, name, tracked_metrics(results), _tags(results), files)
    except Exception as error:
        print(f"warning: not in MLflow: {without_credentials(describe(error))}", file=sys.stderr)
        return None
    where = f"child of run {store.parent}" if store.parent else "a run of its own"
    when = "" if run_id else f", by the training's own writer: it waits in {store.pending}"
    return f"MLflow: {without_credentials(store.tracking_uri)}, {where}{when}"


def tracked_run(checkpoint: Mapping[str, Any], file: Path) -> Path:
    """The run that a results.json belongs to in MLflow: of a task's model, that of the pretrained one behind it."""
    while learned_from := checkpoint["lineage"].get("pretrained"):
        checkpoint = learned_from
    return run_directory(checkpoint, file)


def tracked_metrics(results: dict[str, Any]) -> dict[str, float]:
    """The figures of all tasks as MLflow gets them: mlm_perplexity, nsp_accuracy, ...; none of an untrained head."""
    return {
        f"{name}_{metric}": measured["value"]
        for name, task in results["tasks"].items()
        if task["details"].get("instead") not in WITHOUT_MEANING
        for metric, measured in task["metrics"].items()
    }


def _tags(results: dict[str, Any]) -> dict[str, str]:
    """Which weights, data, settings and code the figures are of; what isn't known is left out."""
    code = {f"code_{name}": results["code"][name] for name in ("version", "commit", "modified")}
    manifest = (results["shards"] or {}).get("manifest_blake2b")
    return tags_of(results["checkpoint"], manifest_blake2b=manifest, results_blake2b=_checksum(results), **code)


def _checksum(results: dict[str, Any]) -> str:
    """Of all but how long it took, by which a repeat is known."""
    tasks = {name: {**task, "details": _timeless(task["details"])} for name, task in results["tasks"].items()}
    lasting = {name: content for name, content in results.items() if name != "seconds"} | {"tasks": tasks}
    return checksum_of(json.dumps(lasting, sort_keys=True).encode())


def _timeless(details: dict[str, Any]) -> dict[str, Any]:
    """A task's details without the seconds of its points."""
    if "points" not in details:
        return details
    points = [{name: content for name, content in point.items() if name != "seconds"} for point in details["points"]]
    return {**details, "points": points}
