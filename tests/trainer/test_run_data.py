"""What a run makes of its data: directories mixed, samples skipped, a node's copy, and faults."""

import json
import shutil
from functools import partial
from types import MappingProxyType

import numpy as np
import pytest

from eval import probe
from eval.pretrained import build
from preprocessing.schema import ShardDirectory, checksum
from tests.conftest import ROOT
from tests.ranks import run_ranks
from tests.trainer.conftest import FLOAT32, losses
from tests.trainer.loader_tasks import run_pretrain_and_kill_a_loader
from tests.trainer.rank_tasks import run_pretrain
from trainer import pretrain
from trainer.corpus import open_corpus
from trainer.data import evaluation_batches, validation_stream
from trainer.files import read_lines
from trainer.hugging_face import load_export


def train(recipe, deepspeed_config, shards, output, settings=(), world=1, task=run_pretrain):
    """Run the trainer on some shard directories; returns the exit codes of its ranks and what they printed."""
    log = output.with_suffix(".log")
    log.unlink(missing_ok=True)
    flags = ["--config", recipe, "--deepspeed_config", deepspeed_config, "--output", output, "--shards", *shards]
    return run_ranks(world, task, [*map(str, flags), *settings], log=log), log.read_text()


@pytest.fixture
def call(recipe, deepspeed_config, tmp_path):
    def run(*shards, output="run", config=MappingProxyType({}), **changes):
        return train(recipe, deepspeed_config(**config), shards, tmp_path / output, **changes)

    return run


@pytest.fixture(scope="module")
def whole(recipe, shards, tmp_path_factory):
    """The losses of a run on one directory that nothing happens to."""
    output = tmp_path_factory.mktemp("whole") / "run"
    codes, log = train(recipe, ROOT / "ds_config.json", [shards], output)
    assert codes == [0], log
    return losses(output)


def assert_figures_of_directories(line, export, *directories):
    """A validation's figures of each directory are those of its samples by themselves, and all together the whole's."""
    model = build(load_export(export))
    stream = validation_stream([*map(ShardDirectory, directories)], 32)
    words, pairs = {}, {}
    for directory, indices in stream.by_directory(np.arange(stream.size)):
        outcomes, name = probe.score(model, evaluation_batches(stream, indices, 4)), directory.path.name
        found, judged = probe.masked_words(outcomes), probe.next_sentence(outcomes)
        assert line[f"mlm_loss/{name}"] == pytest.approx(found.loss.value, rel=2e-3)
        assert line[f"perplexity/{name}"] == pytest.approx(np.exp(line[f"mlm_loss/{name}"]))
        assert line[f"nsp_accuracy/{name}"] == pytest.approx(judged.accuracy.value)
        words[name], pairs[name] = len(outcomes.mlm_labels), len(outcomes.nsp_labels)
    for figure, counts in (("mlm_loss", words), ("mlm_accuracy", words), ("nsp_accuracy", pairs)):
        parts = sum(line[f"{figure}/{name}"] * count for name, count in counts.items())
        assert line[figure] == pytest.approx(parts / sum(counts.values()))


def test_directories_mixed_by_weight_whatever_the_ranks_and_a_resume_with_other_weights(call, shards, books, tmp_path):
    call = partial(call, config=FLOAT32)
    settings = ["data.weights=[0.25, 0.75]", "train.max_steps=4"]
    codes, log = call(shards, books, settings=settings)
    assert codes == [0], log
    assert "step 4, held out, perplexity by directory: shards " in log
    assert call(shards, books, settings=settings, world=2, output="two")[0] == [0, 0]
    validations = [list(read_lines(tmp_path / name / "validation.jsonl")) for name in ("run", "two")]
    assert_figures_of_directories(*validations[0], tmp_path / "run" / "exports" / "step-000004", shards, books)
    one, two = ({name: line[name] for name in line if name != "time"} for (line,) in validations)
    assert two == pytest.approx(one, rel=1e-5)
    run = tmp_path / "run"
    assert losses(tmp_path / "two") == pytest.approx(losses(run), rel=1e-5)
    corpus = open_corpus([str(shards), str(books)])
    assert (run / "manifest.json").read_text() == corpus.manifest
    lineage = json.loads((run / "exports" / "step-000004" / "lineage.json").read_text())
    assert lineage["manifest_blake2b"] == corpus.manifest_blake2b
    assert lineage["shards_blake2b"] == [checksum(path / "manifest.json") for path in (shards, books)]
    codes, log = call(shards, books, settings=["data.weights=[0.5, 0.5]"])
    assert codes == [2]
    assert "data.weights: (0.25, 0.75) -> (0.5, 0.5)" in log
    codes, log = call(shards, books)
    assert codes == [2]
    assert "started with other settings (data.weights: (0.25, 0.75) -> ())" in log


def test_a_phase_with_weights_of_its_own_whatever_the_ranks_and_the_interruptions(
    recipe, deepspeed_config, shards, books, tmp_path
):
    """Four steps of 8 samples from the first directory alone, then four with three quarters from the second."""
    phase = "[[phases]]\nsequence_length = 32\nsteps = 4\nglobal_batch_size = 8\nmicro_batch_size = 2\n"
    two_phases = tmp_path / "two_phases.toml"
    before, _, after = recipe.read_text().partition("[[phases]]")
    mixtures = [f"{phase}max_predictions = 4\nweights = {weights}\n" for weights in ("[1, 0]", "[1, 3]")]
    two_phases.write_text(before + "".join(mixtures) + after[after.index("[checkpoint]") :])

    def call(*directories, settings=(), output="run", world=1):
        return train(two_phases, deepspeed_config(**FLOAT32), directories, tmp_path / output, settings, world)

    codes, log = call(shards, books)
    assert codes == [0], log
    assert f"data: 32 samples from {shards} (0.59 epochs); 0 samples from {books} (0.00 epochs)" in log
    assert f"data: 8 samples from {shards} (0.15 epochs); 24 samples from {books} (0.53 epochs)" in log
    for step in (3, 6):
        codes, log = call(shards, books, settings=[f"train.max_steps={step}"], output="parts", world=2)
        assert codes == [0, 0], log
    assert call(shards, books, output="parts")[0] == [0]
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "run"), rel=1e-5)
    codes, log = call(shards, books, settings=["phases.1.weights=[1, 2]"])
    assert codes == [2]
    assert "phases.1.weights: (1.0, 3.0) -> (1.0, 2.0)" in log
    codes, log = call(shards, output="one")
    assert codes == [2]
    assert "weights [1.0, 0.0] for 1 shard directories; give data.weights, or phases.N.weights, one number for" in log


def test_a_skipped_range_changes_its_steps_and_may_be_set_at_a_resume(call, shards, whole, tmp_path):
    """The first two steps are whole; all of the third is skipped, which trains nothing but does end."""
    assert call(shards, settings=["train.max_steps=2"])[0] == [0]
    codes, log = call(shards, settings=["data.skip=[[16, 24]]", "log.every=1"])
    assert codes == [0], log
    assert "step 3/8: nothing to predict, lr" in log
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    of_predictions = {"loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"}
    assert lines[0].keys() - lines[2].keys() == of_predictions
    assert lines[2]["grad_norm"] == 0
    skipping = [line["loss"] for line in lines if line["step"] != 3]
    assert skipping[:2] == whole[:2]
    assert all(loss > 0 for loss in skipping[2:])
    assert skipping[2] != whole[3]


def test_a_copy_gives_the_run_that_its_source_gives(call, shards, whole, tmp_path):
    cache = tmp_path / "cache"
    codes, log = call(f"file://{shards}", settings=[f"data.cache_dir={cache}", "train.max_steps=3"])
    assert codes == [0]
    assert "copying 4 shard(s), 0.00 GB, from file://" in log
    shutil.rmtree(cache)
    assert call(shards)[0] == [0]  # where the data lies is no part of what a run is
    assert losses(tmp_path / "run") == whole


def test_a_damaged_shard_is_found_before_anything_is_written(call, shards, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(shards, damaged)
    shard = damaged / "shard-00001-of-00003.arrow"
    content = shard.read_bytes()
    shard.write_bytes(content[:-9] + b"x" + content[-8:])
    codes, log = call(damaged, world=2)
    assert codes == [2, 2]
    assert log.count(f"error: {shard}: checksum differs from the manifest; copy it again") == 1
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"trainer.lock", "outcome"}
    assert call(shards, settings=["train.max_steps=1"])[0] == [0], "so it is as good as new"


def test_settings_after_the_shards_are_no_shards(capsys):
    """Above they follow the last directory; where there is none, they are not taken for one."""
    assert pretrain.main(["--config", "x.toml", "--output", "run", "--shards", "train.max_steps=1"]) == 2
    assert "--shards names no directory" in capsys.readouterr().err


def test_a_killed_loader_ends_the_run_with_a_line_and_the_same_command_goes_on(call, shards, whole, tmp_path):
    settings = ["data.workers=1", "checkpoint.every=2"]
    codes, log = call(shards, settings=settings, task=run_pretrain_and_kill_a_loader)
    assert codes == [1]
    assert "error: rank 0: loader process " in log
    assert " was killed by SIGKILL, usually for lack of memory; " in log
    assert "Traceback" not in log
    assert call(shards, settings=settings)[0] == [0]
    assert losses(tmp_path / "run") == whole
