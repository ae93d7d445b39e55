"""A real pretraining on one GPU in ten minutes, ours beside transformers', and what the model has learned.

    python benchmarks/gpu_curve.py --shards shards/ --data data/ --output gpu_curve/

1. The peer (benchmarks/curve.py: transformers' model by torch.compile, autocast, torch's fused AdamW) trains for
   --seconds; how many steps that makes, its own rate in the warm-up tells.
2. `deepspeed trainer/pretrain.py` trains the same model for the same steps: same weights, samples, masks and rates.
3. Our export and the same model untrained are fine-tuned by `python -m eval.run`, task after task, until --end.

OUTPUT/gpu_curve.md has the tables, gpu_curve.png the losses against tokens and seconds, gpu_curve.json the figures;
OUTPUT/work, with weights and logs, may be deleted. `--device cpu --size demo --seconds 60` shows that it works.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from preprocessing.schema import ShardDirectory
from trainer.config import load_recipe
from trainer.hugging_face import save_export
from trainer.model import BertForPreTraining, parameter_count

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "trainer" / "recipes" / "bert_base.toml"
SIZES = {
    "base": ("256", []),
    "demo": ("16", ["model.hidden_size=128", "model.num_hidden_layers=2", "model.num_attention_heads=2",
                    "model.intermediate_size=512"]),
}  # fmt: skip
# The paper's recipe wants a hundred times these steps: a higher rate and a short warm-up, and no dropout of attention's
# weights, which the kernel for packed sequences does not have; the peer goes without it too.
COMMON = (
    "optimizer.name=adamw", "optimizer.beta2=0.98", "schedule.peak=2e-4", "schedule.warmup_steps=400",
    "model.attention_probs_dropout_prob=0.0", "log.validation_samples=2048", "log.every=100", "log.validate_every=200",
    "checkpoint.every=1000000", "checkpoint.keep=1",
)  # fmt: skip
ON_A_GPU = ("train.compile=true", "data.token_multiple=1024", "data.workers=4")
TASKS = {"mrpc": "3", "rte": "3", "stsb": "3", "sst2": "1"}  # epochs of fine-tuning


def main() -> None:
    """Pretrain both, fine-tune, report."""
    arguments = _parse()
    began = time.perf_counter()
    work = arguments.output / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    settings = settings_of(arguments)
    train("peer", arguments, work, [*settings, "phases.0.steps=1000000"], ["--seconds", str(arguments.seconds)])
    steps = json.loads((work / "peer.steps.json").read_text())["steps"]
    settings.append(f"phases.0.steps={steps}")
    train("ours", arguments, work, settings, [])
    scores = fine_tune(exports(arguments, work, settings), arguments, work, began + arguments.end)
    curves = {name: read_curve(work, name) for name in ("ours", "transformers")}
    text = "\n".join(page(arguments, settings, curves, scores, time.perf_counter() - began)) + "\n"
    (arguments.output / "gpu_curve.md").write_text(text, encoding="utf-8")
    (arguments.output / "gpu_curve.json").write_text(json.dumps({"curves": curves, "scores": scores}), encoding="utf-8")
    draw(curves, arguments.output / "gpu_curve.png")
    print(text)


def settings_of(arguments: argparse.Namespace) -> list[str]:
    """What both train with, but for the number of steps."""
    batch, size = SIZES[arguments.size]
    vocabulary = ShardDirectory(arguments.shards).manifest.vocabulary.size
    phase = (f"{{sequence_length=128, steps=1000000, global_batch_size={batch}, micro_batch_size={batch}, "
             "max_predictions=20}")  # fmt: skip
    device = ON_A_GPU if arguments.device == "cuda" else ()
    return [f"model.vocab_size={vocabulary}", f"phases=[{phase}]", *COMMON, *size, *device]


def train(part: str, arguments: argparse.Namespace, work: Path, settings: list[str], more: list[str]) -> None:
    """One part of benchmarks/curve.py, in a process of its own."""
    command = [sys.executable, "benchmarks/curve.py", part, "--shards", arguments.shards, "--output", work.resolve(),
               "--recipe", RECIPE, "--device", arguments.device, *more, *settings]  # fmt: skip
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True)


def exports(arguments: argparse.Namespace, work: Path, settings: list[str]) -> dict[str, Path]:
    """What is fine-tuned."""
    recipe = load_recipe(RECIPE, settings)
    untrained = work / "untrained"
    tokenizer = ShardDirectory(arguments.shards).path / "tokenizer"
    model = BertForPreTraining(recipe.model, recipe.train.seed)
    save_export(untrained, model.state_dict(), recipe.model, tokenizer, {})
    return {"pretrained": max((work / "ours" / "exports").iterdir()), "untrained": untrained}


def fine_tune(
    models: dict[str, Path], arguments: argparse.Namespace, work: Path, end: float
) -> dict[str, dict[str, Any]]:
    """Task -> model -> metrics of the dev set; both models side by side, as many tasks as there is time for."""
    scores: dict[str, dict[str, Any]] = {}
    environment = {**os.environ, **({"DS_ACCELERATOR": "cpu"} if arguments.device == "cpu" else {})}
    for task, epochs in TASKS.items():
        running = {}
        for name, export in models.items():
            command = [sys.executable, "-m", "eval.run", "--checkpoint", export.resolve(), "--tasks", task, "--data",
                       arguments.data.resolve(), "--output", (work / f"{task}-{name}").resolve(), "--no-tracking",
                       "--learning-rates", "5e-5", "--epochs", epochs, "--batch-sizes", "32", "--max-length", "128",
                       "--precision", "bf16", "--device", arguments.device]  # fmt: skip
            log = (work / f"{task}-{name}.log").open("w")
            limit = ["--limit", str(arguments.limit)] if arguments.limit else []
            running[name] = subprocess.Popen(
                list(map(str, [*command, *limit])), cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            for process in running.values():
                process.wait(max(0.0, end - time.perf_counter()))
        except subprocess.TimeoutExpired:
            for process in running.values():
                process.kill()
            break
        if any(process.returncode for process in running.values()):
            print(f"{task} failed: see {work}/{task}-*.log", file=sys.stderr)
            continue
        results = {name: work / f"{task}-{name}" / "results.json" for name in models}
        scores[task] = {name: json.loads(path.read_text())["tasks"][task]["metrics"] for name, path in results.items()}
    return scores


def read_curve(work: Path, name: str) -> dict[str, list[float]]:
    """Tokens, seconds of training and loss of each step, and where the held-out losses are, of which steps."""
    ours = name == "ours"
    lines = _read(work / "ours" / "metrics.jsonl" if ours else work / "peer.jsonl")
    held_out = _read(work / "ours" / "validation.jsonl" if ours else work / "peer.held_out.jsonl")
    if ours:
        seconds = list(accumulate(line["data_seconds"] + line["compute_seconds"] for line in lines))
        tokens = [line["tokens_per_second"] * (line["data_seconds"] + line["compute_seconds"]) for line in lines]
    else:
        seconds, tokens = [line["seconds"] for line in lines], [line["tokens"] for line in lines]
    return {
        "seconds": seconds,
        "tokens": list(accumulate(tokens)),
        "loss": [line["loss"] for line in lines],
        "held_out_steps": [line["step"] for line in held_out],
        "held_out_mlm_loss": [line["mlm_loss"] for line in held_out],
        "held_out_nsp_accuracy": [line["nsp_accuracy"] for line in held_out],
    }


def page(
    arguments: argparse.Namespace, settings: list[str], curves: dict[str, Any], scores: dict[str, Any], took: float
) -> list[str]:
    """The tables."""
    recipe = load_recipe(RECIPE, settings)
    machine = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    ours = curves["ours"]
    lines = [
        f"{machine}, torch {torch.__version__}: {parameter_count(recipe.model):,} parameters, {len(ours['loss']):,} "
        f"steps of {recipe.phases[0].global_batch_size} sequences of 128, {ours['tokens'][-1] / 1e6:.1f} M tokens, all "
        f"in {took:.0f} seconds.",
        "",
        "| | seconds of training | real tokens/s | held-out MLM loss | held-out NSP accuracy |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, curve in curves.items():
        half = len(curve["tokens"]) // 2  # kernels are compiled and chosen before
        rate = (curve["tokens"][-1] - curve["tokens"][half]) / (curve["seconds"][-1] - curve["seconds"][half])
        lines.append(
            f"| {name} | {curve['seconds'][-1]:.0f} | {rate:,.0f} | {curve['held_out_mlm_loss'][-1]:.4f} "
            f"| {curve['held_out_nsp_accuracy'][-1]:.2%} |"
        )
    lines += ["", "| task | metric | pretrained | untrained | baseline |", "| --- | --- | --- | --- | --- |"]
    for task, models in scores.items():
        for metric, found in models["pretrained"].items():
            cells = [_with_error(found), _with_error(models["untrained"][metric]), f"{found['baseline'] or 0:.1f}"]
            lines.append(f"| {task} | {metric} | {' | '.join(cells)} |")
    return lines


def _with_error(figure: dict[str, Any]) -> str:
    error = f" ± {figure['half_width']:.1f}" if figure["half_width"] else ""
    return f"{figure['value']:.1f}{error}"


def draw(curves: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Training and held-out losses against tokens, and held-out ones against seconds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for (name, curve), style in zip(curves.items(), ("-", "--"), strict=True):
        window = min(50, len(curve["loss"]))
        smooth = torch.tensor(curve["loss"]).unfold(0, window, 1).mean(dim=1).tolist()
        millions = [tokens / 1e6 for tokens in curve["tokens"]]
        places = [int(step) - 1 for step in curve["held_out_steps"]]
        panels[0].plot(millions[window - 1 :], smooth, style, label=name)
        panels[1].plot([millions[i] for i in places], curve["held_out_mlm_loss"], style, marker=".", label=name)
        seconds = [curve["seconds"][i] for i in places]
        panels[2].plot(seconds, curve["held_out_mlm_loss"], style, marker=".", label=name)
    titles = {"training loss, mean of 50 steps": "million tokens", "held-out MLM loss": "million tokens",
              "held-out MLM loss, by time": "seconds of training"}  # fmt: skip
    for axes, (title, below) in zip(panels, titles.items(), strict=True):
        axes.set(title=title, xlabel=below)
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of GLUE")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", choices=sorted(SIZES), default="base")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=240.0, help="of the peer's training")
    parser.add_argument("--end", type=float, default=570.0, help="seconds from the start when fine-tuning ends")
    parser.add_argument("--limit", type=int, help="take so many examples of each task, to try it out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
