"""What benchmarks of the trainer share: parts that may fail one by one, programs with an end, inputs, rates."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from preprocessing.schema import ShardDirectory, ShardError
from trainer.config import Recipe, load_recipe
from trainer.data import SampleStream
from trainer.deepspeed_config import read_deepspeed, resolve, without_communication
from trainer.files import write_atomically
from trainer.joining import device_kind
from trainer.loading import Steps
from trainer.world import World
from transformers_pretraining import PaddedSteps

ROOT = Path(__file__).resolve().parent.parent
# A model for a CPU, to show that a script works.
DEMO = ("model.hidden_size=128", "model.num_hidden_layers=2", "model.num_attention_heads=2",
        "model.intermediate_size=512")  # fmt: skip
# What a training of ours and transformers' leave below an output folder: a line for each step, and each validation.
CURVES = {"ours": "ours/metrics.jsonl", "transformers": "peer.jsonl"}
HELD_OUT = {"ours": "ours/validation.jsonl", "transformers": "peer.held_out.jsonl"}

GPU_LOST = 3  # an exit code; 1 and 2 are those of parts that failed and of wrong arguments


def require_cpu() -> None:
    """End the program where DeepSpeed would take a GPU, which is decided when it is imported."""
    if device_kind().type != "cpu":
        sys.exit("this measures a CPU: start it with DS_ACCELERATOR=cpu in the environment")


def free_port() -> str:
    """One of this machine's, for ranks to meet at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def be_the_only_rank() -> None:
    """Have the environment that a launcher of one rank would give, unless there is a launcher's."""
    one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**one, "MASTER_PORT": free_port()}.items():
        os.environ.setdefault(name, value)


def seconds_since_start() -> float:
    """Seconds since this process was started, its imports included."""
    return time.time() - psutil.Process().create_time()


class Parts:
    """Parts of a benchmark, each of which may fail by itself; what is known is on disk after each.

    OUTPUT/NAME.json holds what the benchmark says about itself and a record of each part: kind, name, seconds, and what
    was found or the error. OUTPUT/NAME.md is the page made of them. A part is there before it begins, so that they name
    the one in which the process was killed. One that took the GPU from its process, or that process's life, is "lost".

    Attributes:
        records: of the parts so far.
        began: time.time() of the start of the first process.
    """

    def __init__(
        self, stem: Path, about: dict[str, Any], page: Callable[[list[dict[str, Any]]], str], end: float = math.inf,
        go_on: bool = False, patience: float = threading.TIMEOUT_MAX,
    ):  # fmt: skip
        """Begin with nothing, or with what an earlier process left.

        Args:
            stem: OUTPUT/NAME.
            about: JSON, of the whole benchmark.
            page: makes the page of the records.
            end: seconds after the start of the first process from which on no part is begun.
            go_on: leave out the parts that have a record already, such as of the one that an earlier process died of.
            patience: seconds until a part is given up, and the process with it: a kernel may never come to its end.
        """
        self._stem, self._page, self._end, self._patience = stem, page, end, patience
        written = stem.with_suffix(".json")
        known = json.loads(written.read_text(encoding="utf-8")) if go_on and written.exists() else {}
        self.records: list[dict[str, Any]] = known.get("parts", [])
        self.began: float = known.get("began", time.time() - seconds_since_start())
        self._about = about

    def run(self, kind: str, name: str, measure: Callable[[], Any], needs: Sequence[str] = ()) -> Any:
        """What a part finds (JSON); None where it fails or there is no time left for it.

        Where a part loses the GPU to this process, such as by an address that a kernel got wrong, the process ends with
        the exit code GPU_LOST: no other part would find anything in it.

        Args:
            kind: of the part.
            name: likewise.
            measure: finds it.
            needs: names of parts, with any of which lost this one would be lost too, and is not run.
        """
        for record in self.records:
            if (record["kind"], record["name"]) == (kind, name):
                return record.get("found")
        began = self._passed()
        record = {"kind": kind, "name": name, "seconds": 0.0}
        self.records.append(record)
        lost = [needed for needed in needs if any(one["name"] == needed and "lost" in one for one in self.records)]
        if began > self._end:
            record["error"] = f"not run: {self._end:.0f} seconds had passed"
        elif lost:
            record["error"] = f"not run: it would be lost as was {lost[0]}"
        else:
            record |= {"error": "the process ended in it", "lost": True}
            self._write()
            giving_up = threading.Timer(self._patience, self._give_up, [record])
            giving_up.daemon = True
            giving_up.start()
            try:
                record["found"] = measure()
                del record["error"]
            except Exception as error:
                traceback.print_exc()
                record["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._write()  # for what follows may end the process too
            try:
                release()  # only here nothing holds the frames of a failed part, and their tensors, any more
                del record["lost"]
            except RuntimeError:
                traceback.print_exc()
            giving_up.cancel()
        record["seconds"] = self._passed() - began
        self._write()
        print(f"{kind}, {name}: {record.get('error', 'done')}, {record['seconds']:.0f} s", file=sys.stderr, flush=True)
        if "lost" in record:
            os._exit(GPU_LOST)  # a usual exit may wait for the GPU
        return record.get("found")

    def _give_up(self, record: dict[str, Any]) -> None:
        faulthandler.dump_traceback()
        record["error"] = f"given up after {self._patience:.0f} seconds"
        self._write()
        os._exit(GPU_LOST)

    def _passed(self) -> float:
        return time.time() - self.began

    def _write(self) -> None:
        whole = {"about": self._about, "began": self.began, "parts": self.records}
        write_atomically(self._stem.with_suffix(".json"), json.dumps(whole, indent=1) + "\n")
        write_atomically(self._stem.with_suffix(".md"), self._page(self.records))

    @property
    def complete(self) -> bool:
        """Whether every part has found something."""
        return all("found" in record for record in self.records)


def found_by(records: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """What the parts of a kind found, by name."""
    return {record["name"]: record["found"] for record in records if record["kind"] == kind and "found" in record}


def missing(records: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each part without a result: its kind, name and why."""
    return [[record["kind"], record["name"], record["error"]] for record in records if "error" in record]


def release() -> None:
    """Free what nothing refers to any more; engines refer to themselves, and compiled code to what it was made for.

    Raises:
        RuntimeError: a GPU is of no use to this process any more.
    """
    torch.compiler.reset()
    for _ in range(2):  # as trainer.engine.Engine.close
        gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.rand(1, device="cuda")  # refused by torch before 2.12 where a CUDA graph could not be recorded
        if torch.cuda.current_stream() != torch.cuda.default_stream():  # likewise
            raise RuntimeError("what recorded a CUDA graph has left its stream to all that follows")


def run_programs(commands: Mapping[str, Sequence[object]], logs: Path, end: float, cpu: bool = False) -> None:
    """Run programs side by side, from the checkout, each with its log LOGS/NAME.log.

    Args:
        commands: by name.
        logs: folder.
        end: seconds after the start of this process when all are ended, with every process that they started.
        cpu: keep DeepSpeed off the GPU.

    Raises:
        RuntimeError: one failed, or was not done at the end, or that was before the beginning.
    """
    if seconds_since_start() > end:
        raise RuntimeError(f"not run: {end:.0f} seconds had passed")
    running: dict[str, subprocess.Popen[bytes]] = {}
    environment = {**os.environ, **({"DS_ACCELERATOR": "cpu"} if cpu else {})}
    try:
        for name, command in commands.items():
            with (logs / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(
                    list(map(str, command)), cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
        for name, process in running.items():
            try:
                code = process.wait(max(0.0, end - seconds_since_start()))
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"{name} was not done when {end:.0f} seconds had passed") from None
            if code:
                lines = (logs / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
                print(*lines[-40:], sep="\n", file=sys.stderr)
                raise RuntimeError(f"{name} ended with exit code {code}: {lines[-1] if lines else 'it said nothing'}")
    finally:
        for process in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def open_shards(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> ShardDirectory:
    """The shards of a GPU's benchmark; ends the program where they, or the GPU that --device names, are not there."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu --size demo shows that the script works")
    try:
        return ShardDirectory(arguments.shards)
    except ShardError as error:
        parser.error(str(error))


def recipe_of(shards: ShardDirectory, length: int, batch: int, settings: Sequence[str]) -> Recipe:
    """BERT-LARGE's recipe with one long phase of whole batches, and the vocabulary of the shards."""
    return load_recipe(ROOT / "trainer" / "recipes" / "bert_large.toml", [*one_phase(shards, length, batch), *settings])


def one_phase(shards: ShardDirectory, length: int, batch: int) -> list[str]:
    """The settings for one long phase of whole batches, and the vocabulary of the shards."""
    phase = f"{{sequence_length={length}, steps=1000000, global_batch_size={batch}, micro_batch_size={batch}}}"
    return [f"model.vocab_size={shards.manifest.vocabulary.size}", f"phases=[{phase}]"]


def steps_of(recipe: Recipe, shards: ShardDirectory, padded: bool = False) -> Steps:
    """The recipe's batches for one rank; padded, they have transformers' inputs too, and nothing that fills up."""
    (phase,) = recipe.phases
    data = replace(recipe.data, token_multiple=1) if padded else recipe.data
    stream = SampleStream(
        shards, "train", phase.sequence_length, seed=recipe.train.seed, max_predictions=phase.max_predictions,
        masking=recipe.masking, data=data,
    )  # fmt: skip
    kind = PaddedSteps if padded else Steps
    return kind(stream, phase.global_batch_size, phase.micro_batch_size, rank=0, world=1)


def deepspeed_config(recipe: Recipe, world: World, stage: int | None = None) -> dict[str, Any]:
    """DeepSpeed's configuration, for ours and for the peer; ``stage`` is of ZeRO, without it that of ds_config.json."""
    file = read_deepspeed(ROOT / "ds_config.json")
    if stage is not None:
        file.settings["zero_optimization"]["stage"] = stage
    config = resolve(file, recipe, recipe.phases[0], world.size)
    return without_communication(config) if world.size == 1 else config


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second read and written by a large copy."""
    size, copies = (1 << 30, 10) if device.type == "cuda" else (1 << 26, 1)  # asked for before a GPU is waited for
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(8):
        wait_for(device)
        began = time.perf_counter()
        for _ in range(copies):
            target.copy_(source)
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size * copies / min(seconds)


def wait_for(device: torch.device) -> None:
    """Until it has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize()
