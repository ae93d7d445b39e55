"""What the nodes of a cluster see: file systems that they share, and what an image shows of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from cluster.paths import current_folder, is_seen
from cluster.slurm.settings import Container
from preprocessing.status import sees
from trainer.settings import ConfigError

# File systems of one machine; what is not here may be a network's.
_OF_ONE_MACHINE = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "rootfs", "tmpfs",
                   "vfat", "xfs", "zfs"}  # fmt: skip


def check_shared(paths: Iterable[Path], vouched: Sequence[Path]) -> None:
    """See that all nodes see the same files, and warn of links to them that the nodes may lack.

    Args:
        paths: what the jobs write and read.
        vouched: folders that the user says are shared.

    Raises:
        ConfigError: a path lies on a disk of this machine.
    """
    paths = list(paths)
    parts = dict.fromkeys(part for path in paths for part in (path, *path.parents))
    for link in filter(os.path.islink, parts):  # is_symlink() raises where a folder on the way can't be entered
        kind, mount = file_system(link.parent)
        if kind in _OF_ONE_MACHINE and not any(link.is_relative_to(folder) for folder in vouched):
            print(
                f"warning: {link}: a link on {mount} ({kind}), a file system of this machine alone: the nodes must "
                f"have it too; else give what it leads to, {link.resolve()}",
                file=sys.stderr,
            )
    for path in paths:
        kind, mount = file_system(path)
        if kind in _OF_ONE_MACHINE and not any(path.resolve().is_relative_to(folder.resolve()) for folder in vouched):
            which = " (the current folder)" if path == current_folder() else ""
            raise ConfigError(
                f"{path}{which}: lies on {mount} ({kind}), a file system of this machine alone; take a folder that all "
                f"nodes see or, if they do see this one, say so by slurm.shared='[\"{path.parent}\"]'"
            )


def check_interpreter(python: Path, vouched: Sequence[Path]) -> None:
    """Warn of an interpreter that the nodes may lack: it looks as if it were this machine's alone.

    A warning, since the nodes may have the same on disks of their own.

    Args:
        python: a path; of a virtual environment's interpreter, a link, its folder counts.
        vouched: folders that the user says are shared.
    """
    kind, mount = file_system(python.parent)
    if kind in _OF_ONE_MACHINE and not any(python.is_relative_to(folder) for folder in vouched):
        print(
            f"warning: {python}: the jobs' interpreter lies on {mount} ({kind}), a file system of this machine alone: "
            "the nodes must have it too; else launch by one that they see, or name it by slurm.python",
            file=sys.stderr,
        )


def file_system(path: Path) -> tuple[str, str]:
    """The kind of file system that a path lies on, or will lie on, and where that is mounted."""
    path = path.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    if not mounts:
        return "", ""
    # Of several at one place the last hides the others.
    found = max(enumerate(mounts), key=lambda item: (len(Path(item[1].mountpoint).parts), item[0]))[1]
    return found.fstype, found.mountpoint


def check_container(container: Container, paths: Iterable[Path]) -> None:
    """See that an image that is a file is there, and that the program will see its files; warn of one that is none.

    Raises:
        ConfigError: it is not, or it won't.
        UnavailableError: nobody can tell now whether it is.
    """
    if container.image_file and not sees(container.image_file):
        raise ConfigError(
            f"slurm.container.image: {container.image_file}: no such file; docs/cluster.md says how to make it"
        )
    for path in paths if container.runtime else ():
        if not is_seen(path, container.mounts):
            raise ConfigError(f"{path}: is not within the image; add its folder to slurm.container.mounts")
    if container.runtime == "pyxis" and not container.image_file:
        print(
            f"warning: slurm.container.image {container.image}: pyxis fetches it anew for every step, and the last one "
            "must end before the time limit; make a file of it: enroot import -o IMAGE.sqsh docker://...",
            file=sys.stderr,
        )
