"""From a dump to an evaluated BERT by the README's commands, each in a process of its own as a user types it."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, TEXTS
from tests.ranks import free_port
from trainer.files import read_lines


def run(*command: str, code: int = 0) -> str:
    """Run a command at the repository's root; returns what it printed."""
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dump() -> str:
    return str(TEXTS / "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2")


def test_vocabulary_shards_training_evaluation_report(dump: str, tmp_path: Path):
    vocabulary, shards, training = tmp_path / "vocab.txt", tmp_path / "shards", tmp_path / "runs" / "small"
    run("python", "-m", "preprocessing.train_vocab", "--wikipedia", dump, "--size", "8192", "--output", str(vocabulary))
    assert len(vocabulary.read_text(encoding="utf-8").splitlines()) == 8192

    run(
        "beam", "run", "preprocessing/make_shards.py", "--wikipedia", dump, "--vocab", str(vocabulary),
        "--sequence-lengths", "128", "--duplicates", "1", "--validation-fraction", "0.05", "--output", str(shards),
    )  # fmt: skip
    assert json.loads((shards / "manifest.json").read_text())["statistics"]["documents"]["in_shards"] > 90

    train = [
        "deepspeed", "--master_port", str(free_port()), "--num_accelerators", "2",
        "trainer/pretrain.py", "--config", "trainer/recipes/demo.toml",
        "--deepspeed_config", "ds_config.json", "--shards", str(shards), "--output", str(training),
        "model.num_hidden_layers=1", "model.hidden_size=64", "model.intermediate_size=64", "phases.0.steps=6",
        "log.every=2", "log.validation_samples=32",
    ]  # fmt: skip
    log = run(*train)
    for words in ("step 2/6: loss", "to go", "held out: loss", "done: 6 steps"):
        assert words in log
    assert (training / "outcome").read_text() == "done\n"
    assert [line["step"] for line in read_lines(training / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]

    results = tmp_path / "results"
    table = run(
        "python", "-m", "eval.run", "--checkpoint", str(training / "exports" / "step-000006"),
        "--tasks", "mlm,nsp,fill_mask", "--shards", str(shards), "--output", str(results), "--samples", "64",
    )  # fmt: skip
    assert "erplexity" in table
    assert json.loads((results / "results.json").read_text())

    run("python", "-m", "eval.report", str(training), "--results", str(results / "results.json"),
        "--output", str(tmp_path / "report"))  # fmt: skip
    assert (tmp_path / "report" / "report.md").stat().st_size > 200
    assert list((tmp_path / "report").glob("*.png"))


@pytest.mark.slow
def test_the_short_way_from_a_folder_of_texts_to_a_small_model(tmp_path: Path):
    """What docs/preprocessing.md says, with fewer layers and steps."""
    page = (ROOT / "docs" / "preprocessing.md").read_text(encoding="utf-8")
    section = page.partition("## Your own texts and a small model\n")[2].partition("\n| ")[0]  # a table comes next
    commands = "\n".join(line for line in section.split("\n") if line.startswith("    "))
    assert len(commands.split("\n")) == 6
    (tmp_path / "notes" / "deeper").mkdir(parents=True)
    for text in (ROOT / "docs").glob("*.md"):
        (tmp_path / "notes" / "deeper" / f"{text.stem}.txt").write_bytes(text.read_bytes())

    small = "model.num_hidden_layers=1 phases.0.steps=4 log.validation_samples=32"
    commands = re.sub(r"(?<![\w/])(?=(?:notes|shards|runs)/)", f"{tmp_path}/", commands)
    commands = commands.replace("deepspeed --num", f"deepspeed --master_port {free_port()} --num")
    commands = commands.replace("model.vocab_size", f"{small} model.vocab_size").replace("step-004500", "step-000004")
    log = run("bash", "-ec", commands)

    for words in ("done: 4 steps", "mlm perplexity", "nsp accuracy"):
        assert words in log


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["beam", "run", "preprocessing/make_shards.py", "--help"], ["--wikipedia", "--duplicates", "example:"]),
        (["python", "trainer/pretrain.py", "--help"], ["--config", "--shards", "section.key=value", "goes on"]),
        (["python", "-m", "eval.run", "--help"], ["--checkpoint", "--tasks", "--shards"]),
    ],
)
def test_help_reads_like_a_good_tool_s(command: list[str], words: list[str]):
    text = run(*command)
    assert all(word in text for word in words)
    assert "Traceback" not in text


@pytest.mark.parametrize("slow", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_user_s_mistake_comes_through_the_launcher_as_exit_code_2(slow: int, tmp_path: Path, monkeypatch):
    """Told once, also where the first rank is still at its imports when another has found the mistake."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, time\ntime.sleep(5 * (os.environ.get('LOCAL_RANK') == '{slow}'))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = run(
        "deepspeed", "--master_port", str(free_port()), "--num_accelerators", "2",
        "trainer/pretrain.py", "--config", "trainer/recipes/demo.toml",
        "--shards", str(tmp_path / "nowhere"), "--output", str(tmp_path / "run"),
        code=2,
    )  # fmt: skip
    assert log.count("error: ") == 1
    assert "nowhere: no such directory" in log
    assert "Traceback" not in log
    assert not (tmp_path / "run").exists()
