"""The GPU's path on a machine without a GPU: all code of the host, with a stand-in for CUDA whose kernels do nothing.

It shows that a program comes to its end on a GPU's side of every branch, through torch's own checks, torch.compile,
triton and DeepSpeed; not what it computes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_stand_in import build, why_not
from eval.results import read_results
from gpu_predictions import BEST_IN_GRAPHS, LADDER
from tests.conftest import ROOT
from tests.eval.conftest import CONFIG, random_state
from tests.eval.small_data import write_codah, write_conll, write_mrpc, write_squad, write_stsb
from tests.ranks import launched
from tests.trainer.shard_factory import write_shards
from trainer.files import read_lines
from trainer.hugging_face import save_export
from trainer.run_directory import RunDirectory

PARAMETERS = "model={vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128}"
PHASE = "phases=[{sequence_length=32, steps=100, global_batch_size=8, micro_batch_size=4, max_predictions=5}]"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=f"the stand-in: {why_not()}")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """In which a program has the stand-in, and is the only rank."""
    return {**os.environ, **build(tmp_path_factory.mktemp("stand_in")), **launched(), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("data") / "shards", train=(70, 50), pairs_per_row=5)


# After a backward pass: torch's thread of the device lets go of it in its own time, and a Python below 3.14 that ends
# meanwhile is aborted.
END = """
        import os, sys

        sys.stdout.flush()
        os._exit(0)
"""


def run(environment: dict[str, str], *command: object, patience: float = 600) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=patience)


def test_reading_from_the_device_gives_zeros_and_is_counted(environment: dict[str, str]):
    program = """if True:
        import torch
        from benchmarks.cuda_stand_in import counts

        a = torch.ones(8, 8, device="cuda")
        before = counts()
        total = (a @ a).sum().item()
        print(total, a.device, *counts().since(before)[:2])
    """
    done = run(environment, "-c", program)
    assert (done.stdout, done.returncode) == ("0.0 cuda:0 2 1\n", 0), done.stderr


def test_tensors_of_two_devices_do_not_mix(environment: dict[str, str]):
    program = "import torch; torch.ones(2, device='cuda') + torch.ones(2)"
    done = run(environment, "-c", program)
    assert "Expected all tensors to be on the same device" in done.stderr


def test_what_is_put_into_a_graph_is_launched_with_it(environment: dict[str, str]):
    program = """if True:
        import torch
        from benchmarks.cuda_stand_in import counts

        a, graph = torch.ones(8, 8, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            before = counts()  # torch 2.11 sets two numbers when it begins
            b = a @ a @ a
        print(counts().since(before).launches)
        graph.replay()
        print(counts().since(before).launches)
    """
    done = run(environment, "-c", program)
    assert (done.stdout, done.returncode) == ("0\n1\n", 0), done.stderr


@pytest.mark.parametrize(("asked_meanwhile", "idle"), [("", True), ("a @ a", False)])
def test_a_device_stands_idle_after_a_wait_that_leaves_it_nothing_to_do(
    asked_meanwhile: str, idle: bool, environment: dict[str, str]
):
    program = f"""if True:
        import torch
        from benchmarks.cuda_stand_in import counts

        a, event = torch.ones(8, 8, device="cuda"), torch.cuda.Event()
        a @ a
        before = counts()
        event.record()
        {asked_meanwhile}
        event.synchronize()
        a @ a
        found = counts().since(before)
        print(found.waits, found.idle > 0)
    """
    done = run(environment, "-c", program)
    assert (done.stdout, done.returncode) == (f"1 {idle}\n", 0), done.stderr


@pytest.mark.parametrize(("awaited", "idle"), [("torch.cuda.current_stream()", True), ("other", False)])
def test_what_one_stream_has_done_leaves_another_its_own(awaited: str, idle: bool, environment: dict[str, str]):
    program = f"""if True:
        import torch
        from benchmarks.cuda_stand_in import counts

        a, other = torch.ones(8, 8, device="cuda"), torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        a + a
        before = counts()
        {awaited}.synchronize()
        a + a
        found = counts().since(before)
        print(found.waits, found.idle > 0)
    """
    done = run(environment, "-c", program)
    assert (done.stdout, done.returncode) == (f"1 {idle}\n", 0), done.stderr


def test_ranks_add_up_while_their_gpus_compute(environment: dict[str, str]):
    """Or each would stand idle from the end of its backward pass until its host has heard of the sum."""
    program = """if True:
        import torch
        from benchmarks.cuda_stand_in import counts
        from torch.testing._internal.distributed.fake_pg import FakeStore
        from trainer.joining import join_world

        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        world, a = join_world(threads=1), torch.ones(8, 8, device="cuda")
        a + a
        before = counts()
        sums = world.sum([1.5])
        a + a
        found = counts().since(before)
        print(sums, found.waits > 0, found.idle)
    """
    done = run(environment, "-c", program)
    assert (done.stdout, done.returncode) == ("[1.5] True 0.0\n", 0), done.stderr


@pytest.mark.parametrize("asked", ["a.sum().item()", "torch.cuda.synchronize()"])
def test_what_needs_the_host_can_not_be_put_into_a_graph(asked: str, environment: dict[str, str]):
    """Nor does the program go on with the rest of it, where the mistake is caught."""
    program = f"""if True:
        import torch

        a = torch.ones(8, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            try:
                {asked}
            except RuntimeError as error:
                print(error)
            a + a
    """
    done = run(environment, "-c", program)
    assert "this can't be done in a graph" in done.stdout
    assert "what was captured can't be done in a graph" in done.stderr


def test_what_goes_by_a_graph_on_another_stream_ends_the_program(environment: dict[str, str]):
    program = """if True:
        import torch

        a, other = torch.ones(8, device="cuda"), torch.cuda.Stream()
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"), torch.cuda.stream(other):
            a + a
    """
    done = run(environment, "-c", program)
    assert done.returncode == -signal.SIGABRT
    assert "on another stream than the one that is captured" in done.stderr


@pytest.mark.parametrize("settings", [
    ["train.fused=true"], ["model.attention_probs_dropout_prob=0.1"],
    *(["train.cuda_graphs=true", "data.token_multiple=64", *way] for way in (
        ["model.attention_probs_dropout_prob=0.1"], ["train.compile=true"], ["train.compile=true", "train.fused=true"],
    )),
], ids=["kernels of our own", "dropout everywhere", "CUDA graphs, dropout everywhere", "CUDA graphs, compiled",
        "CUDA graphs with kernels of our own"])  # fmt: skip
def test_a_run_trains_stops_goes_on_and_is_exported(
    settings: list[str], environment: dict[str, str], shards: Path, tmp_path: Path
):
    for last in (2, 4):
        done = run(
            environment, "trainer/pretrain.py", "--config", "trainer/recipes/bert_large.toml", "--shards", shards,
            "--output", tmp_path / "run", PARAMETERS, PHASE, f"train.max_steps={last}", "tracking.enabled=false",
            "data.workers=1", "log.profile_step=2", *settings,
        )  # fmt: skip
        assert f"done: {last} steps" in done.stderr, done.stderr[-4000:]
        assert f"step {last} of rank 0 took" in done.stderr
        assert "memory is in use: phases.0.micro_batch_size=8 fits too" in done.stderr
    directory = RunDirectory(tmp_path / "run")
    lines = list(read_lines(directory.metrics))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["peak_memory_gb"] > 0 for line in lines)
    of_the_step_before = [{"update_seconds", "host_share"} <= set(line) for line in lines]
    assert of_the_step_before == [False, True, False, True], "each start has a first one"
    assert (directory.export(4) / "model.safetensors").is_file()


def test_held_out_samples_are_scored_on_the_device_that_is_asked_for(environment: dict[str, str], tmp_path: Path):
    shards = write_shards(tmp_path / "shards", sequence_lengths=(32,), validation=(6, 5))
    save_export(tmp_path / "export", random_state(), CONFIG, shards / "tokenizer", {})
    for device, asked in (("cpu", []), ("cuda", ["--device", "cuda"])):
        done = run(
            environment, "-m", "eval.run", "--checkpoint", tmp_path / "export", "--tasks", "nsp,fill_mask",
            "--shards", shards, "--output", tmp_path / device, "--no-tracking", *asked,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        results = read_results(tmp_path / device / "results.json")
        assert results["settings"]["device"] == device
        assert (results["tasks"]["nsp"]["metrics"]["loss"]["value"] == 0) == (device == "cuda")  # it gives zeros


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_tasks_of_every_kind_are_learned(precision: str, environment: dict[str, str], tmp_path: Path):
    """But for a BiLSTM on a frozen encoder: cuDNN has none for a stand-in."""
    shards, config = write_shards(tmp_path / "shards", train=(2,)), replace(CONFIG, max_position_embeddings=80)
    save_export(tmp_path / "export", random_state(config), config, shards / "tokenizer", {})
    for write in (write_mrpc, write_stsb, write_codah, write_conll):
        write(tmp_path / "data")
    write_squad(tmp_path / "data", "v2.0")
    tasks = ("mrpc", "stsb", "codah", "conll2003", "squad_v2")
    done = run(
        environment, "-m", "eval.run", "--checkpoint", tmp_path / "export", "--tasks", ",".join(tasks), "--data",
        tmp_path / "data", "--output", tmp_path / "out", "--learning-rates", "1e-3", "--epochs", "1", "--batch-sizes",
        "8", "--precision", precision, "--save-models", "--no-tracking",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    results = read_results(tmp_path / "out" / "results.json")
    assert [results["tasks"][name]["details"]["points"][0]["device"] for name in tasks] == ["cuda"] * len(tasks)


@pytest.mark.parametrize(
    ("head", "targets"),
    [
        ("ClassificationHead(config, 3)", "(2,)"),
        ("SpanHead(config)", "(1, 3)"),
        ("TagHead(config, 3)", "(-100, 2, 1, -100)"),
    ],
)
def test_no_step_of_a_task_waits_for_the_device(head: str, targets: str, environment: dict[str, str]):
    """How long sequences are, and which of their tokens are read, the host knows by itself."""
    program = f"""if True:
        import numpy as np
        import torch
        from benchmarks.cuda_stand_in import counts
        from eval.encoding import Sample, Segments, collate
        from eval.finetune import Hyperparameters, Settings, learn
        from eval.heads import ClassificationHead, FineTunedBert, SpanHead, TagHead
        from tests.eval.conftest import CONFIG as config
        from trainer.model import BertModel

        model, device = FineTunedBert(BertModel(config), {head}).to("cuda"), torch.device("cuda")
        sample, waits = Sample((Segments(np.arange(4), 2),), {targets}), []
        for steps in (1, 1, 3, 9):
            before, point = counts(), Hyperparameters(1e-3, 1, 8, 0)
            learn(model, [sample] * 8 * steps, collate, point, Settings(), device, lambda *_: None)
            waits.append(counts().since(before).waits)
        print(waits[1:])
    """
    done = run(environment, "-c", program + END)
    assert (done.stdout, done.returncode) == ("[1, 1, 1]\n", 0), done.stderr


def test_states_of_a_frozen_encoder_are_not_waited_for(environment: dict[str, str]):
    program = """if True:
        import torch
        from benchmarks.cuda_stand_in import counts
        from eval.features import Sentences

        device = torch.device("cuda")
        torch.ones(1, device=device)
        before = counts()
        there = Sentences(torch.ones(5, 3, 8), torch.ones(5, dtype=torch.int64), [2, 3]).to(device)
        print(there.states.device, there.targets.device, counts().since(before).waits)
    """
    done = run(environment, "-c", program)
    assert (done.stdout, done.returncode) == ("cuda:0 cuda:0 0\n", 0), done.stderr


def test_kernels_are_compared_as_the_doctor_does(environment: dict[str, str]):
    done = run(environment, "-m", "cluster.checkup.kernels")
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(json.loads(done.stdout)) == 2 * (14 + 5)  # of short and of long sequences, a layer and dropout


@pytest.mark.long
def test_the_peer_of_a_curve_trains_and_validates(environment: dict[str, str], shards: Path, tmp_path: Path):
    phase = "phases=[{sequence_length=32, steps=2, global_batch_size=8, micro_batch_size=8, max_predictions=5}]"
    done = run(
        environment, "benchmarks/curve.py", "peer", "--shards", shards, "--output", tmp_path, "--device", "cuda",
        PARAMETERS, phase, "data.workers=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert [line["step"] for line in read_lines(tmp_path / "peer.held_out.jsonl")] == [2]


def test_the_products_of_a_ceiling_do_not_wait_for_one_another(environment: dict[str, str]):
    """A GPU that stands still between them makes the ceiling low, and what is measured by it high."""
    program = """if True:
        import torch
        from benchmarks.cuda_stand_in import counts
        from trainer.metrics import measure_ceiling

        before = counts()
        measure_ceiling(torch.device("cuda"), torch.bfloat16)
        launches, waits, _ = counts().since(before)
        print(launches >= 8 * waits > 0)
    """
    done = run(environment, "-c", program)
    assert done.stdout == "True\n", done.stderr


ROWS = [LADDER[0], LADDER[2], LADDER[3], BEST_IN_GRAPHS]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("chosen", "parts"), [
    (["--kinds", "dropout", "attention", "error"], {"dropout": 2, "attention": 1, "error": 5}),
    (["--rows", *(row.name for row in ROWS)], {"row": len(ROWS)}),
], ids=["other parts", "rows"])  # fmt: skip
def test_parts_of_the_benchmark_are_measured(
    environment: dict[str, str], shards: Path, tmp_path: Path, chosen: list[str], parts: dict[str, int]
):
    """Of the rows those whose code the compiler does not make in another part or test: it takes a minute for some."""
    done = run(
        environment, "benchmarks/gpu_pretrain.py", "--shards", shards, "--output", tmp_path, "--size",
        "demo", "--lengths", 32, "--batches", 8, "--seconds", 0.1, "--end", 1400, *chosen, patience=1500,
    )  # fmt: skip
    records = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["parts"]
    errors = {record["kind"]: record["error"] for record in records if "error" in record}
    errors.pop("dropout", None)  # torch 2.11 takes cuDNN's kernel there, and cuDNN wants a real driver
    assert not errors, done.stderr[-4000:]
    assert Counter(record["kind"] for record in records) == parts


@pytest.mark.long
def test_in_graphs_the_host_has_less_to_launch(environment: dict[str, str], tmp_path: Path):
    shards = write_shards(tmp_path / "shards", sequence_lengths=(128,), train=(70, 50), pairs_per_row=5)
    rows = ["layers by kernels of our own", "these in CUDA graphs"]
    done = run(environment, "benchmarks/host_time.py", "--shards", shards, "--size", "demo", "--rows", *rows)
    assert done.returncode == 0, done.stderr[-4000:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    found = {line[0]: [int(cell.replace(",", "")) for cell in line[4:]] for line in cells if line and line[0] in rows}
    (by_kernels, waits), (in_graphs, waits_in_graphs) = (found[row] for row in rows)
    assert in_graphs < by_kernels - 100
    assert waits == waits_in_graphs == 3, "for losses, for the gradient's norm, and for the end of the step before"


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.long)])
def test_what_the_host_of_one_of_several_ranks_does_is_measured(
    stage: int, environment: dict[str, str], tmp_path: Path
):
    shards = write_shards(tmp_path / "shards", sequence_lengths=(128,), train=(70, 50), pairs_per_row=5)
    command = ("benchmarks/host_time.py", "--shards", shards, "--size", "demo", "--ranks", 8, "--stage", stage)
    done = run(environment, *command, "--rows", "ours as the recipe has it")
    assert done.returncode == 0, done.stderr[-4000:]
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("| ours"))
    waits = int(row.split("|")[-2])
    assert waits == {1: 7, 2: 11}[stage], "in a sum are two, for what goes there and what comes back"


def test_activations_take_what_the_plan_says(environment: dict[str, str]):
    """By torch's allocator for GPUs, all that is there at once in a pass, of a model of few words and of BERT-LARGE."""
    program = """if True:
        from dataclasses import replace

        import torch
        from cluster.planning.activations import MicroBatch, peak_bytes
        from trainer.data import Batch
        from trainer.fused import fuse
        from trainer.graphs import InGraphs
        from trainer.model import BertConfig, BertForPreTraining, parameter_count
        from trainer.objective import Objective
        from trainer.packing import PackedTokens

        device = torch.device("cuda:0")

        SMALL, LARGE = BertConfig(1000, 512, 6, 8, 2048), BertConfig(30522)

        def take(kernel, length, checkpointing, in_graphs=False, config=SMALL, sequences=256):
            config = replace(config, activation_checkpointing=checkpointing)
            if kernel == "varlen":
                config = replace(config, attention_probs_dropout_prob=0.0)
            batch = MicroBatch(sequences, length, sequences * 16)
            model = BertForPreTraining(config, seed=None).to(device).bfloat16()
            if kernel == "fused":
                fuse(model.bert.layers, config)
            ids = torch.zeros(batch.tokens, dtype=torch.int64)
            tokens = PackedTokens.from_flat(ids, ids, torch.full((batch.sequences,), length))
            positions = torch.arange(batch.tokens).view(-1, length)[:, :16].flatten()
            each = ids[: batch.sequences]
            given = Batch(tokens, positions, ids[: len(positions)], each, each)
            objective = Objective(model, device)
            if in_graphs:
                objective = InGraphs(objective)
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved() if in_graphs else 0
            for _ in range(2):
                if not in_graphs:
                    before = torch.cuda.memory_allocated()
                    torch.cuda.reset_peak_memory_stats()
                losses = objective(given)
                (losses.mlm_loss + losses.nsp_loss).backward()
                del losses
            if in_graphs:  # beside the gradients, those of which it is a copy
                taken = torch.cuda.memory_reserved() - before - 2 * 2 * parameter_count(config)
            else:
                taken = torch.cuda.max_memory_allocated() - before
            print(peak_bytes(config, batch, 2, kernel, checkpointing) / taken)

        for length in 128, 256:
            for kernel in "sdpa", "varlen", "fused":
                for checkpointing in False, True:
                    take(kernel, length, checkpointing)
        for length in 128, 256:
            take("fused", length, False, in_graphs=True)
        for kernel in "sdpa", "varlen", "fused":
            take(kernel, 128, False, config=LARGE, sequences=64)
    """
    done = run(environment, "-c", program + END)
    assert done.returncode == 0, done.stderr
    found = list(map(float, done.stdout.split()))
    assert found[:12] == pytest.approx([1.0] * 12, abs=0.07)
    assert found[12:14] == pytest.approx([1.0] * 2, abs=0.15)  # what a graph's memory lies between included
    assert found[14:] == pytest.approx([1.0] * 3, abs=0.01)  # BERT-LARGE


def test_graphs_of_all_shapes_take_the_memory_of_the_largest(environment: dict[str, str]):
    """A GPU that has no room for two would end; what is computed before it is recorded takes none beside it either."""
    program = """if True:
        import torch
        from trainer.data import Batch
        from trainer.graphs import InGraphs
        from trainer.model import BertConfig, BertForPreTraining
        from trainer.objective import Objective
        from trainer.packing import PackedTokens

        device, lengths = torch.device("cuda:0"), torch.full((256,), 64)
        model = BertForPreTraining(BertConfig(64, 256, 4, 4, 1024), seed=None).to(device)
        for counts in (256,), (256, 192, 224, 128), (128, 160, 192, 224, 256):
            module = InGraphs(Objective(model, device))
            for count in counts:
                ids = torch.zeros(64 * count, dtype=torch.int64)
                zeros = torch.zeros(count, dtype=torch.int64)
                tokens = PackedTokens.from_flat(ids, ids, lengths[:count])
                losses = module(Batch(tokens, zeros, zeros, zeros, zeros))
                (losses.mlm_loss + losses.nsp_loss).backward()
                model.zero_grad()
            print(torch.cuda.max_memory_reserved() >> 20)
            del module, losses
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    """
    done = run(environment, "-c", program + END)
    assert done.returncode == 0, done.stderr
    largest, falling, rising = map(int, done.stdout.split())
    assert largest > 500
    assert falling < 1.02 * largest
    assert rising < 1.1 * largest
