"""How long forward and backward passes in bfloat16 take on one core of a CPU, by torch's products and by the trainer's.

    python benchmarks/products.py [--runs 3]

They differ where oneDNN has no bfloat16 for the processor; see trainer/products.py. Each row is a model with dropout
and one micro-batch. The ways take turns, and the least CPU time of the runs counts.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from attention import batch_of, least_seconds
from preprocessing.markdown import markdown_table
from trainer import products
from trainer.model import BertConfig, BertForPreTraining, pretraining_losses

MODELS = {
    "the demo's model": BertConfig(
        8192, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    ),
    "a layer of BERT-LARGE": BertConfig(2048, num_hidden_layers=1),
}
SHAPES = [(16, 128), (4, 512)]  # sequences, tokens of the longest


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    lacking = products.LACKING
    has = "lacks" if torch.bfloat16 in lacking else "has"
    print(f"{torch.backends.cpu.get_cpu_capability()}, oneDNN {has} bfloat16\n")
    table = [["forward and backward", "batch", "torch's, s", "ours, s", "times as fast", "float32, s"]]
    for name, config in MODELS.items():
        for size, longest in SHAPES:
            exact = BertForPreTraining(config, seed=1)
            narrow = BertForPreTraining(config, seed=1).bfloat16()
            theirs, ours, single = least_seconds(
                [
                    partial(step, model, size, longest, lacks)
                    for model, lacks in ((narrow, set[torch.dtype]()), (narrow, lacking), (exact, lacking))
                ],
                runs,
            )
            found = [f"{theirs:.2f}", f"{ours:.2f}", f"{theirs / ours:.1f}", f"{single:.2f}"]
            table.append([name, f"{size} x {longest}", *found])
    print(markdown_table(table, (2, 3, 4, 5)))


def step(model: BertForPreTraining, size: int, longest: int, lacking: set[torch.dtype]) -> None:
    """Gradients of a micro-batch of which 80 % is tokens, a seventh of them predicted."""
    products.LACKING = lacking
    tokens = batch_of(size, longest, 0.8)
    positions = torch.arange(0, len(tokens.input_ids), 7)
    words, sentences = model(tokens, positions)
    losses = pretraining_losses(words, torch.ones_like(positions), sentences, torch.zeros(size, dtype=torch.int64))
    model.zero_grad()
    (losses.mlm_loss + losses.nsp_loss).backward()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
