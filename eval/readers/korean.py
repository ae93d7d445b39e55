"""Korean classification: NSMC (film reviews), KorNLI and KorSTS (Ham et al., 2020). KorQuAD is in eval.readers.squad.

NSMC has no dev split: what is published for it is measured on "test".
"""

from __future__ import annotations

from eval.readers.glue import NLI_LABELS
from eval.readers.tables import TextTable

KOREAN = {
    "NSMC": TextTable(
        folders=("nsmc", "korean/nsmc", "."),
        a="document",
        labels=("0", "1"),
        files={"train": ("ratings_train.txt",), "test": ("ratings_test.txt",)},
        id="id",
        without_labels=(),
    ),
    "KorNLI": TextTable(
        folders=("KorNLI", "korean/KorNLI", "."),
        a="sentence1",
        b="sentence2",
        label="gold_label",
        labels=NLI_LABELS,
        files={
            "train": ("multinli.train.ko.tsv", "snli_1.0_train.ko.tsv"),
            "dev": ("xnli.dev.ko.tsv",),
            "test": ("xnli.test.ko.tsv",),
        },
    ),
    "KorSTS": TextTable(
        folders=("KorSTS", "korean/KorSTS", "."),
        a="sentence1",
        b="sentence2",
        label="score",
        scale=(0.0, 5.0),
        files={split: (f"sts-{split}.tsv",) for split in ("train", "dev", "test")},
    ),
}
