"""What a validation reads, and which figures it gives; tests/trainer/test_run_data.py has those of a run."""

import math
from types import SimpleNamespace

import pytest
import torch

from tests.ranks import run_ranks
from tests.rewriting import read_column, rewrite_shard
from tests.trainer.conftest import losses
from tests.trainer.rank_tasks import run_pretrain, run_pretrain_where_held_out_storage_fails_for_rank_1
from tests.trainer.shard_factory import MASK, write_shards
from trainer.config import load_recipe
from trainer.corpus import open_corpus
from trainer.files import append_lines, read_lines
from trainer.loading import DamagedShardError
from trainer.model import EMPTY_SLOT
from trainer.run_directory import RunDirectory
from trainer.validation import Validation, describe, warn_of_a_rise
from trainer.world import World

LEFT_TO_RIGHT = ["model.is_decoder=true", "train.next_sentence=false"]
MEANS = {"loss": 3.0, "mlm_loss": 2.0, "nsp_loss": 1.0, "mlm_accuracy": 0.5, "nsp_accuracy": 0.75}


class Alone(World):
    """A world of one rank, which nobody else needs to join."""

    def gather(self, value):
        return [value]


ALONE = Alone(0, 1, torch.device("cpu"))


class Evaluating:
    """An engine that keeps what it is to evaluate; the parts have losses of 0, 1, 2, ..."""

    def evaluate(self, parts, _):
        self.parts = [list(batches) for batches in parts]
        return [MEANS, *(MEANS | {"mlm_loss": float(part)} for part in range(len(parts)))]

    def samples(self):
        """How many samples of each part are judged."""
        return [sum(int((batch.nsp_labels != EMPTY_SLOT).sum()) for batch in part) for part in self.parts]


def validate_on(recipe, engine, *shards, settings=()):
    """The figures of a validation."""
    settings, corpus = load_recipe(recipe, settings), open_corpus([*map(str, shards)])
    return Validation(corpus, settings, settings.phases[0], ALONE).figures(engine, lambda: False)


@pytest.mark.parametrize("left_to_right", [False, True])
def test_of_as_many_samples_as_asked_for(recipe, shards, left_to_right):
    """At most all of them; a model that reads from left to right has nothing masked there either."""
    for asked, samples in ((5, 5), (1000, 12)):
        engine, settings = Evaluating(), [f"log.validation_samples={asked}", *left_to_right * LEFT_TO_RIGHT]
        figures = validate_on(recipe, engine, shards, settings=settings)
        assert engine.samples() == [samples]
        assert any(MASK in batch.tokens.input_ids for batch in engine.parts[0]) == (not left_to_right)
        assert figures == MEANS | {"perplexity": pytest.approx(math.exp(2.0))}


def test_directories_have_figures_of_their_own(recipe, shards, books, tmp_path):
    """By their shortest names; one without held-out documents has none."""
    nothing_held_out = write_shards(tmp_path / "shards", validation=(), seed=9)
    engine = Evaluating()
    figures = validate_on(recipe, engine, shards, nothing_held_out, books)
    assert engine.samples() == [12, 6]
    of_wiki = f"/{shards.parent.name}/shards"
    expected = {of_wiki: 0.0, "/books": 1.0}
    assert {name[len("mlm_loss") :]: figures[name] for name in figures if name.startswith("mlm_loss/")} == expected
    assert figures["perplexity/books"] == pytest.approx(math.e)
    assert (figures["nsp_accuracy/books"], figures["mlm_accuracy/books"]) == (0.75, 0.5)
    assert list(describe(figures, next_sentence=True)) == [
        "held out: loss 3.0000, perplexity 7.4, MLM accuracy 0.5000, NSP accuracy 0.7500",
        f"held out, perplexity by directory: {of_wiki[1:]} 1.0, books 2.7",
    ]
    few = validate_on(recipe, engine, shards, books, settings=["log.validation_samples=1"])
    assert sum(engine.samples()) == 1
    assert few.keys() == MEANS.keys() | {"perplexity"}, "all of it is of one directory"
    assert list(describe(few, next_sentence=False)) == ["held out: loss 3.0000, perplexity 7.4, MLM accuracy 0.5000"]


def test_each_rank_evaluates_a_share_of_the_samples(recipe, shards):
    settings, corpus, engines = load_recipe(recipe), open_corpus([str(shards)]), [Evaluating(), Evaluating()]
    for rank, engine in enumerate(engines):
        world = World(rank, 2, torch.device("cpu"))
        Validation(corpus, settings, settings.phases[0], world).figures(engine, lambda: False)
    assert [engine.samples() for engine in engines] == [[6], [6]]
    first, second = ({*torch.cat([batch.indices for batch in engine.parts[0]]).tolist()} for engine in engines)
    assert not first & second


def test_nothing_where_a_rank_is_to_stop(recipe, shards):
    assert validate_on(recipe, SimpleNamespace(evaluate=lambda parts, asked: None), shards) is None


def test_a_directory_with_nothing_to_predict_has_no_figures_of_words(recipe, shards, books):
    """As where all that is held out are special tokens."""
    none = {name: value for name, value in MEANS.items() if name.startswith("nsp")}
    figures = validate_on(recipe, SimpleNamespace(evaluate=lambda parts, asked: [MEANS, MEANS, none]), shards, books)
    assert {"perplexity/shards", "nsp_accuracy/books"} <= figures.keys()
    assert not {"perplexity/books", "mlm_loss/books", "mlm_accuracy/books"} & figures.keys()
    with pytest.raises(
        DamagedShardError,
        match=r"no token that is held out can be predicted; .*log\.validate_every=0$",
    ):
        validate_on(recipe, SimpleNamespace(evaluate=lambda parts, asked: [none, none]), shards)


def test_held_out_data_that_one_rank_can_not_read_ends_the_run_with_what_is_trained(recipe, deepspeed_config, tmp_path):
    """A held-out pair reaches beyond its document; without validation the run goes on to what it would have been."""
    path, output = write_shards(tmp_path / "shards"), tmp_path / "run"
    shard = path / "validation-shard-00000-of-00001.arrow"
    pairs = read_column(shard, "pairs_32")
    pairs[2][0] |= {"a_begin": 0, "a_end": 1 << 20}
    rewrite_shard(shard, pairs_32=pairs)
    files = {"--config": recipe, "--deepspeed_config": deepspeed_config(), "--shards": path}
    flags = [word for flag, file in files.items() for word in (flag, str(file))]

    def train(*settings, output=output):
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        return run_ranks(2, run_pretrain, [*flags, "--output", str(output), *settings], log=log), log.read_text()

    codes, log = train("log.validate_every=3")
    assert codes == [1, 1], log
    assert "Traceback" not in log
    run = RunDirectory(output)
    ending, reason = run.outcome
    assert ending == "failed"
    assert reason.startswith(f"rank 0: {shard}: ")
    assert "beyond its document" in reason
    assert reason.endswith(", or go on without validation: log.validate_every=0 data.verify=false")
    assert "data.skip" not in reason, "whose numbers are of the samples of training"
    assert log.count("error:") == 1
    assert run.step == 3
    assert [line["step"] for line in read_lines(run.metrics)] == [1, 2, 3]
    assert train("log.validate_every=3")[0] == [1, 1], "each start owes that validation"
    assert run.step == 3
    assert train("log.validate_every=0")[0] == [0, 0]
    assert train("log.validate_every=0", output=tmp_path / "whole")[0] == [0, 0]
    assert losses(output) == losses(tmp_path / "whole")


def test_held_out_data_that_one_rank_can_not_read_now_ends_the_run_as_a_crash_and_the_next_start_goes_on(
    recipe, deepspeed_config, shards, tmp_path
):
    files = {"--config": recipe, "--deepspeed_config": deepspeed_config(), "--shards": shards}
    flags = [word for flag, file in files.items() for word in (flag, str(file))]

    def train(task, output):
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        arguments = [*flags, "--output", str(output), "log.validate_every=3"]
        return run_ranks(2, task, arguments, log=log), log.read_text()

    run = RunDirectory(tmp_path / "run")
    codes, log = train(run_pretrain_where_held_out_storage_fails_for_rank_1, run.path)
    assert codes == [1, 1], log
    assert (log.count("error:"), "Traceback" in log) == (1, False), log
    assert "error: rank 1: " in log
    assert "validation-shard-00000-of-00001.arrow: can't be read now (Stale file handle); give the same" in log
    assert (run.outcome, run.step) == (None, 3)
    assert train(run_pretrain, run.path)[0] == [0, 0]
    assert train(run_pretrain, tmp_path / "whole")[0] == [0, 0]
    assert losses(run.path) == losses(tmp_path / "whole")


def test_held_out_shards_that_are_gone_are_read_on(recipe, shards, tmp_path):
    """As after the first validation of a phase, when somebody has moved them."""
    path = write_shards(tmp_path / "shards")
    settings, corpus = load_recipe(recipe), open_corpus([str(path)])
    validation = Validation(corpus, settings, settings.phases[0], ALONE)
    first, second = Evaluating(), Evaluating()
    validation.figures(first, lambda: False)
    path.rename(tmp_path / "moved")
    assert validation.figures(second, lambda: False)
    assert second.samples() == first.samples() == [12]


@pytest.mark.parametrize(("last", "is_told"), [(2.009, False), (2.011, True)])
def test_a_rise_of_a_hundredth_is_told(recipe, tmp_path, caplog, last, is_told):
    run = RunDirectory(tmp_path)
    for step, loss in ((4, 2.0), (8, last)):
        append_lines(run.validation_metrics, {"step": step, "mlm_loss": loss})
    warn_of_a_rise(run, load_recipe(recipe))
    assert len(caplog.messages) == is_told
