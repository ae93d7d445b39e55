"""Our trainer against transformers' BertForPreTraining in a plain PyTorch loop: the same samples, masks and rates.

    python benchmarks/curve.py ours --shards shards/ --output curve/       # each may run while the other does
    python benchmarks/curve.py peer --shards shards/ --output curve/
    python benchmarks/curve.py report --shards shards/ --output curve/     # curve/table.md and curve/training.png

Both start from the same weights and take the same samples with the same masks in the same order, with dropout, in
bfloat16 with float32 weights. The peer is what one writes by hand: transformers' model with its own loss, torch's
AdamW, autocast, and torch.compile where the recipe says train.compile. On CPUs each takes one thread, and CPU time
counts, not the clock's, so other work on the machine matters little. benchmarks/gpu_curve.py is the same on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import transformers_pretraining as transformers_model
from common import CURVES, HELD_OUT, ROOT, steps_of
from eval import probe
from preprocessing.markdown import markdown_table
from preprocessing.schema import ShardDirectory
from trainer.config import Recipe, load_recipe
from trainer.data import evaluation_batches, validation_stream
from trainer.files import read_lines, write_atomically
from trainer.loading import StepReader

MEASURED = range(30, 60)  # steps that tell how many more there is time for
VALIDATIONS = 8  # of a training of --seconds


def main() -> None:
    """Run one of the three parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["ours", "peer", "report"])
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--recipe", type=Path, default=ROOT / "trainer" / "recipes" / "bert_mini.toml")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, help="of the peer: train as many steps as it manages in this time")
    parser.add_argument("settings", nargs="*", help="section.key=value of the recipe")
    arguments = parser.parse_intermixed_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    {"ours": train_ours, "peer": train_peer, "report": report}[arguments.part](arguments)


def train_ours(arguments: argparse.Namespace) -> None:
    """The real command, on one rank."""
    command = [
        sys.executable, "-m", "deepspeed.launcher.runner", "--quiet",
        "--num_accelerators", "1", "--master_port", "29611", "trainer/pretrain.py",
        "--config", str(arguments.recipe), "--shards", str(arguments.shards.resolve()),
        "--output", str((arguments.output / "ours").resolve()), *arguments.settings, "tracking.enabled=false",
    ]  # fmt: skip
    cpu = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"} if arguments.device == "cpu" else {}
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **cpu})
    _write_cpu_time(arguments.output / "ours.cpu.json", resource.RUSAGE_CHILDREN)


def train_peer(arguments: argparse.Namespace) -> None:
    """A plain loop over transformers' model.

    With --seconds OUTPUT/peer.steps.json says, as soon as it is known, how many steps there are and when both validate.
    """
    recipe = load_recipe(arguments.recipe, arguments.settings)
    (phase,) = recipe.phases
    assert phase.global_batch_size == phase.micro_batch_size
    device = torch.device(arguments.device)
    shards = ShardDirectory(arguments.shards)
    torch.backends.cuda.enable_cudnn_sdp(False)  # as the trainer: torch 2.11 has it wrong
    model = transformers_model.build(recipe.model, recipe.train.seed).to(device)
    compiled = torch.compile(model) if recipe.train.compile else model
    optimizer = _adamw(model, recipe)
    torch.manual_seed(recipe.train.seed)
    steps = steps_of(recipe, shards, padded=True)
    reader = StepReader(steps, 0, recipe.last_step, recipe.data.processes(device))
    seconds, first = 0.0, 0.0
    with (
        (arguments.output / CURVES["transformers"]).open("w") as log,
        (arguments.output / HELD_OUT["transformers"]).open("w") as held,
    ):
        for step, (batch,) in enumerate(reader):
            began = time.perf_counter()
            assert isinstance(batch, transformers_model.PaddedBatch)
            model.train()
            with torch.autocast(device.type, torch.bfloat16):
                loss = compiled(**batch.inputs_on(device)).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optimizer.max_gradient_norm)
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate(step)
            optimizer.step()
            reader.read_ahead()
            line = {"step": step + 1, "loss": loss.item(), "tokens": int(batch.lengths.sum())}
            seconds += time.perf_counter() - began
            print(json.dumps({**line, "seconds": seconds}), file=log, flush=True)
            if arguments.seconds and step + 1 == MEASURED.start:
                first = seconds
            if arguments.seconds and step + 1 == MEASURED.stop:
                recipe = _planned(recipe, step + 1, arguments.seconds - seconds, (seconds - first) / len(MEASURED))
                plan = {"steps": recipe.last_step, "validate_every": recipe.log.validate_every}
                write_atomically(arguments.output / "peer.steps.json", json.dumps(plan))
            if (step + 1) % recipe.log.validate_every == 0 or step + 1 == recipe.last_step:
                figures = held_out(model, shards, recipe, device)
                print(json.dumps({"step": step + 1, **figures}), file=held, flush=True)
            if step + 1 == recipe.last_step:
                break
    reader.close()
    _write_cpu_time(arguments.output / "peer.cpu.json", resource.RUSAGE_SELF)


def _planned(recipe: Recipe, done: int, seconds_left: float, seconds_a_step: float) -> Recipe:
    """The recipe with as many steps as there is time for, in VALIDATIONS equal parts."""
    (phase,) = recipe.phases
    left = max(1, int(seconds_left / seconds_a_step))
    every = -(-(done + left) // VALIDATIONS)
    phases = [replace(phase, steps=VALIDATIONS * every)]
    return replace(recipe, phases=phases, log=replace(recipe.log, validate_every=every))


def _adamw(model: Any, recipe: Recipe) -> torch.optim.AdamW:
    undecayed = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for p in model.parameters() if all(p is not q for q in undecayed)]
    settings = recipe.optimizer
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": undecayed, "weight_decay": 0}],
        betas=(settings.beta1, settings.beta2), eps=settings.eps, fused=next(model.parameters()).is_cuda,
    )  # fmt: skip


def held_out(model: Any, shards: ShardDirectory, recipe: Recipe, device: torch.device) -> dict[str, float]:
    """Held-out losses and accuracies of transformers' model, each with half of its 95 % interval."""
    stream = validation_stream(shards, recipe.phases[0].sequence_length)
    samples = min(recipe.log.validation_samples, stream.size)
    outcomes = probe.score(
        transformers_model.as_ours(model).to(device), evaluation_batches(stream, np.arange(samples), 32)
    )
    words, sentences = probe.masked_words(outcomes), probe.next_sentence(outcomes)
    estimates = {
        "mlm_loss": words.loss, "mlm_accuracy": words.accuracy, "nsp_loss": sentences.loss,
        "nsp_accuracy": sentences.accuracy,
    }  # fmt: skip
    larger_class = probe.majority(outcomes.nsp_labels).accuracy
    values = {name: estimate.value for name, estimate in estimates.items()}
    errors = {f"{name}_half_width": estimate.half_width for name, estimate in estimates.items()}
    return {**values, **errors, "nsp_majority": larger_class, "loss": values["mlm_loss"] + values["nsp_loss"]}


def report(arguments: argparse.Namespace) -> None:
    """Print the table of the last step that both were evaluated at, and draw the picture."""
    lines = {
        name: {line["step"]: line for line in read_lines(arguments.output / file)} for name, file in HELD_OUT.items()
    }
    step = max(lines["ours"].keys() & lines["transformers"].keys())
    rows = {name: by_step[step] for name, by_step in lines.items()}
    text = _table(rows, step)
    (arguments.output / "table.md").write_text(text, encoding="utf-8")
    print(text)
    _draw(arguments.output)


def _table(rows: dict[str, dict[str, float]], step: int) -> str:
    """Half widths are the peer's: both are evaluated on the same samples."""
    errors = rows["transformers"]
    table = [[f"held out, after {step:,} steps", "ours", "transformers, plain loop", "half of a 95 % interval"]]
    for name, form in (("mlm_loss", ".4f"), ("mlm_accuracy", ".2%"), ("nsp_loss", ".4f"), ("nsp_accuracy", ".2%")):
        figures = rows["ours"][name], errors[name], errors[f"{name}_half_width"]
        table.append([name.replace("_", " "), *(f"{figure:{form}}" for figure in figures)])
    table.append(["NSP accuracy of the larger class", *[f"{errors['nsp_majority']:.2%}"] * 2, ""])
    return markdown_table(table, (1, 2, 3))


def _draw(output: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for name, style in (("ours", "-"), ("transformers", "--")):
        lines, points = (list(read_lines(output / files[name])) for files in (CURVES, HELD_OUT))
        losses = torch.tensor([line["loss"] for line in lines])
        smooth = losses.unfold(0, 50, 10).mean(dim=1)
        left.plot([line["step"] for line in lines][49::10][: len(smooth)], smooth, style, label=name)
        places = [point["step"] for point in points]
        middle.plot(places, [point["mlm_loss"] for point in points], style, marker=".", label=name)
        right.plot(places, [point["nsp_accuracy"] for point in points], style, marker=".", label=name)
    for axes, title in (
        (left, "training loss, mean of 50 steps"),
        (middle, "held-out MLM loss"),
        (right, "held-out NSP accuracy"),
    ):
        axes.set(title=title, xlabel="step")
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(output / "training.png", dpi=110)


def _write_cpu_time(path: Path, who: int) -> None:
    usage = resource.getrusage(who)
    path.write_text(json.dumps({"cpu_seconds": usage.ru_utime + usage.ru_stime, "ended": time.time()}))


if __name__ == "__main__":
    main()
