"""From a checkpoint, sharded over any number of ranks, to a Hugging Face directory.

python -m trainer.export runs/large/checkpoints/step-100000 exported/    # runs/large alone means the newest
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preprocessing.command_line import OneLineParser, parse_path
from preprocessing.status import is_dir, make_folder
from preprocessing.tokenization import check_files
from trainer.checkpoint import RunState, read_run_state
from trainer.config import load_recipe
from trainer.corpus import directory_checksums
from trainer.derived import write_new
from trainer.hugging_face import save_export
from trainer.model import BertConfig, parameter_shapes
from trainer.run_directory import CheckpointError, RunDirectory, without_links
from trainer.sharded_state import StateReader, verify_state


def export_checkpoint(run: RunDirectory, state: RunState, checkpoint: Path, target: Path, config: BertConfig) -> None:
    """Write the float32 weights of a complete checkpoint as a Hugging Face directory: whole or not at all.

    Raises:
        StateError: the checkpoint is damaged or another model's.
        ValueError: the run has no tokenizer.
        OSError: the directory can't be written, or a file of the run not read.
    """
    lineage: dict[str, Any] = {
        "run": str(run.path.resolve()),
        "step": state.step,
        "samples": state.samples,
        "manifest_blake2b": state.manifest_blake2b,
        "shards_blake2b": directory_checksums(run.manifest),
        "config_blake2b": state.config_blake2b,
        "initial_weights": run.read_initial_weights(),
        "code": state.code,
    }
    make_folder(target.parent, parents=True)
    weights = StateReader(checkpoint, parameter_shapes(config)).weights()
    save_export(target, weights, config, run.tokenizer, lineage)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m trainer.export CHECKPOINT OUT``; the exit code is write_new's."""
    parser = OneLineParser(
        prog="python -m trainer.export", description="Turn a checkpoint into a directory that transformers loads."
    )
    parser.add_argument("checkpoint", type=parse_path, help="RUN/checkpoints/step-NNNNNN, or RUN for the newest")
    parser.add_argument("output", type=parse_path, help="a new directory")
    arguments = parser.parse_args(argv)
    return write_new(arguments.output, lambda: _export(_newest(without_links(arguments.checkpoint)), arguments.output))


def _newest(path: Path) -> Path:
    """A run's newest checkpoint, where ``path`` is the run or what names that checkpoint; else ``path`` itself."""
    run = RunDirectory(path.parent.parent if path.name == "latest" else path)
    return next(iter(run.candidates()), path)


def _export(checkpoint: Path, output: Path) -> str:
    if not is_dir(checkpoint):
        raise CheckpointError(f"{checkpoint}: no such checkpoint; give a RUN/checkpoints/step-...")
    if checkpoint.parent.name != "checkpoints":
        raise CheckpointError(
            f"{checkpoint}: not a RUN/checkpoints/step-...; what is beside checkpoints/ is needed too: config.toml, "
            "tokenizer/ and others"
        )
    if output.resolve().is_relative_to(checkpoint.parent.resolve()):
        raise CheckpointError(
            f"{output}: in {checkpoint.parent}, which is the trainer's alone; choose another directory"
        )
    run = RunDirectory(checkpoint.parent.parent)
    recipe, state = load_recipe(run.config), read_run_state(checkpoint)
    verify_state(checkpoint)
    check_files(run.tokenizer)
    export_checkpoint(run, state, checkpoint, output, recipe.model)
    return f"the weights of step {state.step}"


if __name__ == "__main__":
    sys.exit(main())
