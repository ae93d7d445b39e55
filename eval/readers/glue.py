"""GLUE (Wang et al., 2019), as its download script lays it out: a folder a task, a tab-separated file a split.

Labels are in the order of the data cards on the hub (nyu-mll/glue), which is alphabetical but for MNLI.

MRPC may also be given as Microsoft's own msr_paraphrase_train.txt or msr_paraphrase_test.txt, by the path of the file.
QQP's rows with too few cells are left out, as transformers' processor and the hub's copy do. MNLI's rows with the
label "-", on which the annotators did not agree, are left out as its authors do; GLUE's own files no longer have any.
"MNLI-mm" has MNLI's train split and the mismatched others; "AX", the diagnostic set, has the split "test" only.
"""

from __future__ import annotations

from eval.readers.tables import TextTable

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
NLI_LABELS = ("entailment", "neutral", "contradiction")


def _folders(name: str) -> tuple[str, ...]:
    return name, f"glue/{name}", f"glue_data/{name}"


def _mnli(genres: str) -> TextTable:
    return TextTable(
        folders=_folders("MNLI"),
        a="sentence1",
        b="sentence2",
        label="gold_label",
        labels=NLI_LABELS,
        files={"dev": (f"dev_{genres}.tsv",), "test": (f"test_{genres}.tsv",)},
        id="index",
        unlabelled="-",
    )


GLUE = {
    "CoLA": TextTable(
        folders=_folders("CoLA"),
        a="sentence",
        labels=_BINARY,
        id="index",
        columns=("source", "label", "mark", "sentence"),
    ),
    "SST-2": TextTable(folders=_folders("SST-2"), a="sentence", labels=_BINARY, id="index"),
    "MRPC": TextTable(
        folders=_folders("MRPC"), a="#1 String", b="#2 String", label="Quality", labels=_BINARY, id="index"
    ),
    "STS-B": TextTable(
        folders=_folders("STS-B"), a="sentence1", b="sentence2", label="score", scale=(0.0, 5.0), id="index"
    ),
    "QQP": TextTable(
        folders=_folders("QQP"),
        a="question1",
        b="question2",
        label="is_duplicate",
        labels=_BINARY,
        id="id",
        drop_short=True,
    ),
    "MNLI": _mnli("matched"),
    "MNLI-mm": _mnli("mismatched"),
    "QNLI": TextTable(folders=_folders("QNLI"), a="question", b="sentence", labels=_ENTAILMENT, id="index"),
    "RTE": TextTable(folders=_folders("RTE"), a="sentence1", b="sentence2", labels=_ENTAILMENT, id="index"),
    "WNLI": TextTable(folders=_folders("WNLI"), a="sentence1", b="sentence2", labels=_BINARY, id="index"),
    "AX": TextTable(
        folders=_folders("diagnostic"),
        a="sentence1",
        b="sentence2",
        labels=NLI_LABELS,
        files={"test": ("diagnostic.tsv",)},
        id="index",
    ),
}
