"""The best export of a run in MLflow's model registry, to be loaded and served.

    python -m eval.registry runs/large --metric mrpc.f1 --name bert-large --corpus texts.txt
    mlflow models serve --model-uri models:/bert-large/1 --env-manager local

Which one is best is told by the results.json files of the run, which eval.watch writes. The registered model holds the
export and the code that reads it, and nothing pickled. Its source in MLflow is the run of its evaluation, or else of
its training; its tags say which weights, step and figure it is. docs/tracking.md shows how to ask it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from preprocessing.command_line import OneLineParser, parse_path
from preprocessing.status import is_dir, is_file
from trainer.tracking import Store, evaluation_store
from trainer.tracking.store import experiment_id, one_writer, time_for_uploads, what_failed

# isort: split
import mlflow  # after trainer.tracking, which says how patient it is and that it reports to nobody
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types.schema import Array, ColSpec, DataType, Object, ParamSchema, ParamSpec, Property, Schema

from eval.embeddings import K1, B, TermStatistics, count_terms, save_terms
from eval.errors import UsageError
from eval.evaluated import best_evaluation, find_results, of_present_weights, read_evaluations
from eval.pretrained import Pretrained, load_pretrained
from eval.readers.files import read_lines
from eval.results import tags_of
from eval.serving import EXPORT, TERMS
from preprocessing.schema import checksum
from preprocessing.storage_errors import UnavailableError, exit_code
from preprocessing.terminal import in_line, show, tell_error
from trainer.credentials import without_credentials
from trainer.hugging_face import WEIGHTS
from trainer.leases import hold_export
from trainer.naming import name_some
from trainer.run_directory import CheckpointError, RunDirectory

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("eval", "preprocessing", "trainer")  # what eval.serving imports
_LIBRARIES = ("mlflow", "numpy", "pandas", "pyarrow", "safetensors", "tokenizers", "torch")  # and what they do

_MASKED_WORD = Object([Property("token", DataType.string), Property("probability", DataType.double)])
SIGNATURE = ModelSignature(
    inputs=Schema([ColSpec(DataType.string, "text")]),
    outputs=Schema([
        ColSpec(Array(DataType.double), "embedding", required=False),
        ColSpec(Array(Array(_MASKED_WORD)), "masks", required=False),
    ]),
    params=ParamSchema([
        ParamSpec("task", DataType.string, "embed"),
        ParamSpec("layer", DataType.long, -1),
        ParamSpec("pooling", DataType.string, "mean"),
        ParamSpec("top", DataType.long, 5),
    ]),
)  # fmt: skip
EXAMPLE = ({"text": ["She was one of the first women to win the prize."]}, {"layer": -2, "pooling": "mean"})


def register(
    store: Store,
    export: Path,
    pretrained: Pretrained,
    name: str,
    tags: dict[str, str],
    terms: TermStatistics | None = None,
) -> int:
    """Put an export into the registry as the next version of a name.

    Args:
        store: of the run that is the model's source; where it has none, the model has none.
        export: the directory.
        pretrained: what was read there.
        name: of the registered model.
        tags: of the version.
        terms: what ``pooling="bm25"`` weighs tokens by; None for a model without it.

    Returns:
        The version.

    Raises:
        UsageError: the store has no address.
        MlflowException: the store is not reached.
    """
    mlflow.set_tracking_uri(store.tracking_uri)
    mlflow.set_registry_uri(store.tracking_uri)
    try:
        experiment = experiment_id(MlflowClient(), store.experiment, store.tracking_uri)
    except ValueError as error:  # not MLflow's own, but of what reads the address
        raise UsageError(f"MLFLOW_TRACKING_URI is not the address of a store ({error}); mend it") from error
    mlflow.set_experiment(experiment_id=experiment)
    with tempfile.TemporaryDirectory() as folder, _without_bytecode(), time_for_uploads():
        artifacts = {EXPORT: str(export.resolve())}
        if terms is not None:
            artifacts[TERMS] = str(Path(folder) / "terms.json")
            save_terms(terms, Path(artifacts[TERMS]))
        logged = Model.log(
            artifact_path=None,  # its name of old
            name=name,
            flavor=mlflow.pyfunc,
            run_id=store.parent,
            registered_model_name=name,
            tags=tags,
            params=_sizes(pretrained),
            step=int(tags.get("step", 0)),
            python_model=str(_ROOT / "eval" / "serving.py"),
            code_paths=[str(_ROOT / package) for package in _PACKAGES],
            artifacts=artifacts,
            pip_requirements=[f"{library}=={metadata.version(library)}" for library in _LIBRARIES],
            signature=SIGNATURE,
            input_example=EXAMPLE,
        )
    return int(logged.registered_model_version)


@contextlib.contextmanager
def _without_bytecode() -> Iterator[None]:
    """MLflow imports what it logs, and what Python would compile then would be logged as well."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _sizes(pretrained: Pretrained) -> dict[str, Any]:
    config = pretrained.model.config
    return {name: getattr(config, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}


class Choice(NamedTuple):
    """What is registered, and which exports could not be compared with it, as they were only tried out."""

    export: Path
    tags: dict[str, str]
    only_tried: list[Path]


def choose(run: RunDirectory, task: str, metric: str) -> Choice:
    """The export with the best figure of a run's evaluations.

    Raises:
        UsageError: no such run, nothing evaluated on that, or an export that is gone or not the one that was evaluated.
        UnavailableError: results can't be read now.
    """
    if not is_dir(run.path):
        raise UsageError(f"{run.path}: no such directory; give a run directory")
    found = read_evaluations(find_results([run.path]))
    ours = [evaluated for evaluated in found if evaluated.directory == run.path.resolve()]  # others' may lie among them
    if not ours:
        raise UsageError(f"{run.path}: no evaluation of its exports; give a run directory that has been evaluated")
    best, only_tried = best_evaluation(of_present_weights(ours)[0], task, metric)
    export = run.exports / best.export.name
    if not is_file(export / WEIGHTS):
        raise UsageError(
            f"{export}: the best by {task}.{metric}, but it is gone; keep more exports, or name another metric"
        )
    _check_own(export)
    if checksum(export / WEIGHTS) != best.weights_blake2b:
        raise UsageError(f"{export}: not the weights that {best.file} is of; evaluate it again")
    checkpoint, figure = best.results["checkpoint"], best.figure(task, metric)
    code = checkpoint["lineage"].get("code", {})  # which trained
    tags = tags_of(checkpoint, code_version=code.get("version"), code_commit=code.get("commit"))
    return Choice(export, tags | {"metric": f"{task}.{metric}", "figure": repr(figure)}, only_tried)


def _check_own(export: Path) -> None:
    """See that MLflow would take no file into the registry but those of the export: it follows links.

    Raises:
        UsageError: a link leads out of it, as in a run directory of others one may to a file of this user's.
    """
    folder = export.resolve()
    for path in folder.rglob("*"):
        if not ((is_file(path) or is_dir(path)) and path.resolve().is_relative_to(folder)):
            raise UsageError(
                f"{export / path.relative_to(folder)}: not a file of this export, but a link to elsewhere or no file; "
                "a registered model is a copy of the whole folder, so put the file itself there or take it away"
            )


def _with_source(store: Store, tags: dict[str, str]) -> Store:
    """The store with the run of the export's evaluation in the place of the training run, where MLflow has one.

    Of several it is the newest that has the figure of a choice's tags; where none has, the newest.
    """
    if store.parent is None:
        return store
    client = MlflowClient(store.tracking_uri)
    found = client.search_runs(
        [client.get_run(store.parent).info.experiment_id],
        f"tags.`mlflow.parentRunId` = '{store.parent}' and tags.export_blake2b = '{tags['export_blake2b']}'",
    )
    name, figure = tags["metric"].replace(".", "_", 1), float(tags["figure"])
    source = next((run for run in found if run.data.metrics.get(name) == figure), found[0] if found else None)
    return dataclasses.replace(store, parent=source.info.run_id) if source else store


def main(argv: Sequence[str] | None = None) -> int:
    """Register; the exit code is 0, 1 where MLflow did not take it or the storage failed, or 2 for a mistake."""
    arguments = _parse(argv)
    run = RunDirectory(arguments.run)
    try:
        chosen = choose(run, *arguments.metric)
        if chosen.only_tried:
            names, figure = name_some([export.name for export in chosen.only_tried]), chosen.tags["metric"]
            note = f"note: left out, with {figure} of trials alone (--limit, fewer samples): {names}"
            print(in_line(note), file=sys.stderr)
        store = evaluation_store([run.path], run.path)
    except (UsageError, OSError, UnavailableError) as error:
        tell_error(error)
        return exit_code(error)
    try:
        with hold_export(chosen.export):
            pretrained = load_pretrained(chosen.export)
            terms = None
            if arguments.corpus:  # before the store is ours alone: this may take hours, and trainings write there too
                terms = count_terms(pretrained.tokenizer, _documents(arguments.corpus), arguments.k1, arguments.b)
            with one_writer(store.tracking_uri, run.path):
                store = _with_source(store, chosen.tags)
                version = register(store, chosen.export, pretrained, arguments.name, chosen.tags, terms)
    except (CheckpointError, UsageError, OSError, UnavailableError) as error:
        tell_error(error)
        return exit_code(error)
    except Exception as error:  # MLflow raises its own, its database's and its HTTP client's
        told, code = what_failed(error, store.tracking_uri)
        tell_error(told)
        return code
    uri = without_credentials(store.tracking_uri)
    shown = [
        f"{chosen.export} is version {version} of {arguments.name} in {uri}; to serve it:",
        f"MLFLOW_TRACKING_URI={shlex.quote(uri)} mlflow models serve --env-manager local \\",
        f"    --model-uri {shlex.quote(f'models:/{arguments.name}/{version}')}",
    ]
    show("\n".join(map(in_line, shown)))
    return 0


def _documents(path: Path) -> Iterator[str]:
    """Those of a text file, one a line; empty lines are skipped."""
    return (line for line in read_lines(path) if line.strip())


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="python -m eval.registry", description="Register the best export of a run in MLflow.")
    parser.add_argument("run", type=parse_path, metavar="RUN", help="a run directory with evaluations")
    parser.add_argument("--metric", type=_metric, required=True, metavar="TASK.METRIC", help="such as mrpc.f1")
    parser.add_argument("--name", default="bert", help="of the registered model (default: %(default)s)")
    parser.add_argument(
        "--corpus", type=parse_path, metavar="FILE", help="a document a line: how rare words are, for pooling by BM25"
    )
    parser.add_argument("--k1", type=float, help=f"of BM25 (default: {K1})")
    parser.add_argument("--b", type=float, help=f"of BM25 (default: {B})")
    arguments = parser.parse_args(argv)
    if not arguments.name.strip():
        parser.error("argument --name: it is empty")
    for option, default in (("k1", K1), ("b", B)):
        given = getattr(arguments, option)
        if given is not None and arguments.corpus is None:
            parser.error(f"argument --{option}: it is of BM25, which wants a --corpus")
        setattr(arguments, option, default if given is None else given)
    return arguments


def _metric(text: str) -> tuple[str, str]:
    task, dot, metric = text.partition(".")
    if not (task and dot and metric):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form TASK.METRIC, such as mrpc.f1")
    return task, metric


if __name__ == "__main__":
    sys.exit(main())
