"""Whole fine-tunings with dropout, ours and transformers' side by side, from the same weights.

    python benchmarks/finetuning.py --export EXPORT --data data/ --output results/ [--tasks mrpc,stsb,rte] [--seeds 3]
        [--train 1000] [--dev 500] [--epochs 2]

Same weights, examples, hyperparameters, AdamW and schedule; head, order and dropout are each side's own. Every run
leaves OUTPUT/TASK-SIDE-SEED.json, so the same command again does what is missing; what is there is shown as a table.
CPU time is the process's own, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

import transformers_finetuning as peer
from eval.encoding import Encoder
from eval.finetune import Hyperparameters, Settings, learn, predict
from eval.kinds import Tags
from eval.parts import read_parts
from eval.tasks.finetuned import FINE_TUNED, FineTuned
from preprocessing.markdown import markdown_table
from preprocessing.tokenization import load_tokenizer
from trainer.files import write_atomically
from trainer.hugging_face import load_export
from trainer.philox import derive_seed

SETTINGS = Settings(optimizer="adamw", decay_from="warmup")  # as transformers has them
CPU = torch.device("cpu")
SIDES = ("ours", "transformers")


class Data(NamedTuple):
    """A task's examples and samples."""

    task: FineTuned
    dev: Sequence[Any]
    train_samples: list[Any]
    dev_samples: list[Any]


def main() -> None:
    """Run what is missing and show what there is."""
    arguments = _parse()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    arguments.output.mkdir(parents=True, exist_ok=True)
    data: dict[str, Data] = {}
    for seed in range(arguments.seeds):
        for name in arguments.tasks.split(","):
            for side in SIDES:
                path = arguments.output / f"{name}-{side}-{seed}.json"
                if not path.exists():
                    data[name] = data.get(name) or read(FINE_TUNED[name], arguments)
                    result = run(data[name], side, seed, arguments)
                    write_atomically(path, json.dumps(result, indent=2) + "\n")
                    print(f"{path.name}: {result['metrics']}", file=sys.stderr, flush=True)
    print(table([json.loads(path.read_text()) for path in sorted(arguments.output.glob("*-*-*.json"))]))


def read(task: FineTuned, arguments: argparse.Namespace) -> Data:
    """The examples of a task, as many as asked for."""
    kind = replace(task.kind, context=False) if isinstance(task.kind, Tags) else task.kind
    train = read_parts(task, arguments.data, with_test=False, limit=arguments.train)["train"]
    dev = read_parts(task, arguments.data, with_test=False, limit=arguments.dev)["dev"]
    encoder = Encoder(load_tokenizer(arguments.export), min(task.max_length, arguments.max_length))
    return Data(replace(task, kind=kind), dev, kind.encode(train, encoder, True), kind.encode(dev, encoder, False))


def run(data: Data, side: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One fine-tuning: its figures on the dev set."""
    point = Hyperparameters(arguments.learning_rate, arguments.epochs, arguments.batch_size, seed)
    began = time.process_time()
    logits = {"ours": _ours, "transformers": _theirs}[side](data, point, arguments)
    metrics = data.task.kind.conclude(data.dev, data.dev_samples, logits).metrics
    return {
        "task": data.task.name,
        "side": side,
        "seed": seed,
        "metrics": metrics,
        "cpu_seconds": time.process_time() - began,
        "samples": len(data.train_samples),
        "dev_examples": len(data.dev),
        "settings": {name: str(value) for name, value in vars(arguments).items() if name not in ("output", "seeds")},
    }


def _ours(data: Data, point: Hyperparameters, arguments: argparse.Namespace) -> list[Any]:
    kind = data.task.kind
    model = kind.build(load_export(arguments.export), derive_seed(point.seed, "head"))
    learn(model, data.train_samples, kind.collate, point, SETTINGS, CPU, lambda *_: None)
    return predict(model, data.dev_samples, kind.collate, SETTINGS, CPU)


def _theirs(data: Data, point: Hyperparameters, arguments: argparse.Namespace) -> list[Any]:
    torch.manual_seed(1000 + point.seed)
    model = peer.build(data.task.kind, arguments.export)
    numbers: Any = range(len(data.train_samples))  # which is as good as a Dataset
    batches = [
        batch
        for _ in range(point.epochs)
        for batch in torch.utils.data.DataLoader(numbers, batch_size=point.batch_size, shuffle=True, collate_fn=list)
    ]
    for _ in peer.learn(model, data.train_samples, data.task.kind, batches, len(batches), point.learning_rate):
        pass
    return peer.predict(model, data.dev_samples, data.task.kind)


def table(results: Sequence[dict[str, Any]]) -> str:
    """Means and spreads of both sides, a line for each metric of each task."""
    rows = [
        ["task", "metric", *(f"{side}: mean ± deviation (seeds)" for side in SIDES), "difference", "CPU time, ours"]
    ]
    for task in dict.fromkeys(result["task"] for result in results):
        sides = {side: [r for r in results if (r["task"], r["side"]) == (task, side)] for side in SIDES}
        if all(sides.values()):
            rows += [_row(task, metric, sides) for metric in sides["ours"][0]["metrics"]]
    return markdown_table(rows, numbers=range(2, 6))


def _row(task: str, metric: str, sides: dict[str, list[dict[str, Any]]]) -> list[str]:
    figures = {side: [result["metrics"][metric] for result in results] for side, results in sides.items()}
    means = {side: statistics.fmean(of_side) for side, of_side in figures.items()}
    seconds = {side: statistics.fmean(result["cpu_seconds"] for result in of_side) for side, of_side in sides.items()}
    return [
        task,
        metric,
        *(f"{means[side]:.2f} ± {_deviation(figures[side])} ({len(figures[side])})" for side in SIDES),
        f"{means['ours'] - means['transformers']:+.2f}",
        f"{seconds['ours'] / seconds['transformers']:.2f} x theirs",
    ]


def _deviation(figures: Sequence[float]) -> str:
    return f"{statistics.stdev(figures):.2f}" if len(figures) > 1 else "-"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fine-tune with ours and with transformers, side by side.")
    parser.add_argument("--export", type=Path, required=True, help="weights to begin with")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--output", type=Path, required=True, help="folder for a file a run")
    parser.add_argument("--tasks", default="mrpc,stsb,rte")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train", type=int, help="take so many training examples (default: all)")
    parser.add_argument("--dev", type=int, help="take so many dev examples (default: all)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--max-length", type=int, default=512, help="at most; tasks have their own")
    return parser.parse_args()


if __name__ == "__main__":
    main()
