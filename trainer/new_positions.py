"""Give a pretrained model more positions, so that it can learn from longer texts; or fewer.

    python -m trainer.new_positions runs/day/exports/step-023000 512 bert-large-512

The result is what --init-from takes, and in a text that the old model could read it computes the same. A new position
begins as a copy: they are the old ones over and over (Beltagy et al., 2020, Longformer, section 5).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from preprocessing.command_line import OneLineParser, parse_path, whole_number
from preprocessing.schema import MAX_SEQUENCE_LENGTH
from preprocessing.tokenization import check_files
from trainer.derived import open_original, save_derived, write_new

_ROWS = "bert.embeddings.position.weight"  # [positions, D]


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m trainer.new_positions MODEL POSITIONS OUT``; the exit code is write_new's."""
    parser = OneLineParser(
        prog="python -m trainer.new_positions", description="Give a pretrained model more positions, or fewer."
    )
    parser.add_argument("model", type=parse_path, help="a Hugging Face BERT directory, such as an export")
    parser.add_argument(
        "positions", type=whole_number(1, MAX_SEQUENCE_LENGTH), help="how many tokens a text may have then"
    )
    parser.add_argument("output", type=parse_path, help="a new directory")
    arguments = parser.parse_args(argv)
    return write_new(arguments.output, lambda: _change(arguments.model, arguments.positions, arguments.output))


def _change(model: Path, positions: int, output: Path) -> str:
    export = open_original(model)
    old = export.config.max_position_embeddings
    if positions == old:
        raise ValueError(f"{model}: has {old} positions already; give it as it is")
    check_files(model, added=True)
    copied = export.state[_ROWS][torch.arange(positions) % old]
    config = dataclasses.replace(export.config, max_position_embeddings=positions)
    save_derived(output, config, {**export.state, _ROWS: copied}, model, model)
    return f"{positions:,} positions, {min(old, positions):,} of them as they were"


if __name__ == "__main__":
    sys.exit(main())
