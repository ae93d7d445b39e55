"""The paper's tables as data (Devlin et al., 2019), and a few other published figures.

A measure says which figure of ours stands beside a row of the paper's: a metric of a task of eval.tasks. A model's
settings say which run of ours it compares with, as they stand in the run's config.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Measure(NamedTuple):
    """A line of a table."""

    name: str
    task: str
    metric: str


@dataclass(frozen=True)
class Model:
    """A model of the paper.

    Attributes:
        name: of it.
        figures: one for each measure; None where the paper has none. In per cent, but for perplexities.
        settings: section.key -> value, by which a run of ours is told to be such a model.
    """

    name: str
    figures: tuple[float | None, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Attributes:
        title: its subject.
        source: where it stands.
        about: what the paper's figures are of and what ours are.
        measures: its lines.
        models: its columns.
        usual: the name of the model that a run is compared with where none has its settings.
        averaged: the mean of all measures is a line too.
    """

    title: str
    source: str
    about: str
    measures: tuple[Measure, ...]
    models: tuple[Model, ...]
    usual: str
    averaged: bool = False

    def counterpart(self, settings: Mapping[str, Any]) -> Model:
        """The model that a run with these settings is compared with."""
        alike = [m for m in self.models if m.settings and all(settings.get(k) == v for k, v in m.settings.items())]
        return alike[0] if alike else next(model for model in self.models if model.name == self.usual)


def _size(layers: int, width: int, heads: int) -> dict[str, int]:
    return {
        "model.num_hidden_layers": layers,
        "model.hidden_size": width,
        "model.num_attention_heads": heads,
    }


def _masking(mask: float, random: float) -> dict[str, float]:
    return {"masking.mask": mask, "masking.random": random}


_BASE, _LARGE = _size(12, 768, 12), _size(24, 1024, 16)
_OURS_ON_DEV = "The paper's figures are of the test set, ours of the dev set."
_DEV = "All figures are of the dev set."

TABLES = (
    Table(
        "GLUE",
        "table 1",
        f"{_OURS_ON_DEV} Accuracy, but F1 for QQP and MRPC, Spearman's correlation for STS-B and Matthews' for CoLA.",
        (
            Measure("MNLI-m", "mnli", "accuracy"),
            Measure("MNLI-mm", "mnli", "mm_accuracy"),
            Measure("QQP", "qqp", "f1"),
            Measure("QNLI", "qnli", "accuracy"),
            Measure("SST-2", "sst2", "accuracy"),
            Measure("CoLA", "cola", "matthews"),
            Measure("STS-B", "stsb", "spearman"),
            Measure("MRPC", "mrpc", "f1"),
            Measure("RTE", "rte", "accuracy"),
        ),
        (
            Model("OpenAI GPT", (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0)),
            Model("BERT-BASE", (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4), _BASE),
            Model("BERT-LARGE", (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1), _LARGE),
        ),
        usual="BERT-BASE",
        averaged=True,
    ),
    Table(
        "SQuAD v1.1",
        "table 2",
        f"{_DEV} Single models without other data.",
        (Measure("EM", "squad_v1", "exact_match"), Measure("F1", "squad_v1", "f1")),
        (Model("BERT-BASE", (80.8, 88.5), _BASE), Model("BERT-LARGE", (84.1, 90.9), _LARGE)),
        usual="BERT-BASE",
    ),
    Table(
        "SQuAD v2.0",
        "table 3",
        "Ours are of the dev set, with the threshold for no answer tuned on it, as the paper's.",
        (Measure("EM", "squad_v2", "exact"), Measure("F1", "squad_v2", "f1")),
        (Model("BERT-LARGE, dev", (78.7, 81.9), _LARGE), Model("BERT-LARGE, test", (80.0, 83.1))),
        usual="BERT-LARGE, dev",
    ),
    Table(
        "SWAG",
        "table 4",
        _DEV,
        (Measure("accuracy", "swag", "accuracy"),),
        (Model("BERT-BASE", (81.6,), _BASE), Model("BERT-LARGE", (86.6,), _LARGE)),
        usual="BERT-BASE",
    ),
    Table(
        "CoNLL-2003, fine-tuned",
        "table 7",
        "F1 of entities; the paper's are means of five random restarts.",
        (Measure("dev", "conll2003", "f1"), Measure("test", "conll2003", "test_f1")),
        (Model("BERT-BASE", (96.4, 92.4), _BASE), Model("BERT-LARGE", (96.6, 92.8), _LARGE)),
        usual="BERT-BASE",
    ),
    Table(
        "CoNLL-2003, feature-based",
        "table 7",
        f"{_DEV} F1 of entities, by the layers that a BiLSTM reads of a frozen encoder.",
        (
            Measure("embeddings", "conll2003_embeddings", "f1"),
            Measure("second-to-last hidden", "conll2003_second_to_last", "f1"),
            Measure("last hidden", "conll2003_last", "f1"),
            Measure("weighted sum of the last four", "conll2003_sum_last_four", "f1"),
            Measure("concatenation of the last four", "conll2003_concat_last_four", "f1"),
            Measure("weighted sum of all twelve", "conll2003_sum_all", "f1"),
        ),
        (Model("BERT-BASE", (91.0, 95.6, 94.9, 95.9, 96.1, 95.5), _BASE),),
        usual="BERT-BASE",
    ),
    Table(
        "Effect of the pre-training tasks",
        "table 5",
        f"{_DEV} Accuracy, F1 for SQuAD v1.1; all of the size of BERT-BASE.",
        (
            Measure("MNLI-m", "mnli", "accuracy"),
            Measure("QNLI", "qnli", "accuracy"),
            Measure("MRPC", "mrpc", "accuracy"),
            Measure("SST-2", "sst2", "accuracy"),
            Measure("SQuAD", "squad_v1", "f1"),
        ),
        (
            Model("BERT-BASE", (84.4, 88.4, 86.7, 92.7, 88.5), {"train.next_sentence": True}),
            Model(
                "No NSP",
                (83.9, 84.9, 86.5, 92.6, 87.9),
                {"train.next_sentence": False, "model.is_decoder": False},
            ),
            Model("LTR & No NSP", (82.1, 84.3, 77.5, 92.1, 77.8), {"model.is_decoder": True}),
            Model("LTR & No NSP + BiLSTM", (82.1, 84.1, 75.7, 91.6, 84.9)),
        ),
        usual="BERT-BASE",
    ),
    Table(
        "Effect of model size",
        "table 6",
        "Perplexity of masked words on held-out text, the paper's and ours on different text; accuracies of dev sets. "
        "Models are named by layers, width and heads.",
        (
            Measure("perplexity", "mlm", "perplexity"),
            Measure("MNLI-m", "mnli", "accuracy"),
            Measure("MRPC", "mrpc", "accuracy"),
            Measure("SST-2", "sst2", "accuracy"),
        ),
        (
            Model("3, 768, 12", (5.84, 77.9, 79.8, 88.4), _size(3, 768, 12)),
            Model("6, 768, 3", (5.24, 80.6, 82.2, 90.7), _size(6, 768, 3)),
            Model("6, 768, 12", (4.68, 81.9, 84.8, 91.3), _size(6, 768, 12)),
            Model("12, 768, 12", (3.99, 84.4, 86.7, 92.9), _BASE),
            Model("12, 1024, 16", (3.54, 85.7, 86.9, 93.3), _size(12, 1024, 16)),
            Model("24, 1024, 16", (3.23, 86.6, 87.8, 93.7), _LARGE),
        ),
        usual="3, 768, 12",
    ),
    Table(
        "Effect of the masking",
        "table 8",
        f"{_DEV} Accuracy of MNLI, F1 of CoNLL-2003. Named by the shares, in per cent, of the chosen tokens that "
        "become [MASK], stay the same, or become a random one.",
        (
            Measure("MNLI, fine-tuned", "mnli", "accuracy"),
            Measure("NER, fine-tuned", "conll2003", "f1"),
            Measure("NER, feature-based", "conll2003_concat_last_four", "f1"),
        ),
        (
            Model("80/10/10", (84.2, 95.4, 94.9), _masking(0.8, 0.1)),
            Model("100/0/0", (84.3, 94.9, 94.0), _masking(1.0, 0.0)),
            Model("80/0/20", (84.1, 95.2, 94.6), _masking(0.8, 0.2)),
            Model("80/20/0", (84.4, 95.2, 94.7), _masking(0.8, 0.0)),
            Model("0/20/80", (83.7, 94.8, 94.6), _masking(0.0, 0.8)),
            Model("0/0/100", (83.6, 94.9, 94.6), _masking(0.0, 1.0)),
        ),
        usual="80/10/10",
    ),
    Table(
        "Other published figures",
        "not of the paper",
        "Accuracy: MRPC's dev set in the README of google-research/bert, IMDB's test set, and the test set of Naver's "
        "movie reviews with a Korean BERT.",
        (
            Measure("MRPC", "mrpc", "accuracy"),
            Measure("IMDB", "imdb", "accuracy"),
            Measure("NSMC", "nsmc", "accuracy"),
        ),
        (Model("published", (84.56, 93.3, 88.8)),),
        usual="published",
    ),
)
