"""python -m cluster.plan: what it prints, and what it refuses."""

import errno
import json
import math
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest
from transformers import BertConfig

from cluster.plan import main
from cluster.planning.estimate import make_plan, scaling
from cluster.planning.figure import draw
from cluster.planning.hardware import GPUS, change_node, find_gpu
from cluster.planning.plans import Assumptions, Cluster, PhasePlan, Plan, StagePlan
from cluster.planning.report import _hours, calibration, report
from cluster.planning.sharding import Sharding, States, read_sharding
from cluster.planning.throughput import StepTime
from preprocessing.schema import PAIR
from tests.conftest import ROOT
from tests.failing import REASON, fail_at, fail_on
from tests.streams import FULL, stdout_to
from trainer.config import load_recipe
from trainer.deepspeed_config import without_communication
from trainer.model import parameter_count
from trainer.settings import ConfigError

RECIPES = list((ROOT / "trainer" / "recipes").glob("*.toml"))
CONFIG = str(ROOT / "ds_config.json")
LAMB = load_recipe(ROOT / "trainer/recipes/lamb_64k.toml")
BASE = load_recipe(ROOT / "trainer/recipes/bert_base.toml")
LONG = "a" * 300  # no file system has such a name: looking for it is an error


def plan(recipe=LAMB, gpu="h200", gpus=64, stage=2, **assumptions):
    cluster = Cluster(GPUS[gpu], gpus, Sharding(stage, overlap=True))
    return make_plan(recipe, cluster, Assumptions(**{"efficiency": 0.45, **assumptions}))


def run(*arguments):
    return main(["--ds-config", CONFIG, *arguments])


def run_large(*arguments):
    return run("--recipe", "bert_large", "--gpu", "h200", "--gpus", "8", *arguments)


def test_hours_are_steps_times_seconds():
    made = plan()
    first = made.phases[0]
    assert first.hours == pytest.approx(7038 * first.step.total / 3600)
    assert made.gpu_hours == pytest.approx(64 * sum(phase.hours for phase in made.phases))
    assert first.rate == pytest.approx(65536 / first.step.total)
    update = made.parameters / 64 * (120 + 24) / GPUS["h200"].bandwidth  # LAMB's bytes, and DeepSpeed's beside them
    assert first.step.update == pytest.approx(update)


def test_a_micro_batch_divides_the_share_and_fits():
    for phase, length in zip(plan().phases, (128, 512), strict=True):
        assert phase.length == length
        assert phase.micro_batch * phase.accumulation * 64 == phase.batch
        assert phase.micro_batch <= phase.largest


def test_efficiency_fill_and_price_do_what_they_say():
    plain, faster, emptier, priced = plan(), plan(efficiency=0.9), plan(fill=0.5), plan(price=3.0)
    assert plain.phases[0].step.compute == pytest.approx(2 * faster.phases[0].step.compute)
    assert plan(efficiency=1.0).phases[0].step.compute == pytest.approx(0.9 * faster.phases[0].step.compute)
    assert emptier.phases[1].step.compute < plain.phases[1].step.compute / 2  # attention is quadratic
    assert emptier.phases[1].micro_batch == plain.phases[1].micro_batch  # memory is planned for full sequences
    assert plain.cost is None
    assert priced.cost == pytest.approx(3 * priced.gpu_hours)


def test_sequences_that_are_half_full_are_the_work_of_full_ones_of_half_their_length():
    long = load_recipe(ROOT / "trainer/recipes/bert_base.toml", ["phases.0.sequence_length=256"])
    assert (long.phases[0].sequence_length, BASE.phases[0].sequence_length) == (256, 128)
    assert plan(long, fill=0.5).phases[0].flops == plan(BASE).phases[0].flops


def test_headroom_is_left():
    roomy, tight = plan(headroom=0.5), plan(headroom=0.0)
    assert roomy.usable * 2 == tight.usable == GPUS["h200"].memory
    assert roomy.phases[0].largest < tight.phases[0].largest


def test_a_left_to_right_model_predicts_every_token():
    """More work, and more logits to hold."""
    no_nsp, left_to_right = (
        plan(load_recipe(ROOT / f"trainer/recipes/ablation_{name}.toml"), gpus=8).phases[0]
        for name in ("no_nsp", "left_to_right")
    )
    assert left_to_right.flops > 1.2 * no_nsp.flops
    assert left_to_right.largest < no_nsp.largest


def test_a_run_that_stops_early_is_planned_as_far_as_it_goes():
    short = load_recipe(ROOT / "trainer/recipes/lamb_64k.toml", ["train.max_steps=1000"])
    assert [phase.steps for phase in plan(short).phases] == [1000]
    whole = load_recipe(ROOT / "trainer/recipes/lamb_64k.toml", ["train.max_steps=7038"])
    assert [phase.steps for phase in plan(whole).phases] == [7038]
    later = load_recipe(ROOT / "trainer/recipes/lamb_64k.toml", ["train.max_steps=7100"])
    assert [phase.steps for phase in plan(later).phases] == [7038, 62]


def test_a_run_that_ends_before_a_later_phase_is_shown_as_far_as_it_goes(capsys):
    assert run_large("train.max_steps=1000") == 0
    assert "largest micro-batch of 128" in (shown := capsys.readouterr().out)
    assert "of 512" not in shown
    assert run_large("train.max_steps=1000", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert [phase["length"] for phase in figures["phases"]] == [128]
    assert [len(stage["largest"]) for stage in figures["stages"]] == [1] * 4


@pytest.mark.parametrize(("gpus", "nodes"), [(4, 1), (8, 1), (64, 8)])
def test_the_loader_reads_tokens_and_pairs_as_shards_have_them(gpus, nodes):
    """Of a step the pairs are read on every node, as their lengths decide who gets which sample, and tokens on one."""
    pairs = pa.array([dict.fromkeys(PAIR.names, 0) | {"is_next": True}] * 800, PAIR)
    for fill in (1.0, 0.5):
        made = plan(gpus=gpus, fill=fill)
        rates = [phase.rate * (fill * phase.length * 2 + nodes * pairs.nbytes / 800) for phase in made.phases]
        assert made.read_rate == pytest.approx(max(rates))


def test_stages_hold_less_and_less_but_for_buffers():
    stages = plan(gpus=8).stages
    held = [stage.states.weights + stage.states.gradients + stage.states.optimizer for stage in stages]
    assert held[0] > held[1] > held[2]
    assert held[1] > held[3], "of which all weights may be gathered at once"
    assert stages[0].refused == "not in 16 bits"  # the trainer refuses mixed precision without ZeRO
    assert stages[0].hours is None
    assert stages[2].hours == pytest.approx(plan(gpus=8).hours)


def test_a_micro_batch_that_is_given_counts_in_every_table():
    cluster, own = Cluster(GPUS["h200"], 32, Sharding(2, overlap=True)), Assumptions(0.45)
    made, largest = (make_plan(BASE, cluster, own, given) for given in ([2], None))
    assert made.hours > largest.hours
    assert made.stages[2].hours == made.hours
    curve = dict(scaling(BASE, cluster, own, 256, [2]))
    assert curve[32] == made.hours
    assert curve[256] == dict(scaling(BASE, cluster, own, 256))[256]  # one sequence a GPU


def test_a_stage_under_which_nothing_fits_has_no_hours_and_float32_may_do_without_zero():
    settings = ["model.hidden_size=6144", "model.intermediate_size=24576"]
    wide = load_recipe(ROOT / "trainer/recipes/bert_large.toml", settings)
    one, three = plan(wide, gpu="a100-40", gpus=8, stage=3).stages[1::2]
    assert (one.largest, one.hours) == ([0, 0], None)
    assert all(three.largest)
    assert three.hours
    cluster = Cluster(GPUS["h200"], 8, Sharding(2, "float32"))
    assert not make_plan(LAMB, cluster, Assumptions(0.45)).stages[0].refused


def test_what_an_optimizer_takes_for_its_update_must_fit_too():
    """LAMB's steps and norms, of a model whose weights and moments take two thirds of the memory."""
    settings = ["model.hidden_size=3840", "model.intermediate_size=15360"]
    for name, fits in (("adamw", True), ("lamb", False)):
        recipe = load_recipe(ROOT / "trainer/recipes/bert_large.toml", [*settings, f"optimizer.name={name}"])
        found = list(scaling(recipe, Cluster(GPUS["h200"], 1, Sharding(2, overlap=True)), Assumptions(0.45), 1))
        assert bool(found) == fits
    told = r"optimizer take (\d+\.\d) GiB of 126\.9; b200 would do$"
    with pytest.raises(ConfigError, match=told) as refused:
        plan(recipe, gpus=1)
    assert 126.9 < float(re.search(told, str(refused.value))[1]) < 180


def test_no_zero_at_all_may_be_what_fits_a_model_in_float32_into_one_gpu():
    """Whose gradients then lie nowhere twice."""
    settings = ["model.hidden_size=2560", "model.intermediate_size=10240"]
    wide = load_recipe(ROOT / "trainer/recipes/bert_large.toml", settings)
    alone = Cluster(GPUS["a100-40"], 1, Sharding(2, "float32"))
    with pytest.raises(ConfigError, match=r"; ZeRO 0, a100-80 would do$"):
        make_plan(wide, alone, Assumptions(0.45))
    assert make_plan(wide, replace(alone, sharding=Sharding(0, "float32")), Assumptions(0.45)).hours > 0


def test_smaller_buckets_are_advised_where_one_takes_the_whole_model_only():
    large = load_recipe(ROOT / "trainer/recipes/bert_large.toml")
    small, whole = (
        make_plan(large, Cluster(GPUS["h200"], 8, Sharding(2, bucket=bucket, overlap=True)), Assumptions(0.45))
        for bucket in (50_000_000, 500_000_000)
    )
    assert small.hours_in_buckets is None
    assert whole.hours_in_buckets < whole.hours


def test_no_buckets_are_advised_where_nothing_is_sent_or_all_of_it_at_the_end():
    """By one GPU, and by what DeepSpeed updates weights in bf16 with under ZeRO 1."""
    assert plan(gpus=1).hours_in_buckets is None
    assert plan(gpus=8, stage=1).hours_in_buckets is None
    assert plan(gpus=8, stage=2).hours_in_buckets is not None


def test_small_micro_batches_are_advised_to_be_in_graphs_under_zero_1():
    """Where the CPU can't ask for operations as fast as eight H200 do those of 32 sequences."""
    large = load_recipe(ROOT / "trainer/recipes/bert_large.toml")
    in_graphs = load_recipe(
        ROOT / "trainer/recipes/bert_large.toml", ["train.cuda_graphs=true", "data.token_multiple=128"]
    )
    made, then = plan(large, gpus=8), plan(in_graphs, gpus=8, stage=1)
    assert made.phases[0].step.launch_bound
    assert not then.phases[0].step.launch_bound
    assert made.multiple_in_graphs == 128, "a 32nd of 32 x 128"
    assert made.hours_in_graphs == then.hours < made.stages[1].hours < made.hours
    assert [stage.refused for stage in then.stages] == ["not in 16 bits", "", "", "not with train.cuda_graphs"]
    recomputed = load_recipe(ROOT / "trainer/recipes/bert_large.toml", ["model.activation_checkpointing=true"])
    assert plan(recomputed, gpus=8).hours_in_graphs is None


def test_tokens_that_fill_a_micro_batch_up_take_time_and_memory():
    """Half of a multiple on average, and a token for each sequence that they make, see PackedTokens.round_up."""
    settings = ["train.cuda_graphs=true"]
    few, many = (
        plan(
            load_recipe(ROOT / "trainer/recipes/bert_large.toml", [*settings, f"data.token_multiple={multiple}"]),
            gpus=1,
        )
        for multiple in (2, 8192)
    )
    one, filled = (made.phases[0] for made in (few, many))
    assert (one.micro_batch, one.length) == (256, 128)
    assert filled.step.compute / one.step.compute == pytest.approx((256 * 128 + 65 + 8191 / 2) / (256 * 128 + 1.5))
    assert filled.flops == one.flops
    assert one.largest - filled.largest == 64, "sequences of 128 tokens, of which 8,191 and 65 may be missing"
    none, some = (
        plan(load_recipe(ROOT / "trainer/recipes/bert_large.toml", [f"data.token_multiple={multiple}"]), gpus=1)
        for multiple in (1, 130)
    )
    assert none.phases[0].largest - some.phases[0].largest == 2, "131 tokens may be missing"


def test_phases_that_are_not_reached_can_be_shared_by_all_gpus_too():
    """The trainer looks at them at its start."""
    recipe = load_recipe(ROOT / "trainer/recipes/bert_large.toml", ["train.max_steps=1000"])
    assert [plan(recipe, gpus=gpus).unreached for gpus in (8, 64)] == [{}, {1: 4}]


def test_micro_batches_of_phases_that_are_not_reached_are_told_with_those_of_the_others(capsys):
    assert run("--recipe", "bert_large", "--gpu", "h200", "--gpus", "64", "train.max_steps=1000") == 0
    assert "phases.0.micro_batch_size=4 phases.1.micro_batch_size=4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "multiple"),
    [
        (("--micro-batch", "32,8"), 128),
        (("--micro-batch", "32,4"), 64),  # by the phase whose micro-batches have the fewest tokens
        (("--micro-batch", "32,8", "--fill", "0.5"), 64),
        (("--micro-batch", "1"), 64),
        (("--micro-batch", "32,8", "train.fused=true", "data.token_multiple=256"), 256),  # as the recipe has it
        (("--micro-batch", "32,8", "data.token_multiple=2"), 2),
    ],
)
def test_what_fills_up_tokens_in_graphs_is_told_with_their_hours(capsys, words, multiple):
    assert run_large("--launch-us", "1000", *words) == 0
    assert f"With `train.cuda_graphs=true data.token_multiple={multiple}`, and" in capsys.readouterr().out


def test_what_the_trainer_refuses_under_zero_3_is_not_planned():
    recipe = load_recipe(ROOT / "trainer/recipes/bert_large.toml", ["train.fused=true", "data.token_multiple=1024"])
    made = plan(recipe, gpus=8)
    assert (made.stages[3].refused, made.stages[3].hours) == ("not with train.fused", None)
    for settings, advised in (([], True), (["train.fused=true", "data.token_multiple=2"], False)):
        recipe = load_recipe(ROOT / "trainer/recipes/bert_large.toml", settings)
        wide = replace(recipe, model=replace(recipe.model, hidden_size=6144, intermediate_size=24576))
        with pytest.raises(ConfigError, match="not even one sequence") as refused:
            plan(wide, gpu="a100-40", gpus=8)
        assert ("ZeRO 3" in str(refused.value)) == advised


def test_a_gpu_that_what_fills_tokens_up_fills_alone_is_too_small():
    recipe = load_recipe(
        ROOT / "trainer/recipes/bert_large.toml", ["train.cuda_graphs=true", "data.token_multiple=65536"]
    )
    with pytest.raises(ConfigError, match="not even one sequence"):
        plan(recipe, gpu="a100-40", gpus=8)


@pytest.mark.parametrize("setting", [{"train_micro_batch_size_per_gpu": 8}, {"gradient_accumulation_steps": 3}])
def test_a_configuration_with_a_micro_batch_is_planned_by_the_plan_s_own(tmp_path, capsys, setting):
    config = json.loads((ROOT / "ds_config.json").read_text()) | setting
    (tmp_path / "ds.json").write_text(json.dumps(config))
    command = ["--recipe", "demo", "--gpu", "h200", "--gpus", "2", "--deepspeed_config", str(tmp_path / "ds.json")]
    assert main(command) == 0
    assert "phases.0.micro_batch_size=8" in capsys.readouterr().out


def test_kernels_of_our_own_leave_room_for_more_sequences():
    """They pad nothing for dropout of attention's weights, and keep no masks."""
    given = "train.fused=true", "data.token_multiple=2"
    usual, own = (
        plan(load_recipe(ROOT / "trainer/recipes/bert_large.toml", settings), gpus=1) for settings in ((), given)
    )
    for before, after in zip(usual.phases, own.phases, strict=True):
        assert 1.08 < after.largest / before.largest < 1.15
        assert after.kept < before.kept
        assert after.kept_checkpointed == before.kept_checkpointed


def test_graphs_keep_the_memory_of_activations_during_an_update():
    """LAMB's needs as much as three float32 copies of a GPU's weights for a moment."""
    filled = "data.token_multiple=2"
    given = (filled,), (filled, "train.cuda_graphs=true")
    recipes = [load_recipe(ROOT / "trainer/recipes/lamb_64k.toml", settings) for settings in given]
    usual, in_graphs = (plan(recipe, gpus=1, stage=1) for recipe in recipes)
    assert usual.states.updating > usual.states.working
    assert in_graphs.states.updating == usual.states.updating + 2 * parameter_count(recipes[0].model)
    assumed, h200 = Assumptions(0.45), GPUS["h200"]
    lost = in_graphs.states.updating - usual.states.working
    smaller = replace(h200, memory=h200.memory - lost / (1 - assumed.headroom))
    in_less = make_plan(recipes[0], Cluster(smaller, 1, usual.cluster.sharding), assumed)
    for before, after, less in zip(usual.phases, in_graphs.phases, in_less.phases, strict=True):
        assert before.largest > after.largest == less.largest


def test_a_gpu_without_bfloat16_takes_the_other_16_bits():
    cluster = Cluster(GPUS["v100-32"], 64, Sharding(2, precision="fp16"))
    assert make_plan(LAMB, cluster, Assumptions(0.45)).hours > plan().hours


def test_older_gpus_pad_attention_and_have_no_kernels_of_our_own():
    """As the trainer takes no kernel for packed sequences before Ampere, and refuses train.fused."""
    settings = ["model.attention_probs_dropout_prob=0.0"]
    plain = load_recipe(ROOT / "trainer/recipes/bert_large.toml", settings)
    older, newer = (
        make_plan(plain, Cluster(GPUS[name], 8, Sharding(2, "fp16")), Assumptions(0.45)).phases[0]
        for name in ("v100-32", "a100-40")
    )
    assert older.kept > 1.05 * newer.kept
    fused = load_recipe(ROOT / "trainer/recipes/bert_large.toml", ["train.fused=true", "data.token_multiple=2"])
    with pytest.raises(ConfigError, match="GPUs from Ampere on, and a v100-32 is older"):
        make_plan(fused, Cluster(GPUS["v100-32"], 8, Sharding(2, "fp16")), Assumptions(0.45))


def test_one_gpu_under_zero_2_is_planned_under_zero_1_as_the_trainer_sets_it():
    """Which adds gradients up where ZeRO 2 would hold them twice, and sends nothing."""
    two, one = plan(gpus=1, stage=2), plan(gpus=1, stage=1)
    assert (two.cluster.sharding.stage, two.states) == (2, one.states)
    assert two.hours == one.hours


def test_a_checkpoint_is_twelve_bytes_a_parameter():
    assert plan().checkpoint == 12 * 336_226_108


def test_the_curve_covers_the_powers_of_two_that_divide_every_batch():
    cluster = Cluster(GPUS["h200"], 8, Sharding(2, overlap=True))
    curve = list(scaling(BASE, cluster, Assumptions(0.45), 4096))
    assert [gpus for gpus, _ in curve] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    fewer = load_recipe(ROOT / "trainer/recipes/bert_base.toml", ["phases.1.global_batch_size=64"])
    assert [gpus for gpus, _ in scaling(fewer, cluster, Assumptions(0.45), 4096)] == [1, 2, 4, 8, 16, 32, 64]
    hours = [hours for _, hours in scaling(LAMB, cluster, Assumptions(0.45), 256)]
    assert sorted(hours, reverse=True) == hours


def test_checkpointing_takes_longer_and_holds_more():
    again = load_recipe(ROOT / "trainer/recipes/lamb_64k.toml", ["model.activation_checkpointing=true"])
    one, other = plan(gpu="a100-40"), plan(again, gpu="a100-40")
    assert other.phases[0].largest > 5 * one.phases[0].largest
    assert other.hours > 1.25 * one.hours
    launching = [plan(recipe, gpu="a100-40", launch=1.0, stage=1).phases[0] for recipe in (LAMB, again)]
    seconds = [phase.step.compute / phase.accumulation for phase in launching]
    assert 1.3 * seconds[0] < seconds[1] < 1.4 * seconds[0]  # all but the embeddings and heads


def test_a_plan_that_finds_no_room_is_a_failure():
    with stdout_to(FULL):
        assert main(["--calibration"]) == 2


def test_report(capsys, tmp_path):
    figure = tmp_path / "plan.png"
    assert run_large("--price-per-gpu-hour", "2", "--plot", str(figure), "--micro-batch", "16,4") == 0
    shown = capsys.readouterr().out
    for words in ("336.2 M parameters", "16 x 2", "GPU-hours", "cost", "2 (this plan)", "not in 16 bits", "4.03 GB",
                  "phases.0.micro_batch_size=16 phases.1.micro_batch_size=4", "|  256 |"):  # fmt: skip
        assert words in shown
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert shown.count("(this plan)") == 1
    row = next(line for line in shown.splitlines() if line.startswith("| TFLOP/s of a GPU"))
    assert all(50 < float(cell) < 0.45 * 989 for cell in row.split("|")[2:4])
    ideal = [int(line.split("|")[5].strip(" %")) for line in shown.partition("## Other")[2].splitlines()[4:] if line]
    assert ideal[0] == 100
    assert sorted(ideal, reverse=True) == ideal


def test_a_figure_has_hours_beside_the_ideal_and_the_work_of_all_gpus(tmp_path):
    draw("demo on h200", [(2, 80.0), (4, 44.0), (8, 30.0), (2048, 0.5)], tmp_path / "plan.svg")
    picture = (tmp_path / "plan.svg").read_text()
    texts = re.findall("<!-- (.*?) -->", picture)
    for words in ("demo on h200: time", "hours", "predicted", "ideal", "10", "20", "50",
                  "demo on h200: work", "GPU-hours", "200", "500", "1,000"):  # fmt: skip
        assert words in texts
    of_thousands = texts.count("1,024") + texts.count("2,048")  # which of the two depends on matplotlib's version
    assert texts.count("GPUs") == of_thousands == 2, "under each of the two"
    lines = re.findall(r'<path d="M (\S+) (\S+) \nL (\S+) (\S+) \nL (\S+) (\S+) \nL (\S+) (\S+) \n" clip-path', picture)
    predicted, ideal, work = ([float(place) for place in line[1::2]] for line in lines)
    halved = ideal[1] - ideal[0]  # on paper, by twice the GPUs
    assert ideal[3] - ideal[0] == pytest.approx(10 * halved, rel=1e-3)
    assert [y - ideal[0] for y in predicted] == pytest.approx([halved * math.log2(80 / h) for h in (80, 44, 30, 0.5)])
    assert (work[1] - work[0]) / (work[3] - work[0]) == pytest.approx(
        math.log(176 / 160) / math.log(1024 / 160), rel=1e-3
    )
    assert work[3] < work[0], "on paper, whose zero is at the top"


def test_a_figure_without_matplotlib_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run_large("--plot", str(tmp_path / "plan.png")) == 2
    assert capsys.readouterr().err == "error: a figure needs matplotlib: pip install 'bert-pretraining[eval]'\n"


@pytest.mark.parametrize(
    ("arguments", "stage", "bucket", "told"),
    [
        ((), 2, 50_000_000, ""),
        (("--micro-batch", "1", "--launch-us", "1000"), 2, 50_000_000, "for the CPU"),
        (("--micro-batch", "1", "--launch-us", "1000"), 2, 500_000_000, "for the CPU"),  # and not for buckets
        ((), 2, 500_000_000, "takes the whole model"),
        (("--write-gbs", "0.0001"), 2, 50_000_000, "Checkpoints come faster"),
        (
            ("--gpu", "a100-40", "model.hidden_size=6144", "model.intermediate_size=24576"),
            3,
            50_000_000,
            "does not fit",
        ),
    ],
)
def test_what_holds_a_training_up_is_told(capsys, tmp_path, arguments, stage, bucket, told):
    config = json.loads(Path(CONFIG).read_text())
    config["zero_optimization"] |= {"stage": stage, "reduce_bucket_size": bucket}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    assert run_large("--ds-config", str(tmp_path / "ds.json"), "--launch-us", "0", *arguments) == 0
    shown = capsys.readouterr().out
    found = [
        words
        for words in ("for the CPU", "takes the whole model", "Checkpoints come faster", "does not fit")
        if words in shown
    ]
    assert found == ([told] if told else [])


def test_buckets_that_json_has_as_a_power_of_ten_are_told_as_a_number_of_elements(tmp_path, capsys):
    config = json.loads(Path(CONFIG).read_text())
    config["zero_optimization"]["reduce_bucket_size"] = 5e8
    (tmp_path / "ds.json").write_text(json.dumps(config))
    assert run_large("--ds-config", str(tmp_path / "ds.json")) == 0
    shown = capsys.readouterr().out
    assert "zero_optimization.reduce_bucket_size 500,000,000 takes the whole model" in shown
    assert re.search(r"; with 50,000,000 it would be \d\d\.\d hours\.$", shown, re.MULTILINE)


def test_phases_of_one_length_are_told_of_once(capsys):
    """As those are whose directories have other weights."""
    assert run_large("phases.1.sequence_length=128", "--micro-batch", "1,2", "--launch-us", "1000") == 0
    shown = capsys.readouterr().out
    assert shown.count("largest micro-batch of 128") == 1
    assert shown.count("of 128 tokens keeps") == 1
    assert shown.count("for the CPU") == 1
    assert "Phase 0 and phase 1 wait for the CPU: launching the operations of 1 or 2 sequences takes longer" in shown
    (row,) = (line for line in shown.splitlines() if "(this plan)" in line)
    assert row.count("|") == 9
    assert run_large("phases.1.sequence_length=128", "phases.1.global_batch_size=64") == 0
    assert capsys.readouterr().out.count("largest micro-batch of 128") == 1
    assert run_large("phases.1.sequence_length=128", "phases.1.max_predictions=1") == 0
    assert capsys.readouterr().out.count("largest micro-batch of 128") == 2, "which need not be one number"


def test_the_configuration_may_be_named_as_the_trainer_names_it(capsys):
    arguments = ["--recipe", "bert_large", "--gpu", "h200", "--gpus", "8"]
    assert main([*arguments, "--deepspeed_config", CONFIG]) == 0
    assert main([*arguments, "--deepspeed_config", "nope.json"]) == 2
    assert "nope.json: can't read the DeepSpeed configuration" in (error := capsys.readouterr().err)
    assert "name it by --deepspeed_config" in error


def test_the_configuration_is_that_of_the_folder_where_none_is_named(capsys, tmp_path, monkeypatch):
    arguments = ["--recipe", "demo", "--gpu", "h200", "--gpus", "2"]
    monkeypatch.chdir(ROOT)
    assert main(arguments) == 0
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ds_config.json: can't read the DeepSpeed configuration")


def test_help_has_what_is_taken_where_nothing_is_given(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("--gpu NAME one of v100-16, v100-32, a100-40", "JSON DeepSpeed's (default ds_config.json)",
                  "--micro-batch N[,N...] of all phases or of each (default: the largest that fits and divides)",
                  "that products reach (default 0.45)", "that is text (default 1.0)", "stays free (default 0.1)",
                  "for an operation (default 6)", "file system (default 2)", "numbers (default 4096)"):  # fmt: skip
        assert words in shown


@pytest.mark.parametrize(("gpus", "nodes"), [(4, "1 node of 8"), (8, "1 node of 8"), (16, "2 nodes of 8")])
def test_nodes_are_filled_one_after_the_other(capsys, gpus, nodes):
    assert run("--recipe", "bert_large", "--gpu", "h200", "--gpus", str(gpus)) == 0
    assert f"{nodes} GPUs; DGX" in capsys.readouterr().out


def test_what_there_is_one_of_is_told_of_in_the_singular(capsys):
    asked = "--micro-batch", "1", "--launch-us", "1000", "--gpus-per-node", "1", "checkpoint.every=1"
    assert run_large(*asked) == 0
    shown = capsys.readouterr().out
    for words in ("8 nodes of 1 GPU; ", "launching the operations of 1 sequence takes", "every 1 step or "):
        assert words in shown


def test_no_more_is_predicted_than_the_recipe_takes_of_a_sequence():
    limits = ["phases.0.max_predictions=20", "phases.1.max_predictions=80"]
    few, many = (
        load_recipe(ROOT / "trainer/recipes/lamb_64k.toml", [*limits, f"masking.probability={share}"])
        for share in (0.4, 0.5)
    )
    assert plan(few).phases[0].flops == plan(many).phases[0].flops


def test_json_has_every_figure(capsys):
    assert run_large("--json", "--price-per-gpu-hour", "3") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["recipe"] == "bert_large"
    assert figures["cost"] == pytest.approx(3 * figures["gpu_hours"]) == pytest.approx(3 * 8 * figures["hours"])
    seconds = sum(phase["steps"] * step(phase) for phase in figures["phases"])
    assert figures["hours"] == pytest.approx(seconds / 3600)
    assert [phase["hours"] * 3600 * phase["rate"] for phase in figures["phases"]] == pytest.approx(
        [phase["steps"] * phase["batch"] for phase in figures["phases"]]
    )
    assert sum(phase["hours"] for phase in figures["phases"]) == pytest.approx(figures["hours"])
    stages = {stage["stage"]: stage for stage in figures["stages"]}
    assert stages[2]["hours"] == pytest.approx(figures["hours"])
    assert stages[2]["states"] == figures["states"]
    assert figures["cluster"]["gpu"]["name"] == "h200"
    assert figures["scaling"][0][0] == 1


def test_options_are_taken_in_the_units_that_they_are_called_after(capsys):
    given = {"efficiency": 0.3, "fill": 0.5, "headroom": 0.2, "price-per-gpu-hour": 3, "launch-us": 12, "write-gbs": 4,
             "gpus-per-node": 4, "bus-gbs": 100, "network-gbps": 200}  # fmt: skip
    assert run_large("--json", *(f"--{name}={value}" for name, value in given.items())) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["assumptions"] == pytest.approx(
        {"efficiency": 0.3, "fill": 0.5, "headroom": 0.2, "price": 3, "launch": 12e-6, "write": 4e9}
    )
    node = figures["cluster"]["gpu"]["node"]
    assert (node["gpus"], node["bus"], node["source"]) == (4, 100e9, "as given")
    assert node["network"] == pytest.approx(0.96 * 25e9)  # of the line rate: what NCCL counts on


def test_what_is_not_given_is_taken_for_granted(capsys):
    assert run("--recipe", "lamb_64k", "--gpu", "h200", "--gpus", "64", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    price = figures["assumptions"].pop("price")
    default = Assumptions(0.45)
    assert figures["assumptions"] == pytest.approx({name: getattr(default, name) for name in figures["assumptions"]})
    assert price is None
    assert figures["scaling"][-1][0] == 4096


def test_a_micro_batch_that_is_given_is_that_of_other_numbers_of_gpus_too(capsys):
    assert run_large("--json", "--micro-batch", "1") == 0
    figures = json.loads(capsys.readouterr().out)
    assert dict(figures["scaling"])[8] == pytest.approx(figures["hours"])


def test_a_plan_is_of_deepspeed_s_configuration_as_many_gpus_have_it(capsys):
    assert run_large("--json", "--up-to", "4") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["cluster"]["sharding"]["overlap"] is True  # which one GPU has nothing to do with
    assert [gpus for gpus, _ in figures["scaling"]] == [1, 2, 4]


def test_the_source_of_the_efficiency_is_told(capsys):
    assert run_large() == 0
    assert "at 45% of 989 TFLOP/s (assumed; NVIDIA's on an A100, see --calibration)" in capsys.readouterr().out
    assert run_large("--efficiency", "0.4") == 0
    assert "at 40% of 989 TFLOP/s (as given)" in capsys.readouterr().out


def test_the_peak_that_an_efficiency_is_of_is_that_of_the_precision():
    cluster = Cluster(GPUS["h200"], 8, Sharding(2, "float32"))
    shown = "\n".join(report("lamb_64k", make_plan(LAMB, cluster, Assumptions(0.45)), "assumed", []))
    assert "at 45% of 67 TFLOP/s (assumed)" in shown


def step(phase):
    return sum(phase["step"][part] for part in ("compute", "update", "exposed"))


def test_calibration_prints_errors(capsys):
    assert main(["--calibration"]) == 0
    shown = capsys.readouterr().out
    assert "fitted" in shown
    assert "-16.8%" in shown


@pytest.mark.parametrize(
    "beside", [["--recipe", "demo"], ["train.max_steps=10"], ["--json"], ["--fill=0.5"], ["--init-from=x"]]
)
def test_the_calibration_is_of_no_recipe(beside, capsys):
    """What would have no effect is refused."""
    with pytest.raises(SystemExit) as stopped:
        main(["--calibration", *beside])
    assert stopped.value.code == 2
    assert "--calibration: it is of published runs and takes nothing beside it" in capsys.readouterr().err


def test_a_recipe_may_be_a_file(capsys):
    path = str(ROOT / "trainer/recipes/demo.toml")
    assert run("--recipe", path, "--gpu", "L40S", "--gpus", "2", "train.max_steps=10") == 0
    assert "# demo on 2 x l40s" in capsys.readouterr().out


def test_what_a_recipe_leaves_open_of_its_model_is_that_of_given_weights(tmp_path, capsys):
    BertConfig(num_hidden_layers=3, vocab_size=30522).save_pretrained(tmp_path)
    asked = ["--recipe", "continued", "--gpu", "h200", "--gpus", "1"]
    assert run(*asked, "--init-from", str(tmp_path)) == 0
    given = capsys.readouterr().out
    sizes = {"num_hidden_layers": 3, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    assert run(*asked, "model.vocab_size=30522", *(f"model.{name}={size}" for name, size in sizes.items())) == 0
    assert given == capsys.readouterr().out
    assert run(*asked) == 2
    assert "name by --init-from its folder" in capsys.readouterr().err


def test_weights_that_can_not_be_looked_at_for_a_moment_are_no_mistake(tmp_path, capsys, monkeypatch):
    BertConfig(vocab_size=30522).save_pretrained(tmp_path)
    fail_at(monkeypatch, tmp_path / "config.json")
    assert run("--recipe", "continued", "--gpu", "h200", "--gpus", "1", "--init-from", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "config.json") in error
    assert REASON in error
    assert error.count("\n") == 1


def test_what_is_sent_in_buckets_is_waited_for_where_graphs_end_before():
    cluster = Cluster(GPUS["h200"], 64, Sharding(2, overlap=True, bucket=50_000_000))
    settings = ["train.cuda_graphs=true", "data.token_multiple=1024"]
    plain, in_graphs = (
        make_plan(load_recipe(ROOT / "trainer/recipes/lamb_64k.toml", given), cluster, Assumptions(0.45)).phases[0].step
        for given in ([], settings)
    )
    assert plain.exposed < plain.network / 2
    assert in_graphs.exposed == pytest.approx(in_graphs.network)


def test_graphs_are_named_where_launches_are_waited_for_and_graphs_would_be_faster():
    def told(made, hours_in_graphs):
        return "".join(report("large", replace(made, hours_in_graphs=hours_in_graphs), "assumed", []))

    busy, waiting = plan(launch=0.0), plan(launch=1.0)
    assert "wait for the CPU" in told(waiting, None)
    assert "train.cuda_graphs=true" in told(waiting, waiting.hours / 2)
    assert "zero_optimization.stage 1, it would be 1.25 hours.\n" in told(waiting, 1.2549)
    for made, hours_in_graphs in ((waiting, None), (waiting, 0.99 * waiting.hours), (busy, busy.hours / 2)):
        assert "cuda_graphs" not in told(made, hours_in_graphs)


def rows_of(text):
    """The cells of all tables, row by row."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.split("\n") if line.startswith("|")]


def test_a_report_says_where_time_and_memory_go_from_its_first_line_to_its_last():
    """Of two hours and a half and of one hour, on sixteen GPUs for three of some money an hour each."""
    sizes = States(*(gib * 2**30 for gib in (1, 2, 3, 4, 5)))
    first, second = StepTime(0.75, 0.05, 0.5, 0.2, False), StepTime(1.5, 0.1, 0.6, 0.4, True)
    made = Plan(
        Cluster(GPUS["h100"], 16, Sharding(2)), Assumptions(0.5, fill=0.9, write=5e8, price=3.0), 100_000_000, sizes,
        usable=72 * 2**30, unreached={}, checkpoint=1.2e9, checkpoint_every=6000, read_rate=1e6,
        phases=[PhasePlan(128, 9000, 2048, 32, 4, 48, kept=2**27, kept_checkpointed=2**24, step=first, flops=1.25e12),
                PhasePlan(512, 1800, 512, 8, 4, 12, kept=2**29, kept_checkpointed=2**26, step=second, flops=5e12)],
        stages=[StagePlan(0, "not in 16 bits", sizes, [0, 0], None), StagePlan(2, "", sizes, [48, 12], 3.5),
                StagePlan(3, "", sizes, [0, 0], None)],
        hours_in_buckets=None, hours_in_graphs=None, multiple_in_graphs=64,
    )  # fmt: skip
    text = "".join(report("example", made, "measured", [(16, 3.5)]))
    found = [[re.sub("^--+", "--", cell) for cell in row] for row in rows_of(text)]
    assert found == [
        ["", "phase 0", "phase 1", "total"],
        ["--", "--:", "--:", "--:"],
        ["tokens of a sequence", "128", "512", ""],
        ["sequences of a step", "2,048", "512", ""],
        ["micro-batch x accumulation", "32 x 4", "8 x 4", ""],
        ["step, ms", "1,000.0", "2,000.0", ""],
        ["- products, or their launches", "750.0", "1,500.0", ""],
        ["- update", "50.0", "100.0", ""],
        ["- network, waited for", "200.0", "400.0", ""],
        ["network in all, ms", "500.0", "600.0", ""],
        ["sequences/s", "2,048", "256", ""],
        ["TFLOP/s of a GPU", "160", "80", ""],
        ["steps", "9,000", "1,800", "10,800"],
        ["hours", "2.50", "1.00", "3.50"],
        ["GPU-hours", "40.0", "16.0", "56.0"],
        ["cost", "120", "48", "168"],
        ["ZeRO", "weights", "gradients", "optimizer", "buffers", "at the update",
         "largest micro-batch of 128", "largest micro-batch of 512", "hours"],
        ["--", *["--:"] * 8],
        ["0", *["-"] * 7, "not in 16 bits"],
        ["2 (this plan)", "1.00", "2.00", "3.00", "4.00", "5.00", "48", "12", "3.50"],
        ["3", "1.00", "2.00", "3.00", "4.00", "5.00", "0", "0", "does not fit"],
        ["GPUs", "hours", "GPU-hours", "times as fast as 16", "of ideal"],
        ["--:"] * 5,
        ["16", "3.50", "56", "1.0", "100%"],
    ]  # fmt: skip
    assert [line for line in text.split("\n") if line and not line.startswith("|")] == [
        "# example on 16 x h100, on paper",
        "100.0 M parameters, ZeRO 2, bf16 beside float32 weights. 2 nodes of 8 GPUs; DGX H100 and H200: NVSwitch, "
        "8 x 400 Gb/s InfiniBand. Products at 50% of 989 TFLOP/s (measured). Sequences 90% full.",
        "## Time",
        "Give the trainer `phases.0.micro_batch_size=32 phases.1.micro_batch_size=8`.",
        "Phase 1 waits for the CPU: launching the operations of 8 sequences takes longer than their products. "
        "More GPUs change little; a larger batch would.",
        "## Memory of a GPU, GiB",
        "72.0 GiB of 80 are counted on. A sequence of 128 tokens keeps 0.125 GiB of activations (0.016 with activation "
        "checkpointing), of 512 tokens keeps 0.500 GiB of activations (0.062 with activation checkpointing).",
        "## Storage",
        "A checkpoint has 1.20 GB (12 bytes a parameter, over all ranks), every 6,000 steps or 100.0 minutes; at "
        "0.5 GB/s it is written in 2.4 s, while training continues. "
        "Training data is read at 1.0 MB/s by all GPUs together.",
        "## Other numbers of GPUs",
    ]


def test_the_tables_of_a_report_show_its_own_plan_and_other_numbers_of_gpus():
    made = plan()
    text = "".join(report("large", made, "assumed", [(2, 100.0), (16, 20.0), (32, 8.0)]))
    assert [row[0] for row in rows_of(text) if row[0].endswith("(this plan)")] == ["2 (this plan)"]
    assert rows_of(text)[-5][3:] == ["times as fast as 2", "of ideal"]
    others = [
        ["2", "100.0", "200", "1.0", "100%"],
        ["16", "20.0", "320", "5.0", "62%"],
        ["32", "8.00", "256", "12.5", "78%"],
    ]
    assert rows_of(text)[-3:] == others
    assert f"A checkpoint has {made.parameters * 12 / 1e9:.2f} GB (12 bytes a parameter, over all ranks)" in text


def test_published_runs_are_shown_with_their_rates_and_errors():
    text = "".join(calibration())
    rows = [row for row in rows_of(text) if row[0].replace(",", "").isdigit()]
    assert re.findall(r"^(\w+), .*: efficiency (\d+\.\d)%, fitted on the run of (\d+)$", text, re.MULTILINE) == [
        ("DeepSpeed", "49.2", "16"), ("NVIDIA", "44.8", "1"), ("NVIDIA", "68.7", "1")
    ]  # fmt: skip
    assert rows_of(text)[0] == [
        "GPUs", "published, s", "predicted, s", "error", "published, seq/s/GPU", "predicted"
    ]  # fmt: skip
    assert [row[0] for row in rows if row[3] == "fitted"] == ["16", "1", "1"]
    assert [row[3] for row in rows if row[3][0] not in "+-"] == ["fitted"] * 3
    assert [row[4] for row in rows if row[0] in ("1", "256")] == ["191.2", "580.0", "540.2", "210.0", "194.0"]
    for gpus, published, predicted, error, rate, predicted_rate in rows:
        ratio = float(predicted.replace(",", "")) / float(published.replace(",", ""))
        assert float(rate) / float(predicted_rate) == pytest.approx(ratio, rel=0.02), gpus
        assert error == "fitted" or float(error[:-1]) / 100 == pytest.approx(ratio - 1, abs=0.02)


def test_hours_have_as_many_digits_as_are_worth_it():
    assert [_hours(hours) for hours in (0.004, 9.994, 10, 1234.56)] == ["0.00", "9.99", "10.0", "1,234.6"]


def test_data_sheets_are_taken_in_bytes_and_seconds():
    """An H200's: 989 TFLOP/s, 67 in float32, 4.8 TB/s; 18 links of NVLink 4, and eight adapters of 400 Gb/s a node."""
    gpu = GPUS["h200"]
    assert (gpu.peak, gpu.float32, gpu.memory, gpu.bandwidth) == (989e12, 67e12, 141 * 1024**3, 4.8e12)
    assert gpu.node.bus == pytest.approx(370.8e9)
    assert gpu.node.network == pytest.approx(384e9)  # of 400
    assert (GPUS["v100-16"].peak, GPUS["v100-16"].float32) == (125e12, 15.7e12)
    assert [name for name, gpu in GPUS.items() if not gpu.bfloat16] == ["v100-16", "v100-32"]


def test_a_gpu_is_found_in_any_case_and_its_node_keeps_what_is_not_told():
    assert find_gpu("H200") is GPUS["h200"]
    for name in ("H20", "HH200"):
        with pytest.raises(ConfigError, match=rf"^no GPU called '{name}' here; h200.*\?$"):
            find_gpu(name)
    with pytest.raises(ConfigError, match=r"; a100-40 or a100-80\?$"):
        find_gpu("A100")
    gpu = GPUS["h100"]
    assert change_node(gpu, None, None, None) is gpu
    given = replace(gpu.node, source="as given")
    assert change_node(gpu, 4, None, None).node == replace(given, gpus=4)
    assert change_node(gpu, None, 100.0, None).node == replace(given, bus=100e9)
    assert change_node(gpu, None, None, 400.0).node == replace(given, network=400e9 / 8 * 0.96)


def test_as_many_gpus_as_a_batch_has_sequences_have_one_each(capsys):
    assert run_large("phases.0.global_batch_size=8", "phases.1.global_batch_size=8", "--json") == 0
    phases = json.loads(capsys.readouterr().out)["phases"]
    assert [(phase["micro_batch"], phase["accumulation"]) for phase in phases] == [(1, 1)] * 2


def test_what_a_plan_takes_for_granted_where_nothing_is_told(capsys):
    assert run("--recipe", "lamb_64k", "--gpu", "h200", "--gpus", "64", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["assumptions"] == pytest.approx(asdict(Assumptions(0.45)))
    assert [gpus for gpus, _ in figures["scaling"]] == [2**power for power in range(13)]


def test_a_recipe_that_can_not_be_looked_for_now_is_not_called_unknown(tmp_path, capsys, monkeypatch):
    recipe = tmp_path / "mine.toml"
    fail_on(monkeypatch, os, "stat", recipe, errno.ESTALE)
    assert run("--recipe", str(recipe), "--gpu", "h200", "--gpus", "1") == 1
    told = f"error: {recipe}: can't be read now (Stale file handle); give the same command again\n"
    assert capsys.readouterr().err == told


def test_a_recipe_whose_model_is_not_that_of_given_weights_is_refused_as_by_the_trainer(tmp_path, capsys):
    BertConfig(num_hidden_layers=3, vocab_size=30522).save_pretrained(tmp_path)
    asked = ["--recipe", "bert_base", "--gpu", "h200", "--gpus", "1", "--init-from", str(tmp_path)]
    assert run(*asked) == 2
    assert "has num_hidden_layers 3, the recipe 12; set model.num_hidden_layers=3" in capsys.readouterr().err
    assert run(*asked, "model.num_hidden_layers=3") == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "6"], "take 4 or 8 GPUs"),
        (["--gpus", "512"], "take 256 GPUs"),
        (
            ["--gpus", "7", "phases.0.global_batch_size=384"],
            "phase 0's batch of 384 sequences equally: take 4 or 8 GPUs",
        ),
        (["--gpu", "h20"], "no GPU called 'h20' here; h200?"),
        (["--gpu", "a100"], "a100-40 or a100-80?"),
        (["--gpu", "tpu"], "known: v100-16"),
        (["--gpu", "v100-32"], "no bfloat16"),
        (["--recipe", "bert_larg"], "bert_large or"),
        (["--recipe", "nothing"], "known: "),
        (["--ds-config", "nope.json"], "nope.json: can't read"),
        (["--micro-batch", "7"], "must divide the 32 sequences"),
        (["--micro-batch", "32", "--headroom", "0.9"], "--micro-batch 32: at most "),
        (["--micro-batch", "32,1,1"], "give one number, or one for each of 2 phases\n"),
        (["--recipe", "demo", "--micro-batch", "32,1"], "--micro-batch: give one number\n"),
        (["--gpus", "256", "--micro-batch", "2"], "must divide the 1 sequence of a step that each GPU has"),
        (
            ["--micro-batch", "8", "model.max_position_embeddings=100000", "phases.1.sequence_length=100000"],
            "--micro-batch 8: at most 1 sequence of 100000 tokens fits\n",
        ),
        (
            ["--gpus", "2", "phases.0.global_batch_size=1"],
            "batch of 1 sequence equally: take 1 GPU, or",
        ),
        (["--efficiency", "1.5"], "at most 1"),
        (["--efficiency", "0"], "give more than 0 and at most 1"),
        (["--fill", "0"], "more than 0"),
        (["--fill", "1.5"], "at most 1"),
        (["--headroom", "1"], "less than 1"),
        (["--network-gbps", "0"], "give a positive number"),
        (["--network-gbps", "nan"], "give a positive number"),
        (["--bus-gbs", "inf"], "give a positive number"),
        (["--launch-us", "nan"], "finite"),
        (["--launch-us", "inf"], "finite"),
        (["--write-gbs", "inf"], "finite"),
        (["--price-per-gpu-hour", "nan"], "finite"),
        (["--price-per-gpu-hour", "inf"], "finite"),
        (["--write-gbs", "0"], "must be positive"),
        (["--launch-us=-1"], "times and prices 0 or more"),
        (["--price-per-gpu-hour=-1"], "times and prices 0 or more"),
        (["--plot", "/nowhere/plan.png"], "can't write the figure"),
        (["--plot", "plan"], "--plot plan: not the name of a picture"),
        (["--plot", "plan.xyz"], "plan.xyz: can't write the figure (Format 'xyz' is not supported"),
        (["--plot", f"{LONG}.png"], "can't write the figure"),
        (["--recipe", "continued", "--init-from", "/nowhere/bert"], "--init-from: /nowhere/bert: no such folder"),
        (["--recipe", LONG], f"no recipe '{LONG}'; known: {', '.join(sorted(path.stem for path in RECIPES))}\n"),
        (["--plot", "plan.png", "--up-to", "1", "--gpu", "a100-40", "model.hidden_size=4096"], "there is no curve"),
        (["model.hidden_siz=3"], "unknown setting model.hidden_siz"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, words, capsys):
    assert run_large(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("gpus", "settings", "words"),
    [
        ("8", ["model.hidden_size=6144", "model.intermediate_size=24576"], ["ZeRO 3", "would do"]),
        ("1", ["model.hidden_size=4096", "model.intermediate_size=16384"], ["; h200 would do"]),
        ("1", ["model.hidden_size=16384", "model.intermediate_size=65536"], ["no GPU known here would do"]),
        (
            "1",
            ["model.hidden_size=2048", "model.intermediate_size=8192", "model.max_position_embeddings=16384",
             "phases.1.sequence_length=16384"],
            ["model.activation_checkpointing=true", "would do"],
        ),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_says_what_would_do(gpus, settings, words, capsys):
    assert run_large("--gpu", "a100-40", "--gpus", gpus, *settings) == 2
    error = capsys.readouterr().err
    assert "not even one sequence" in error
    assert all(word in error for word in words), error
    assert (needed := re.search(r": weights, gradients and optimizer take (\d+\.\d) GiB of 36\.0; ", error)), error
    assert 10 < float(needed[1]) < 10_000


def test_a_gpu_that_one_sequence_fills_does(capsys):
    long = ["model.max_position_embeddings=100000", "phases.1.sequence_length=100000"]
    assert run_large("--gpu", "a100-40", *long) == 2
    assert capsys.readouterr().err.endswith("GiB of 36.0; model.activation_checkpointing=true, h200 would do\n")
    assert run_large("--json", *long) == 0
    assert json.loads(capsys.readouterr().out)["phases"][1]["largest"] == 1


def test_the_largest_micro_batch_may_be_asked_for(capsys):
    assert run_large("--gpu", "a100-40", "--json") == 0
    largest = json.loads(capsys.readouterr().out)["phases"][0]["largest"]
    assert run_large("--gpu", "a100-40", "--json", f"phases.0.global_batch_size={8 * largest}") == 0
    assert json.loads(capsys.readouterr().out)["phases"][0]["micro_batch"] == largest
    for asked, code in ((largest, 0), (largest + 1, 2)):
        sizes = [f"phases.{i}.global_batch_size={8 * asked}" for i in (0, 1)]
        assert run_large("--gpu", "a100-40", "--micro-batch", f"{asked},1", *sizes) == code
    assert f"at most {largest} sequences of 128 tokens fit\n" in capsys.readouterr().err


@pytest.mark.parametrize("offload", [{"device": "cpu"}, "cpu"])
@pytest.mark.parametrize("section", ["offload_optimizer", "offload_param"])
def test_offloading_is_refused_and_not_ignored(tmp_path, capsys, section, offload):
    config = json.loads(Path(CONFIG).read_text())
    config["zero_optimization"] |= {"stage": 3, section: offload}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    assert run_large("--ds-config", str(tmp_path / "ds.json")) == 2
    assert f"zero_optimization.{section}: " in capsys.readouterr().err


def test_what_a_configuration_says_is_planned_with():
    assert read_sharding({}) == Sharding(0, "float32", accumulation=4, communication=4)
    zero = {
        "stage": 2, "overlap_comm": True, "use_multi_rank_bucket_allreduce": False, "reduce_bucket_size": 2**63 - 1,
        "stage3_max_live_parameters": 7, "stage3_prefetch_bucket_size": 8, "stage3_max_reuse_distance": 9,
    }  # fmt: skip
    types = {"communication_data_type": "bf16", "data_types": {"grad_accum_dtype": "bf16"}}
    found = read_sharding({"fp16": {"enabled": True}, "zero_optimization": zero, **types})
    assert found == Sharding(2, "fp16", 2, 2, 2**63 - 1, overlap=True, scatter=True, live=7, prefetch=8, reuse=9)
    narrow = read_sharding({"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}})
    assert narrow == Sharding(1, "bf16", accumulation=2, communication=2)
    assert read_sharding({"bf16": {"enabled": False}, "fp16": {"enabled": True}}).precision == "fp16"
    assert read_sharding({"communication_data_type": "fp16"}).communication == 2
    assert read_sharding({"data_types": {"grad_accum_dtype": "bf16"}}).accumulation == 2


@pytest.mark.parametrize(
    ("stage", "changes", "told"),
    [
        (2, {"offload_optimizer": None}, ""),
        (2, {"reduce_bucket_size": 5e7}, ""),
        (2, {"reduce_bucket_size": 1}, ""),  # of which there are millions to count
        (2, {"reduce_bucket_size": 0}, "zero_optimization.reduce_bucket_size is 0; a plan wants a whole number, 1"),
        (2, {"reduce_bucket_size": "auto"}, "zero_optimization.reduce_bucket_size is 'auto'; a plan wants"),
        (
            2,
            {"reduce_bucket_size": 10**400},
            f"is 1{'0' * 39}; a plan wants a whole number, 1 or more, below 2**63",
        ),
        (2, {"reduce_bucket_size": 1.5}, "zero_optimization.reduce_bucket_size is 1.5; a plan wants a whole number"),
        (3, {"stage3_max_live_parameters": 0}, ""),
        (3, {"stage3_prefetch_bucket_size": 0}, "zero_optimization.stage3_prefetch_bucket_size is 0; a plan wants"),
    ],
)
def test_sizes_that_a_plan_cannot_count_with_are_told(tmp_path, capsys, stage, changes, told):
    config = json.loads(Path(CONFIG).read_text())
    config["zero_optimization"] |= {"stage": stage, **changes}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    assert run_large("--ds-config", str(tmp_path / "ds.json")) == (2 if told else 0)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("communication_data_type", {"communication_data_type": "fp8"}),
        ("data_types.grad_accum_dtype", {"data_types": {"grad_accum_dtype": "fp8"}}),
    ],
)
def test_types_that_a_plan_cannot_count_with_are_told(tmp_path, capsys, name, change):
    (tmp_path / "ds.json").write_text(json.dumps(json.loads(Path(CONFIG).read_text()) | change))
    assert run_large("--ds-config", str(tmp_path / "ds.json")) == 2
    assert f'{name} is "fp8"; choose fp32, fp16 or bf16' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--micro-batch", "16,x", "'x' is not a whole number of 1 or more"),
        ("--micro-batch", "0", "'0' is not a whole number of 1 or more"),
        ("--micro-batch", "1,2147483648", "2147483648 is more than 2147483647, the most that is taken here"),
        ("--gpus", "-4", "'-4' is not a whole number of 1 or more"),
        ("--gpus", "2147483648", "2147483648 is more than 2147483647, the most that is taken here"),
        ("--up-to", "0", "'0' is not a whole number of 1 or more"),
        ("--gpus-per-node", "0", "'0' is not a whole number of 1 or more"),
        ("--gpus-per-node", "9" * 500, "a number of 500 digits is more than 2147483647, the most that is taken here"),
    ],
)
def test_what_is_no_number_of_something_is_told(capsys, option, value, reason):
    with pytest.raises(SystemExit) as stopped:
        run_large(option, value)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"python -m cluster.plan: error: argument {option}: {reason}; see --help\n"


def test_what_is_missing_is_named(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--gpu", "h200"])
    assert stopped.value.code == 2
    assert "--recipe and --gpus" in capsys.readouterr().err


@pytest.mark.parametrize("half", ["bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_gpu_is_set_as_the_trainer_sets_it(stage, half):
    config = {
        "zero_optimization": {"stage": stage, "overlap_comm": True}, half: {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32",
    }  # fmt: skip
    assert read_sharding(config).of_ranks(1) == read_sharding(without_communication(config))
    assert read_sharding(config).of_ranks(2) == read_sharding(config)


def test_the_hours_of_other_numbers_of_gpus_are_those_of_their_own_plans(capsys):
    found = {}
    for gpus in ("1", "8", "64"):
        assert run("--recipe", "bert_large", "--gpu", "l40s", "--gpus", gpus, "--json") == 0
        figures = json.loads(capsys.readouterr().out)
        found[gpus] = dict(figures["scaling"])
        assert found[gpus][int(gpus)] == pytest.approx(figures["hours"])
    assert found["1"] == found["8"] == found["64"]


def test_gpus_are_found_whatever_the_case():
    assert find_gpu("H200").name == "h200"
