"""The pages lead where they say, name files, options and settings that there are, and all that can be set."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from cluster.plan import main as plan
from cluster.settings import ClusterSettings
from tests.conftest import ROOT
from trainer.config import Recipe

PAGES = sorted(path for folder in (".", "docs", "docs/results", "cluster") for path in (ROOT / folder).glob("*.md"))
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
FOLDERS = "preprocessing|trainer|eval|cluster|benchmarks|tests|docs"
FILE = re.compile(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./*-]*\w(?![\w{{])")
PROGRAM = re.compile(rf"(?:python3? -m (?:{FOLDERS})[\w.]+|(?<![\w/])(?:{FOLDERS})/[\w/]+\.py) ([^|`#\n]*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
OF_OTHERS = {"--runner"}  # of Beam, which hands its own through
ROW = re.compile(r"^\| \[[^]]+\]\(([^)]+)\) \| (.*) \|$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What headings of a page are called in links, as Git's hosts call them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_what_is_there(page: Path):
    for name, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


def test_what_the_code_in_an_afternoon_names_of_a_file_is_in_it():
    page = ROOT / "docs" / "reading.md"
    named = [
        (page.parent / name, word)
        for name, text in ROW.findall(page.read_text(encoding="utf-8"))
        for word in re.findall(r"`(\w+)`", text)
    ]

    assert len(named) >= 8
    assert [(file.name, word) for file, word in named if word not in file.read_text(encoding="utf-8")] == []


def test_the_code_in_an_afternoon_is_as_long_as_it_says():
    page = ROOT / "docs" / "reading.md"
    text = page.read_text(encoding="utf-8").partition("## Another day")[0]
    rows = "\n".join(re.findall(r"^\| \[.*$", text, re.MULTILINE))
    files = {page.parent / name for name, _ in LINK.findall(rows)}
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)

    (told,) = re.findall(r"^Some ([\d,]+) lines", text, re.MULTILINE)
    assert len(files) >= 25
    assert abs(int(told.replace(",", "")) - lines) < 0.03 * lines


def test_gains_are_those_of_the_predictions():
    """In training.md as in the table that benchmarks/gpu_predictions.py prints."""
    table = (ROOT / "docs" / "results" / "gpu.md").read_text(encoding="utf-8").partition("## Predictions")[2]
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| ([\d,]+) \|", table, re.MULTILINE)
    rates = {(row, tokens): int(rate.replace(",", "")) for row, tokens, rate in rows}
    padded, packed = "ours, dropout everywhere (SDPA)", "+ attention of packed sequences, which has no dropout"
    fused, compiled = "kernels of our own, dropout everywhere", "+ layers by torch.compile"
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    for setting, before, after in (
        ("train.fused=true", padded, fused),
        ("model.attention_probs_dropout_prob=0", padded, packed),
        ("train.compile=true", packed, compiled),
    ):
        (gain,) = re.findall(rf"^\| `{setting}[^|]*\|([^|]*)\|", page, re.MULTILINE)
        told = [int(per_cent) for per_cent in re.findall(r"(\d+) %", gain)]
        for tokens, per_cent in zip(("128", "512"), told if len(told) == 2 else 2 * told, strict=True):
            counted = 100 * (rates[after, tokens] / rates[before, tokens] - 1)
            assert abs(per_cent - counted) < 0.7, (setting, tokens)


def test_hours_are_those_of_a_plan(capsys):
    """In the README those of `python -m cluster.plan`, with the ds_config.json that lies there."""
    given = [
        "--recipe",
        "bert_large",
        "--gpu",
        "h200",
        "--gpus",
        "8",
        "--deepspeed_config",
        str(ROOT / "ds_config.json"),
    ]
    assert plan([*given, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    (of_zero_1,) = [stage["hours"] for stage in planned["stages"] if stage["stage"] == 1]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())

    told = re.search(
        r"in ([\d.]+) hours under ZeRO 1 in CUDA graphs, in ([\d.]+) without graphs, in ([\d.]+) under ZeRO 2", text
    )
    assert told
    assert list(told.groups()) == [
        f"{hours:.1f}" for hours in (planned["hours_in_graphs"], of_zero_1, planned["hours"])
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_are_there(page: Path):
    named = FILE.findall(page.read_text(encoding="utf-8"))

    assert [name for name in named if not any(ROOT.glob(name))] == []


def test_commands_have_the_options_that_programs_take():
    folders = [folder.replace("tests", "tests/soak") for folder in FOLDERS.split("|")]
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    taken = {option for path in sources for option in re.findall(r"\"(--[a-z][\w-]*)\"", path.read_text("utf-8"))}
    given = [
        (page.name, option)
        for page in PAGES
        for arguments in PROGRAM.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))
        for option in OPTION.findall(arguments)
    ]

    assert len(given) >= 150
    assert [(page, option) for page, option in given if option not in taken | OF_OTHERS] == []


def keys(kind: type, prefix: str = "") -> Iterator[str]:
    """section.key of each setting."""
    for field in fields(kind):
        hint: Any = get_type_hints(kind)[field.name]
        inner = next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), None)
        if inner and field.name != "tolerations":  # whose names are Kubernetes' own
            yield from keys(inner, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_of_a_recipe_that_are_named_are_there(page: Path):
    sections = "|".join(field.name for field in fields(Recipe))
    named = re.findall(rf"(?<![\w./-])((?:{sections})(?:\.\d)?\.\w+)(?:=|`)", page.read_text(encoding="utf-8"))

    assert {re.sub(r"\.\d", "", name) for name in named} - {*keys(Recipe), "model.safetensors", "train.csv"} == set()


@pytest.mark.parametrize(
    ("page", "kind", "sections"),
    [
        ("training.md", Recipe, "phases optimizer schedule masking data train checkpoint log tracking"),
        ("cluster.md", ClusterSettings, "slurm local"),
        ("kubernetes.md", ClusterSettings, "kubernetes"),
    ],
)
def test_a_page_names_all_that_can_be_set(page: str, kind: type, sections: str):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    settings = [key for key in keys(kind) if key.partition(".")[0] in sections.split()]

    assert len(settings) >= 20
    assert [key for key in settings if not re.search(rf"\b{key.rpartition('.')[2]}\b", text)] == []
