"""The three programs that a cluster runs: their command lines, read as far as a launch must know them.

Of preprocessing and evaluation what is not read here is passed on as it is; the programs themselves check it, at the
launch too where they are installed (cluster.checks).
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn, get_args

from cluster.paths import whole
from preprocessing.command_line import OneLineParser
from preprocessing.schema import MANIFEST
from trainer.arguments import parse
from trainer.config import Recipe, load_recipe
from trainer.deepspeed_config import DeepSpeedFile, read_deepspeed
from trainer.initial_model import find_given, initial_model, tells_its_model
from trainer.run_directory import RunDirectory
from trainer.settings import ConfigError

Name = Literal["preprocess", "pretrain", "eval"]
NAMES: tuple[Name, ...] = get_args(Name)
# What make_shards reads; its other options are passed on.
CORPUS = ("--wikipedia", "--wikiextractor", "--books", "--parquet", "--jsonl", "--vocab", "--contamination")
CONFIG, DEEPSPEED_CONFIG = "config.toml", "ds_config.json"  # in a snapshot, see cluster.snapshot


@dataclass(frozen=True)
class Program:
    """A program with its arguments.

    Attributes:
        name: of the job.
        output: what it writes.
        arguments: as they are passed on.
        reads: files and folders that must be there when it starts.
        corpus: of a preprocessing: paths and globs that lead to files; URLs are left out.
        recipe: of a pretraining, overrides applied.
        deepspeed_config: of a pretraining.
        tasks: of an evaluation: names of tasks and groups, and files that describe a task.
    """

    name: Name
    output: Path
    arguments: tuple[str, ...]
    reads: tuple[Path, ...] = ()
    corpus: tuple[str, ...] = ()
    recipe: Recipe | None = None
    deepspeed_config: DeepSpeedFile | None = None
    tasks: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """All that it reads and writes; of a glob the folder that it looks into."""
        return (self.output, *self.reads, *map(searched, self.corpus))

    @property
    def cache(self) -> tuple[Path, ...]:
        """Where each node keeps copies of the shards; nothing where there are none, or where only the node knows."""
        cache_dir = self.recipe.data.cache_dir if self.recipe else ""
        return (whole(cache_dir),) if cache_dir and "$" not in cache_dir else ()

    @property
    def folder(self) -> Path:
        """Where its job files lie: in its output, or beside shards, whose folder holds nothing else."""
        if self.name == "preprocess":
            return self.output.with_name(self.output.name + ".job")
        return RunDirectory(self.output).job

    def on(self, gpus: int) -> Program:
        """The same, an evaluation on a GPU or on the CPU, as its job has asked for; its own arguments may differ."""
        if self.name != "eval":
            return self
        return replace(self, arguments=("--device", _device(gpus), *self.arguments))

    def variables(self, gpus: int) -> dict[str, str]:
        """By which DeepSpeed trains on what its job has asked for.

        Left to itself it takes the CPU wherever CUDA does not start, such as on a node whose driver is broken.
        """
        return {"DS_ACCELERATOR": _device(gpus)} if self.name == "pretrain" else {}

    def command(self, snapshot: Path) -> list[str]:
        """What follows the interpreter on the command line; the code and the configuration are a snapshot's."""
        if self.name == "preprocess":
            script = str(snapshot / "preprocessing" / "make_shards.py")
            return ["-m", "preprocessing.beam_cli", "run", script, *self.arguments]
        if self.name == "eval":
            return ["-m", "eval.run", *self.arguments]
        configuration = ["--config", str(snapshot / CONFIG), "--deepspeed_config", str(snapshot / DEEPSPEED_CONFIG)]
        return [str(snapshot / "trainer" / "pretrain.py"), *configuration, *self.arguments]


class _Parser(OneLineParser):
    """Raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}")


def read_preprocess(arguments: Sequence[str]) -> Program:
    """The Beam job.

    Raises:
        ConfigError: no --output, or one that is not a folder with a name.
    """
    parser = _Parser("preprocess", add_help=False)
    parser.add_argument("--output", type=_place, required=True)
    for option in CORPUS:
        parser.add_argument(option, type=_place, nargs="+", action="extend", default=[])
    found, rest = parser.parse_known_args(arguments)
    if "://" in found.output:
        raise ConfigError(f"preprocess: --output {found.output} is not a folder; use `beam run` itself for that")
    if not Path(found.output).name:
        raise ConfigError(f"preprocess: --output {found.output} has no name; take a folder in it")
    given = {option: getattr(found, option.removeprefix("--")) for option in CORPUS}
    words = [word for option, values in given.items() if values for word in (option, *values)]
    corpus = tuple(path for values in given.values() for path in values if "://" not in path)
    return Program("preprocess", Path(found.output), (*rest, *words, "--output", found.output), corpus=corpus)


def read_pretrain(arguments: Sequence[str]) -> Program:
    """The trainer.

    Raises:
        ConfigError: an argument that lacks or is unknown, a recipe that can't be used or is of another model than
            --init-from has, or shards in the run directory or around it.
    """
    try:
        found = parse(arguments, path=_path, place=_place)
    except ConfigError as error:
        raise ConfigError(f"pretrain: {error}") from error
    initial = ["--init-from", str(found.init_from)] if found.init_from else []
    shards = [Path(source) for source in found.shards if "://" not in source]
    seen = found.init_from and tells_its_model(found.init_from)  # else check_reads or the job tells
    run = RunDirectory(found.output)
    model = initial_model(found.init_from if seen else None, run)
    recipe = load_recipe(found.config, found.settings, model)
    if model and seen and not os.access(run.config, os.F_OK):  # a run that has begun keeps its own
        find_given(found.init_from).check_sizes(model, recipe)
    place = found.output.resolve()
    for path in shards:
        if path.resolve().is_relative_to(place) or place.is_relative_to(path.resolve()):
            raise ConfigError(
                f"pretrain: --shards {path} and --output {found.output} lie one in the other; take folders side by side"
            )
    return Program(
        "pretrain",
        found.output,
        (*initial, "--shards", *found.shards, "--output", str(found.output)),
        reads=(*(path / MANIFEST for path in shards), *map(Path, initial[1:])),
        recipe=recipe,
        deepspeed_config=read_deepspeed(found.deepspeed_config),
    )


def read_eval(arguments: Sequence[str]) -> Program:
    """The evaluation of one export.

    Raises:
        ConfigError: an argument that lacks, or several directories of shards.
    """
    parser = _Parser("eval", add_help=False)
    parser.add_argument("--checkpoint", type=_path, required=True)
    parser.add_argument("--output", type=_path, required=True)
    parser.add_argument("--tasks", type=_tasks, required=True)
    for option in ("--data", "--sentences"):
        parser.add_argument(option, type=_path)
    parser.add_argument("--shards", type=_path, nargs="+", default=[])
    found, rest = parser.parse_known_args(arguments)
    if len(found.shards) > 1:
        raise ConfigError("eval: --shards: an evaluation reads one directory; make one of each a job of its own")
    found.shards = found.shards[0] if found.shards else None
    tasks = found.tasks
    given = {**vars(found), "tasks": ",".join(map(str, tasks))}
    words = [word for name, value in given.items() if value for word in (f"--{name}", str(value))]
    reads = [found.checkpoint, found.shards and found.shards / MANIFEST, found.data, found.sentences, *tasks]
    return Program(
        "eval",
        found.output,
        (*rest, *words),
        reads=tuple(path for path in reads if isinstance(path, Path)),
        tasks=tuple(map(str, tasks)),
    )


READERS = {"preprocess": read_preprocess, "pretrain": read_pretrain, "eval": read_eval}


def read_chain(arguments: dict[Name, Sequence[str]]) -> list[Program]:
    """All three, each given what the one before makes unless it is told otherwise: shards, and the last export.

    Raises:
        ConfigError: see the readers.
    """
    preprocess = read_preprocess(arguments["preprocess"])
    pretrain = read_pretrain(_with_default(arguments["pretrain"], "--shards", preprocess.output))
    assert pretrain.recipe
    export = RunDirectory(pretrain.output).export(pretrain.recipe.last_step)
    evaluate = read_eval(
        _with_default(_with_default(arguments["eval"], "--checkpoint", export), "--shards", preprocess.output)
    )
    made = ((preprocess.output / MANIFEST).resolve(), export.resolve())
    later = [
        replace(step, reads=tuple(path for path in step.reads if path.resolve() not in made))
        for step in (pretrain, evaluate)
    ]
    return [preprocess, *later]


def folder_of(programs: Sequence[Program]) -> Path:
    """Where the job files of programs go: those of all three into the run directory."""
    return (pretraining_of(programs) or programs[0]).folder


def pretraining_of(programs: Sequence[Program]) -> Program | None:
    """The pretraining among programs."""
    return next((program for program in programs if program.name == "pretrain"), None)


def searched(pattern: str) -> Path:
    """The folder of a glob that every match lies in; of a path, which may have brackets in it, itself."""
    if os.access(pattern, os.F_OK):
        return Path(pattern)
    return Path(*itertools.takewhile(lambda part: not re.search(r"[*?[]", part), Path(pattern).parts))


def _with_default(arguments: Sequence[str], option: str, value: Path) -> list[str]:
    given = any(argument == option or argument.startswith(f"{option}=") for argument in arguments)
    return [*arguments] if given else [option, str(value), *arguments]


def _device(gpus: int) -> str:
    return "cuda" if gpus else "cpu"


def _path(text: str) -> Path:
    """A path of a command line as it is found from elsewhere too."""
    try:
        return whole(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error  # the parser adds which option it is of


def _place(text: str) -> str:
    """A path or a glob as it is found from elsewhere too; a URL as it is."""
    return text if "://" in text else str(_path(text))


def _tasks(text: str) -> list[Path | str]:
    """Names of tasks, and files that describe one."""
    names = [name.strip() for name in text.split(",")]
    return [_path(name) if name.endswith(".toml") else name for name in names if name]
