"""Tasks that a model learns: what is read, which kind of task it is, which metrics count, and what the paper tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.features import Combine, FeatureTags
from eval.kinds import Choices, Kind, Questions, Tags, Texts
from eval.metrics import GLUE_METRICS
from eval.readers import imdb
from eval.readers.glue import GLUE, NLI_LABELS
from eval.readers.korean import KOREAN
from eval.tasks import datasets

DataSplit = tuple[str, str]  # a data set, as ``read`` names it, and a split of it
Read = Callable[[str, str, Path | None], Sequence[Any]]  # data set, split, folder of files -> examples


@dataclass(frozen=True)
class FineTuned:
    """A task that a model learns.

    Attributes:
        name: what it is asked for by.
        version: raised with every change that changes its figures.
        kind: how examples are read and learned, and which metrics there are.
        best: the metric that decides which of several models is taken.
        train: what is learned from.
        dev: what the figures are of: name -> split. A name goes before its metrics; that of the first is empty.
        test: splits without labels, predicted by the best model, for those who ask for it.
        learning_rates: to try.
        epochs: to try.
        batch_sizes: to try.
        max_length: tokens of a sequence; fewer where the model has fewer positions.
        read: reads the examples of a data set.
    """

    name: str
    version: int
    kind: Kind
    best: str
    train: DataSplit
    dev: Mapping[str, DataSplit]
    test: tuple[DataSplit, ...] = ()
    learning_rates: tuple[float, ...] = (5e-5, 4e-5, 3e-5, 2e-5)
    epochs: tuple[int, ...] = (3,)
    batch_sizes: tuple[int, ...] = (32,)
    max_length: int = 128
    read: Read = datasets.read

    @property
    def dev_splits(self) -> dict[str, DataSplit]:
        """Part -> split of the development sets: dev and dev_NAME."""
        return {f"dev_{name}" if name else "dev": split for name, split in self.dev.items()}

    @property
    def test_splits(self) -> dict[str, DataSplit]:
        """Part -> split of the test sets: test or, of several, test_DATASET."""
        return {f"test_{split[0]}" if len(self.test) > 1 else "test": split for split in self.test}

    @property
    def splits(self) -> dict[str, DataSplit]:
        """Part -> split of all."""
        return {"train": self.train, **self.dev_splits, **self.test_splits}


def _glue(name: str, dataset: str, best: str, dev: Mapping[str, str] | None = None, *also: str) -> FineTuned:
    """Section 4.1: batches of 32, 3 epochs, the best of four learning rates; google-research/bert has 128 tokens."""
    return FineTuned(
        name=name,
        version=1,
        kind=Texts(GLUE[dataset].labels, GLUE_METRICS[dataset]),
        best=best,
        train=(dataset, "train"),
        dev={prefix: (part, "dev") for prefix, part in (dev or {"": dataset}).items()},
        test=tuple((part, "test") for part in (dataset, *also)),
    )


def _features(choice: str, first: int, last: int, combine: Combine = "concatenated") -> FineTuned:
    """Section 5.3; the paper doesn't say how the BiLSTM is trained."""
    return FineTuned(
        name=f"conll2003_{choice}",
        version=2,
        kind=FeatureTags(first, last, combine),
        best="f1",
        train=("CoNLL-2003", "train"),
        dev={"": ("CoNLL-2003", "dev")},
        learning_rates=(1e-3,),
        epochs=(10,),
        max_length=512,
    )


_ROWS = (
    _glue("cola", "CoLA", "matthews"),
    _glue("sst2", "SST-2", "accuracy"),
    _glue("mrpc", "MRPC", "f1"),
    _glue("stsb", "STS-B", "spearman"),
    _glue("qqp", "QQP", "f1"),
    _glue("mnli", "MNLI", "accuracy", {"": "MNLI", "mm": "MNLI-mm"}, "MNLI-mm", "AX"),
    _glue("qnli", "QNLI", "accuracy"),
    _glue("rte", "RTE", "accuracy"),
    _glue("wnli", "WNLI", "accuracy"),
    FineTuned(  # section 4.2
        name="squad_v1",
        version=1,
        kind=Questions("v1.1"),
        best="f1",
        train=("SQuAD v1.1", "train"),
        dev={"": ("SQuAD v1.1", "dev")},
        learning_rates=(5e-5,),
        max_length=384,
    ),
    FineTuned(  # section 4.3
        name="squad_v2",
        version=2,
        kind=Questions("v2.0"),
        best="f1",
        train=("SQuAD v2.0", "train"),
        dev={"": ("SQuAD v2.0", "dev")},
        learning_rates=(5e-5,),
        epochs=(2,),
        batch_sizes=(48,),
        max_length=384,
    ),
    FineTuned(  # as SQuAD v1.1
        name="korquad",
        version=1,
        kind=Questions("korquad"),
        best="f1",
        train=("KorQuAD", "train"),
        dev={"": ("KorQuAD", "dev")},
        learning_rates=(5e-5,),
        max_length=384,
    ),
    FineTuned(  # section 4.4
        name="swag",
        version=1,
        kind=Choices(),
        best="accuracy",
        train=("SWAG", "train"),
        dev={"": ("SWAG", "dev")},
        learning_rates=(2e-5,),
        batch_sizes=(16,),
    ),
    FineTuned(  # stands in for SWAG: the same form, settings and head
        name="codah",
        version=1,
        kind=Choices(),
        best="accuracy",
        train=("CODAH", "train"),
        dev={"": ("CODAH", "dev")},
        learning_rates=(2e-5,),
        batch_sizes=(16,),
    ),
    FineTuned(  # section 5.3; the settings of appendix A.3, as the paper says none for it
        name="conll2003",
        version=1,
        kind=Tags(),
        best="f1",
        train=("CoNLL-2003", "train"),
        dev={"": ("CoNLL-2003", "dev")},
        test=(("CoNLL-2003", "test"),),
        learning_rates=(5e-5, 3e-5, 2e-5),
        epochs=(2, 3, 4),
        batch_sizes=(16, 32),
        max_length=512,
    ),
    _features("embeddings", 0, 0),
    _features("second_to_last", -2, -2),
    _features("last", -1, -1),
    _features("sum_last_four", -4, -1, "weighted"),
    _features("concat_last_four", -4, -1),
    _features("sum_all", 1, -1, "weighted"),
    FineTuned(  # Sun et al. (2019), section 5.1
        name="imdb",
        version=1,
        kind=Texts(imdb.LABELS, long_text="head+tail"),
        best="accuracy",
        train=("IMDB", "train"),
        dev={"": ("IMDB", "test")},
        learning_rates=(2e-5,),
        epochs=(4,),
        batch_sizes=(24,),
        max_length=512,
    ),
    FineTuned(  # no published settings: one of the paper's
        name="nsmc",
        version=1,
        kind=Texts(KOREAN["NSMC"].labels),
        best="accuracy",
        train=("NSMC", "train"),
        dev={"": ("NSMC", "test")},
        learning_rates=(5e-5,),
    ),
    FineTuned(
        name="kornli",
        version=1,
        kind=Texts(NLI_LABELS),
        best="accuracy",
        train=("KorNLI", "train"),
        dev={"": ("KorNLI", "dev")},
        test=(("KorNLI", "test"),),
    ),
    FineTuned(
        name="korsts",
        version=1,
        kind=Texts((), ("spearman", "pearson")),
        best="spearman",
        train=("KorSTS", "train"),
        dev={"": ("KorSTS", "dev")},
        test=(("KorSTS", "test"),),
    ),
)
FINE_TUNED = {task.name: task for task in _ROWS}
