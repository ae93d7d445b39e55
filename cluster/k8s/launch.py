"""Manifests for Kubernetes: written and applied."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cluster import checks
from cluster.k8s.render import Work, render, submit_command
from cluster.k8s.settings import KubernetesSettings
from cluster.programs import Name, Program, pretraining_of
from cluster.snapshot import take_snapshot
from trainer.checkpoint import write_atomically
from trainer.config import to_toml
from trainer.settings import ConfigError


def launch(programs: Sequence[Program], settings: KubernetesSettings, folder: Path, dry_run: bool) -> None:
    """Write manifests, apply them where kubectl is at hand, and say what to look at.

    They go into ``folder`` where this machine sees the Pods' volume, and a snapshot of the code with them. Elsewhere
    they go into a folder here, and the Pods run the code of their image.

    Raises:
        ConfigError: something that can't be, or that the cluster refuses.
    """
    name = _object_name((pretraining_of(programs) or programs[0]).output)
    snapshot = None
    if Path(settings.mount_path).is_dir():
        checks.check_reads(programs)
        snapshot = take_snapshot(folder, pretraining_of(programs))
    else:
        folder = Path.cwd() / f"{name}.job"
    try:
        files = render(settings, _work(name, programs, snapshot))
    except ValueError as error:
        raise ConfigError(f"kubernetes: {error}") from error
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / file, text)
    command = submit_command(folder)
    if not dry_run and shutil.which("kubectl"):
        _apply(command)
        print(f"pods      kubectl get pods --namespace={settings.namespace} --watch")
        print(f"once more: {shlex.join(command)}")
    else:
        print(f"to submit: {shlex.join(command)}")


def _work(name: str, programs: Sequence[Program], snapshot: Path | None) -> Work:
    """What is to be done, as the renderer wants it."""
    arguments: dict[Name, tuple[str, ...]] = {program.name: program.arguments for program in programs}
    preprocessing = next((program for program in programs if program.name == "preprocess"), None)
    pretraining = pretraining_of(programs)
    recipe = deepspeed = ""
    if pretraining:
        assert pretraining.recipe
        assert pretraining.deepspeed_config
        recipe = to_toml(pretraining.recipe)
        deepspeed = pretraining.deepspeed_config.read_text(encoding="utf-8")
    return Work(
        name=name,
        **arguments,
        recipe=recipe,
        deepspeed=deepspeed,
        run=str(pretraining.output) if pretraining else "",
        wait_for_shards=str(preprocessing.output) if preprocessing and pretraining else "",
        wait_for_run=bool(pretraining and "eval" in arguments),
        code=str(snapshot or ""),
    )


def _object_name(output: Path) -> str:
    """What the run's objects are called after: the run directory's name, in the letters that Kubernetes takes."""
    return re.sub(r"[^a-z0-9]+", "-", output.name.lower()).strip("-")


def _apply(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603  our own words
    if done.returncode:
        raise ConfigError(f"{shlex.join(command)}: {done.stderr.strip()}")
    print(done.stdout, end="")
