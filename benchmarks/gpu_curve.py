"""A real pretraining on one GPU in ten minutes, ours beside transformers', and what the model has learned.

    python benchmarks/gpu_curve.py --shards shards/ --data data/ --output gpu_curve/ [--work /tmp]

1. The peer (benchmarks/curve.py: transformers' model by torch.compile, autocast, torch's fused AdamW) trains for
   --seconds; how many steps that makes, its own rate in the warm-up tells.
2. `deepspeed trainer/pretrain.py` trains the same model for the same steps: same weights, samples, masks and rates.
   Both are evaluated on held-out text eight times. With --also and settings, such as train.fused=false
   train.compile=true train.fp8=true, ours trains once more, with these: the loss curve of eight bits beside that of 16
   bits (--seconds 90 leaves time for fine-tuning then).
3. Our export and the same model untrained are fine-tuned by `python -m eval.run`, task after task, until --end.

--seconds is training alone; imports, torch.compile and validation come on top. Everything has ended --end seconds after
the start, whatever is done by then. OUTPUT/gpu_curve.md has the tables and names what failed, gpu_curve.json the
figures, both written anew after each part, gpu_curve.png the losses against tokens and seconds. The exit code is 1
where a part failed. WORK/gpu_curve_work holds weights and logs and may be deleted. `--device cpu --size demo
--seconds 10` shows that it works.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from common import CURVES, DEMO, HELD_OUT, ROOT, Parts, found_by, missing, one_phase, open_shards, run_programs
from preprocessing.interruption import end_when_interrupted
from preprocessing.markdown import markdown_table
from trainer.config import load_recipe
from trainer.files import read_lines
from trainer.hugging_face import save_export
from trainer.model import BertForPreTraining, parameter_count
from trainer.run_directory import step_folders

RECIPE = ROOT / "trainer" / "recipes" / "bert_base.toml"
SIZES: dict[str, tuple[int, tuple[str, ...]]] = {"base": (256, ()), "demo": (16, DEMO)}  # sequences of a step, settings
# The paper's recipe wants a hundred times these steps: a higher rate and a short warm-up. Dropout is the recipe's.
COMMON = (
    "optimizer.name=adamw", "optimizer.beta2=0.98", "schedule.peak=2e-4", "schedule.warmup_steps=400",
    "log.validation_samples=2048", "log.every=100", "checkpoint.every=1000000", "checkpoint.keep=1",
)  # fmt: skip
ON_A_GPU = ("train.fused=true", "train.cuda_graphs=true", "data.token_multiple=1024")  # nothing waits for a compiler
TASKS = {"mrpc": "3", "rte": "3", "stsb": "3", "sst2": "1"}  # epochs of fine-tuning
WITHOUT_PEER = {"steps": 1600, "validate_every": 200}  # where it fails before it can tell how many it has time for
PEERS_SHARE = 0.55  # of all time, after which the peer makes room for ours
MARGIN = 20.0  # seconds before --end when programs are ended: for an export, the picture and the page


def main() -> None:
    """Pretrain both, fine-tune, report."""
    arguments = _parse()
    end_when_interrupted("gpu_curve: ended by a signal, with all that it had started")  # or they would keep the GPU
    arguments.output.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(arguments.work, ignore_errors=True)
    arguments.work.mkdir(parents=True)
    settings = settings_of(arguments)
    recipe = load_recipe(RECIPE, settings)
    about = {
        "machine": torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "parameters": parameter_count(recipe.model),
        "batch": recipe.phases[0].global_batch_size,
    }
    parts = Parts(arguments.output / "gpu_curve", about, lambda records: page(about, records))
    pretrain(parts, arguments, settings)
    models = parts.run("export", "of both models", partial(exports, arguments, settings))
    for task in TASKS if models else ():
        parts.run("fine-tuning", task, partial(fine_tune, task, models, arguments))
    print(page(about, parts.records))
    sys.exit(not parts.complete)


def settings_of(arguments: argparse.Namespace) -> list[str]:
    """What both train with, but for the number of steps."""
    batch, size = SIZES[arguments.size]
    device = ON_A_GPU if arguments.device == "cuda" else ()
    return [*one_phase(arguments.shards, 128, batch), *COMMON, *size, *device]


def pretrain(parts: Parts, arguments: argparse.Namespace, settings: list[str]) -> None:
    """The peer, then ours for as many steps; a curve is read in any case, as far as it goes."""
    work, seconds = arguments.work, ["--seconds", str(arguments.seconds)]
    parts.run("training", "transformers", partial(train, "peer", arguments, [*seconds, *settings], PEERS_SHARE))
    parts.run("curve", "transformers", partial(read_curve, work, "transformers"))
    told = work / "peer.steps.json"
    plan = json.loads(told.read_text(encoding="utf-8")) if told.exists() else WITHOUT_PEER
    same = [f"phases.0.steps={plan['steps']}", f"log.validate_every={plan['validate_every']}"]
    parts.run("training", "ours", partial(train, "ours", arguments, [*settings, *same], 1.0))
    parts.run("curve", "ours", partial(read_curve, work, "ours"))
    if also := arguments.also:
        name, work = f"ours, {' '.join(also)}", work / "also"
        parts.run("training", name, partial(train, "ours", arguments, [*settings, *same, *also], 1.0, "also"))
        parts.run("curve", name, partial(read_curve, work, "ours"))
    curves = found_by(parts.records, "curve")
    parts.run("picture", "of the curves", partial(draw, curves, arguments.output / "gpu_curve.png"))


def train(part: str, arguments: argparse.Namespace, options: list[str], share: float, folder: str = "") -> str:
    """One part of benchmarks/curve.py, in a process of its own, until a share of all time has passed."""
    command = [sys.executable, ROOT / "benchmarks" / "curve.py", part, "--shards", arguments.shards.path, "--output",
               arguments.work / folder, "--recipe", RECIPE, "--device", arguments.device, *options]  # fmt: skip
    run_programs({folder or part: command}, arguments.work, min(share * arguments.end, arguments.end - MARGIN))
    return "done"


def exports(arguments: argparse.Namespace, settings: list[str]) -> dict[str, str]:
    """What is fine-tuned: the newest export, and the same model untrained."""
    trained = step_folders(arguments.work / "ours" / "exports")
    if not trained:
        raise RuntimeError("our training left no export")
    recipe = load_recipe(RECIPE, settings)
    untrained = arguments.work / "untrained"
    model = BertForPreTraining(recipe.model, recipe.train.seed)
    save_export(untrained, model.state_dict(), recipe.model, arguments.shards.tokenizer, {})
    return {"pretrained": str(trained[-1]), "untrained": str(untrained)}


def fine_tune(task: str, models: dict[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Model -> metrics of the task's dev set; both models side by side."""
    outputs = {name: arguments.work / f"{task}-{name}" for name in models}
    limit = ["--limit", arguments.limit] if arguments.limit else []
    commands = {
        f"{task}-{name}": [
            sys.executable, "-m", "eval.run", "--checkpoint", export, "--tasks", task, "--data", arguments.data,
            "--output", outputs[name], "--no-tracking", "--learning-rates", "5e-5", "--epochs", TASKS[task],
            "--batch-sizes", "32", "--max-length", "128", "--precision", "bf16", "--device", arguments.device, *limit,
        ]
        for name, export in models.items()
    }  # fmt: skip
    run_programs(commands, arguments.work, arguments.end - MARGIN, cpu=arguments.device == "cpu")
    results = {
        name: json.loads((output / "results.json").read_text(encoding="utf-8")) for name, output in outputs.items()
    }
    return {name: result["tasks"][task]["metrics"] for name, result in results.items()}


def read_curve(work: Path, name: str) -> dict[str, list[float]]:
    """Tokens, seconds of training and loss of each step, and where the held-out losses are, of which steps."""
    lines, held_out = (list(read_lines(work / files[name])) for files in (CURVES, HELD_OUT))
    if len(lines) < 2:
        raise RuntimeError(f"{len(lines)} steps are no curve")
    if name == "ours":
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


def page(about: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """The tables, of what there is."""
    took = sum(record["seconds"] for record in records)
    text = (
        f"{about['machine']}, torch {about['torch']}: {about['parameters']:,} parameters, steps of {about['batch']} "
        f"sequences of 128, all in {took:.0f} seconds.\n"
    )
    curves = [["", "steps", "M tokens", "seconds of training", "real tokens/s", "held-out MLM loss",
               "held-out NSP accuracy"]]  # fmt: skip
    for name, curve in found_by(records, "curve").items():
        half = len(curve["tokens"]) // 2 - 1  # kernels are compiled and chosen before
        rate = (curve["tokens"][-1] - curve["tokens"][half]) / (curve["seconds"][-1] - curve["seconds"][half])
        curves.append([
            name, f"{len(curve['tokens']):,}", f"{curve['tokens'][-1] / 1e6:.1f}", f"{curve['seconds'][-1]:.0f}",
            f"{rate:,.0f}", _last(curve, "mlm_loss", ".4f"), _last(curve, "nsp_accuracy", ".2%"),
        ])  # fmt: skip
    scores = [
        [task, metric, _with_error(found), _with_error(models["untrained"][metric]), f"{found['baseline'] or 0:.1f}"]
        for task, models in found_by(records, "fine-tuning").items()
        for metric, found in models["pretrained"].items()
    ]
    tables = [markdown_table(curves, range(1, 7))]
    if scores:
        tables.append(markdown_table([["task", "metric", "pretrained", "untrained", "baseline"], *scores], (2, 3, 4)))
    if lost := missing(records):
        tables.append(markdown_table([["failed", "", "why"], *lost]))
    return "\n".join([text, *tables])


def _last(curve: dict[str, list[float]], name: str, form: str) -> str:
    """The last held-out figure, and after how many steps."""
    figures = curve[f"held_out_{name}"]
    return f"{figures[-1]:{form}} (step {curve['held_out_steps'][-1]:,})" if figures else ""


def _with_error(figure: dict[str, Any]) -> str:
    error = f" ± {figure['half_width']:.1f}" if figure["half_width"] else ""
    return f"{figure['value']:.1f}{error}"


def draw(curves: dict[str, dict[str, list[float]]], path: Path) -> str:
    """Training and held-out losses against tokens, and held-out ones against seconds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for (name, curve), style in zip(curves.items(), ("--", "-", "-."), strict=False):
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
    return path.name


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=_absolute, required=True)
    parser.add_argument("--data", type=_absolute, required=True, help="folder of the data sets, GLUE among them")
    parser.add_argument("--output", type=_absolute, required=True)
    parser.add_argument("--work", type=_absolute, help="where the weights and logs go (default: OUTPUT)")
    parser.add_argument("--size", choices=sorted(SIZES), default="base")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=150.0, help="of the peer's training")
    parser.add_argument("--end", type=float, default=570.0, help="seconds after the start when all has ended")
    parser.add_argument("--also", nargs="+", metavar="section.key=value", help="train ours once more, with these")
    parser.add_argument("--limit", type=int, help="take so many examples of each task, to try it out")
    arguments = parser.parse_args()
    arguments.work = (arguments.work or arguments.output) / "gpu_curve_work"
    arguments.shards = open_shards(parser, arguments)
    return arguments


def _absolute(path: str) -> Path:
    """Programs are started from the checkout."""
    return Path(path).resolve()


if __name__ == "__main__":
    main()
