"""Tasks that a model learns: what is read, which kind of task it is, which metrics count, and what the paper tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
Settle = Callable[[Kind, Path | None], Kind]  # kind as far as it is known, folder of files -> kind


def _as_it_is(kind: Kind, data: Path | None) -> Kind:  # noqa: ARG001
    return kind


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
        settle: finds what of the kind the files decide.
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
    settle: Settle = _as_it_is

    def on(self, data: Path | None) -> FineTuned:
        """The task with what its files in the folder ``data`` decide, which is None for the hub.

        Raises:
            DatasetError: a file that decides it is missing or malformed.
        """
        return replace(self, kind=self.settle(self.kind, data))

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


def _glue(
    name: str, dataset: str, best: str, dev: Mapping[str, str] | None = None, *also: str, names: tuple[str, ...] = ()
) -> FineTuned:
    """Section 4.1: batches of 32, 3 epochs, the best of four learning rates; google-research/bert has 128 tokens.

    Names of classes whose labels are numbers are those of GLUE in Hugging Face's datasets.
    """
    return FineTuned(
        name=name,
        version=1,
        kind=Texts(GLUE[dataset].labels, GLUE_METRICS[dataset], names=names),
        best=best,
        train=(dataset, "train"),
        dev={prefix: (part, "dev") for prefix, part in (dev or {"": dataset}).items()},
        test=tuple((part, "test") for part in (dataset, *also)),
    )


def _on(
    name: str, dataset: str, kind: Kind, best: str, *, version: int = 1, dev: str = "dev", **tried: Any
) -> FineTuned:
    """A task on one data set, judged on its split ``dev``; ``tried`` are further attributes."""
    return FineTuned(name, version, kind, best, train=(dataset, "train"), dev={"": (dataset, dev)}, **tried)


def _features(choice: str, first: int, last: int, combine: Combine = "concatenated") -> FineTuned:
    """Section 5.3; the paper doesn't say how the BiLSTM is trained."""
    return _on(
        f"conll2003_{choice}",
        "CoNLL-2003",
        FeatureTags(first, last, combine),
        "f1",
        version=2,
        learning_rates=(1e-3,),
        epochs=(10,),
        max_length=512,
    )


_ROWS = (
    _glue("cola", "CoLA", "matthews", names=("unacceptable", "acceptable")),
    _glue("sst2", "SST-2", "accuracy", names=("negative", "positive")),
    _glue("mrpc", "MRPC", "f1", names=("not_equivalent", "equivalent")),
    _glue("stsb", "STS-B", "spearman"),
    _glue("qqp", "QQP", "f1", names=("not_duplicate", "duplicate")),
    _glue("mnli", "MNLI", "accuracy", {"": "MNLI", "mm": "MNLI-mm"}, "MNLI-mm", "AX"),
    _glue("qnli", "QNLI", "accuracy"),
    _glue("rte", "RTE", "accuracy"),
    _glue("wnli", "WNLI", "accuracy", names=("not_entailment", "entailment")),
    # Section 4.2.
    _on("squad_v1", "SQuAD v1.1", Questions("v1.1"), "f1", version=2, learning_rates=(5e-5,), max_length=384),
    # Section 4.3.
    _on(
        "squad_v2",
        "SQuAD v2.0",
        Questions("v2.0"),
        "f1",
        version=3,
        learning_rates=(5e-5,),
        epochs=(2,),
        batch_sizes=(48,),
        max_length=384,
    ),
    # As SQuAD v1.1.
    _on("korquad", "KorQuAD", Questions("korquad"), "f1", version=2, learning_rates=(5e-5,), max_length=384),
    # Section 4.4.
    _on("swag", "SWAG", Choices(), "accuracy", test=(("SWAG", "test"),), learning_rates=(2e-5,), batch_sizes=(16,)),
    # Stands in for SWAG: the same form, settings and head.
    _on("codah", "CODAH", Choices(), "accuracy", learning_rates=(2e-5,), batch_sizes=(16,)),
    # Section 5.3; the settings of appendix A.3, as the paper says none for it.
    _on(
        "conll2003",
        "CoNLL-2003",
        Tags(),
        "f1",
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
    # Sun et al. (2019), section 5.1.
    _on(
        "imdb",
        "IMDB",
        Texts(imdb.LABELS, long_text="head+tail"),
        "accuracy",
        dev="test",
        learning_rates=(2e-5,),
        epochs=(4,),
        batch_sizes=(24,),
        max_length=512,
    ),
    # NSMC has no published settings: one of the paper's.
    _on(
        "nsmc",
        "NSMC",
        Texts(KOREAN["NSMC"].labels, names=("negative", "positive")),
        "accuracy",
        dev="test",
        learning_rates=(5e-5,),
    ),
    _on("kornli", "KorNLI", Texts(NLI_LABELS), "accuracy", test=(("KorNLI", "test"),)),
    _on("korsts", "KorSTS", Texts((), ("spearman", "pearson")), "spearman", test=(("KorSTS", "test"),)),
)
FINE_TUNED = {task.name: task for task in _ROWS}
