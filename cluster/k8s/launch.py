"""Manifests for Kubernetes: written and applied."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from cluster import checks
from cluster.k8s.render import NAME_LABEL, Work, check_arguments, check_paths, render
from cluster.k8s.settings import KubernetesSettings, has_registry, is_clean
from cluster.paths import current_folder, fingerprint
from cluster.programs import Program, pretraining_of
from cluster.snapshot import take_snapshot
from preprocessing.status import exists, is_dir, looking, make_folder
from trainer.files import write_atomically
from trainer.run_directory import CheckpointError, RunDirectory
from trainer.settings import ConfigError

POD_USER = POD_GROUP = 1000  # runAsUser and fsGroup of the base
STAGING = "flink-staging"  # on the volume, where Beam's job server of the base hands files to the TaskManagers
# What trains, as kubectl calls each kind.
_OBJECTS = {"job": "job.batch", "jobset": "jobset.jobset.x-k8s.io", "trainjob": "trainjob.trainer.kubeflow.org"}
_OWN = ("/tmp", "/dev/shm")  # noqa: S108  folders of a Pod that are not read-only


def launch(programs: Sequence[Program], settings: KubernetesSettings, folder: Path, dry_run: bool) -> None:
    """Write manifests, apply them where kubectl is at hand, and say what to look at.

    They go into ``folder`` where this machine sees the Pods' volume, and a snapshot of the code with them. Elsewhere
    they go into a folder here, and the Pods run the code of their image.

    Raises:
        ConfigError: something that can't be, or that the cluster refuses.
        UnavailableError: the volume, or something on it, can't be looked at now.
    """
    checks.check_programs(programs, settings.eval.pods, settings.preprocess.cpu)
    check_arguments(settings, programs)
    for program in programs:
        check_paths(settings, [program.output, *program.reads, *program.corpus])
    check_paths(settings, [folder])
    written = [*(program.output for program in programs), *_caches(programs, settings)]
    for program in programs:
        if program.output == Path(settings.mount_path):
            raise ConfigError(f"{program.name}: --output {program.output} is the volume itself; take a folder in it")
    is_seen = False
    with looking(settings.mount_path):
        is_seen = is_dir(settings.mount_path)
    if is_seen:
        checks.check_reads(programs)
    checks.check_ranks(programs, settings.pretrain.ranks, "kubernetes.pretrain.nodes and kubernetes.pretrain.gpus")
    pretraining = pretraining_of(programs)
    name = _object_name((pretraining or programs[0]).output)
    snapshot = _prepare_volume(programs, settings, folder, written) if is_seen else None
    if not snapshot:
        folder = current_folder() / f"{name}.job"
    files = render(settings, Work(name, {program.name: program for program in programs}, str(snapshot or "")))
    with checks.writing("make it writable" if snapshot else "launch from another folder"):
        for file, text in files.items():
            make_folder((folder / file).parent, parents=True)
            write_atomically(folder / file, text)
    _warn_of_images(programs, settings)
    _warn_of_taints(programs, settings)
    old = _old_ending(pretraining) if pretraining and snapshot else None
    command = ["kubectl", "apply", "-k", str(folder)]
    first = f"{shlex.join(['rm', '-f', str(old)])} && " if old else ""
    once_more = shlex.join(["kubectl", "replace", "--force", "-k", str(folder)])
    if not dry_run and shutil.which("kubectl"):
        _submit(command, first + once_more, f"{_OBJECTS[settings.pretrain.kind]}/{name}-pretrain", old)
        print(f"pods      kubectl get pods --namespace={settings.namespace} --selector={NAME_LABEL}={name} --watch")
        print(f"once more: {once_more}")
    else:
        print(f"to submit: {first}{shlex.join(command)}")


def _prepare_volume(
    programs: Sequence[Program], settings: KubernetesSettings, folder: Path, written: Sequence[Path]
) -> Path:
    """Check outputs on a volume that is seen here, and make there what Pods are to find; returns the code's snapshot.

    Raises:
        ConfigError: something is in the way, or can't be made.
        UnavailableError: a folder can't be looked at now.
    """
    volume = Path(settings.mount_path)
    checks.check_outputs(programs)
    on_flink = programs[0].name == "preprocess" and settings.preprocess.engine == "flink"
    with checks.writing("choose another --output"):
        if on_flink and not _pods_may(stat.S_IWOTH, volume):
            written = [*written, volume / STAGING]
        _make_folders(folder, written)
        snapshot = take_snapshot(folder, pretraining_of(programs))
        _let_pods_read(folder, snapshot)
    _warn_of_closed_folders(programs, volume)
    return snapshot


def _caches(programs: Sequence[Program], settings: KubernetesSettings) -> list[Path]:
    """Folders of the volume for copies of shards, which nodes then share.

    Raises:
        ConfigError: Pods can't write where copies are to be.
    """
    found = []
    for cache_dir in (program.recipe.data.cache_dir for program in programs if program.recipe):
        if not cache_dir or "$" in cache_dir:  # the trainer replaces variables, by what they are in the Pod
            continue
        if PurePosixPath(cache_dir).is_relative_to(settings.mount_path):
            check_paths(settings, [cache_dir])
            found.append(Path(cache_dir))
        elif not is_clean(cache_dir) or not any(map(PurePosixPath(cache_dir).is_relative_to, _OWN)):
            raise ConfigError(
                f"pretrain: data.cache_dir {cache_dir}: Pods can't write there; take a folder below "
                f"{settings.mount_path}, which all of them share, or {_OWN[0]}"
            )
    return found


def _warn_of_images(programs: Sequence[Program], settings: KubernetesSettings) -> None:
    """Say which images have no registry in their names; what a registry has is not looked up."""
    images = [settings.preprocess.image if program.name == "preprocess" else settings.image for program in programs]
    for image in dict.fromkeys(images):
        if not has_registry(image):
            print(
                f"warning: image {image} names no registry: nodes look for it on Docker Hub unless it is loaded there; "
                "kubernetes.image and kubernetes.preprocess.image take REGISTRY/NAME:TAG",
                file=sys.stderr,
            )


def _warn_of_taints(programs: Sequence[Program], settings: KubernetesSettings) -> None:
    """Say which Pods may wait for ever: nodes with GPUs that others' Pods must tolerate will not take them."""
    pods = {"pretrain": settings.pretrain, "eval": settings.eval}
    known = {toleration.key: name for name, other in pods.items() if other.gpus for toleration in other.tolerations}
    for name in [program.name for program in programs if program.name in pods and pods[program.name].gpus]:
        for key in sorted(set(known) - {toleration.key for toleration in pods[name].tolerations}):
            print(
                f"warning: kubernetes.{name} asks for GPUs without the toleration of {key} that "
                f"kubernetes.{known[key]} has: its Pods may stay Pending; give it to kubernetes.{name}.tolerations too",
                file=sys.stderr,
            )


def _warn_of_closed_folders(programs: Sequence[Program], volume: Path) -> None:
    """Say which folders Pods may not enter on the way to what they read and write, such as a user's home."""
    around = dict.fromkeys(
        folder for program in programs for path in program.paths for folder in (*path.parents[::-1], path)
    )
    for folder in around:
        is_closed = False
        with looking(folder):
            is_closed = volume in folder.parents and is_dir(folder) and not _pods_may(stat.S_IXOTH, folder)
        if is_closed:
            quoted = shlex.quote(str(folder))
            print(
                f"warning: {folder}: Pods, of user and group {POD_USER}, may not enter it: chmod o+x {quoted}, or take "
                "folders elsewhere on the volume",
                file=sys.stderr,
            )


def _make_folders(folder: Path, outputs: Sequence[Path]) -> None:
    """Make the outputs, and the job's folder in one or beside it; Pods may write into outputs and what was made above.

    Raises:
        ConfigError: the user can't let them.
        OSError: one can't be made.
    """
    for output in outputs:
        if not exists(output) and any(other in output.parents for other in outputs):
            continue  # the Pods make it; a run directory in which there is something already is taken for no new one
        for path in (*reversed(output.parents), output):  # one after the other: each hands its group down
            missing = not exists(path)
            make_folder(path)
            if missing or path == output:
                _let_pods_write(path)
    make_folder(folder)


def _let_pods_read(folder: Path, snapshot: Path) -> None:
    """Let everybody read the code in the job's folder: it, or the checkout, may be of a umask that lets nobody."""
    for path in (folder, snapshot, *snapshot.rglob("*")):
        mode = path.stat().st_mode
        wanted = mode | (0o055 if stat.S_ISDIR(mode) else 0o044)
        if wanted != mode:
            path.chmod(stat.S_IMODE(wanted))


def _let_pods_write(folder: Path) -> None:
    """Give a folder to the Pods' group, unless Pods can write there already."""
    if _pods_may(stat.S_IWOTH, folder):
        return
    found = folder.stat()
    try:
        if found.st_gid != POD_GROUP:
            os.chown(folder, -1, POD_GROUP)
        folder.chmod(stat.S_IMODE(found.st_mode) | stat.S_ISGID | stat.S_IRWXG)
    except PermissionError as error:
        quoted = shlex.quote(str(folder))
        raise ConfigError(
            f"{folder}: Pods, of group {POD_GROUP}, can't write there, and you may not change that; have root run "
            f"chgrp {POD_GROUP} {quoted} && chmod g+rwxs {quoted}"
        ) from error


def _pods_may(do: int, path: Path) -> bool:
    """Whether Pods may do there what a bit of others' in its mode is for."""
    found = path.stat()
    bits = do | (do << 6 if found.st_uid == POD_USER else 0) | (do << 3 if found.st_gid == POD_GROUP else 0)
    return bool(found.st_mode & bits)


def _old_ending(pretraining: Program) -> Path | None:
    """The outcome that an earlier start left and the evaluation, which looks at once, would take for the new one's.

    That the run is done stays true unless it is to be longer now: where nothing is left to do no Pod may say it again.

    Raises:
        ConfigError: the run's outcome or checkpoints can't be read, or these are not in order.
    """
    run, recipe = RunDirectory(pretraining.output), pretraining.recipe
    assert recipe
    try:
        is_old = run.ending == "failed" or (run.ending == "done" and run.step < recipe.last_step)
    except CheckpointError as error:
        raise ConfigError(f"{pretraining.name}: {error}") from error
    except OSError as error:
        told = f"{pretraining.name}: {error.filename or run.path}: can't be read ({error.strerror})"
        raise ConfigError(f"{told}; mend that and launch again") from error
    return run.outcome_file if is_old else None


def _object_name(output: Path) -> str:
    """What the objects of an output are called after: its name, as far as Kubernetes takes it, and a hash of its path.

    Runs of one name in different folders have different objects, and a run has the same ones at every launch. Of 10,000
    nodes each has a host name with -pretrain-node-0-N; JobSet wants -abcde behind it to be within 63 letters too.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", output.name.lower()).strip("-")
    if not readable[:1].isalpha():
        readable = f"run-{readable}"
    return f"{readable[:27].strip('-')}-{fingerprint(output)}"


def _submit(command: list[str], once_more: str, training: str, old: Path | None) -> None:
    """Submit, with an old outcome out of the way; it stays where no training begins: refused, or there and the same.

    Args:
        command: of kubectl.
        once_more: the one that deletes what is there.
        training: the object that trains, as kubectl calls it; others may have its name, and stay when it is deleted.
        old: the outcome.

    Raises:
        ConfigError: the cluster refused, such as another job of a name that is there; or the outcome can't be put back.
    """
    content, begun = b"", False
    if old:
        with checks.writing("remove it, for it tells of an earlier start"):
            content = old.read_bytes()
            old.unlink()
    try:
        said = _apply(command, once_more)
        begun = f"{training} unchanged" not in said
    finally:
        if old and not begun:
            line = content.decode(errors="replace").strip()
            with checks.writing(f"no training has begun, so write there again what it held: {line}"):
                if not exists(old):
                    write_atomically(old, content)
    print(said, end="")


def _apply(command: list[str], once_more: str) -> str:
    """What kubectl says; jobs that are there already and the same are left alone, whether they run or have ended.

    Raises:
        ConfigError: the cluster refused.
    """
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")  # noqa: S603  our own words
    if done.returncode:
        said = done.stderr.strip()
        advice = f"; to delete what is there, even if it runs, and make it anew: {once_more}"
        raise ConfigError(f"{shlex.join(command)}: {said}{advice if 'field is immutable' in said else ''}")
    return done.stdout
