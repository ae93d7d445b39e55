"""Before a start: see that all ranks were given the same, and find the same."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preprocessing.schema import checksum
from preprocessing.storage_errors import UnavailableError, is_passing, reason, unavailable
from trainer.config import Recipe, to_toml
from trainer.corpus import Corpus
from trainer.initial_model import find_given
from trainer.lineage import environment, unlike
from trainer.loading import LoaderError
from trainer.run_directory import RunDirectory
from trainer.settings import ConfigError
from trainer.world import World

_PATIENCE = 90  # seconds: for up to a minute NFS takes a file that another node has made for missing


def check_agreement(world: World, recipe: Recipe, configs: Sequence[dict[str, Any]], shards: Corpus) -> None:
    """See that all ranks have the same code and libraries, and were given the same: nodes may have their own of each.

    Under NCCL ranks meet here for the first time, so none takes the run while another may still find a mistake.

    Raises:
        ConfigError: on every rank, one has or was given something else than the first.
    """
    given = {"shards": shards.manifest_blake2b, "recipe": to_toml(recipe), "deepspeed_config": json.dumps(configs)}
    (first, firsts_own, _), *others = world.gather((given, environment(), socket.gethostname()))
    for rank, (other, own, host) in enumerate(others, start=1):
        if apart := unlike(own, firsts_own):
            raise ConfigError(
                f"rank {rank} on {host} has not what rank 0 has: {'; '.join(apart)}. Let all nodes have the same code "
                "and libraries, best in one environment that all of them see"
            )
        if differing := [name for name in given if other[name] != first[name]]:
            raise _apart(rank, " and ".join(differing))


def check_initial_weights(world: World, init_from: Path) -> dict[str, str]:
    """See that all ranks begin with the same weights.

    Returns:
        What RUN/initial_weights.json tells of them.

    Raises:
        ConfigError: on every rank, one was given others than the first, of which DeepSpeed would give it some; or a
            checkpoint that is damaged.
        LoaderError: on every rank, the storage of one fails.
    """
    mine: dict[str, str] | ConfigError | UnavailableError
    try:
        mine = find_given(init_from).verify()
    except (ConfigError, UnavailableError) as error:
        mine = error
    found = world.gather(mine)
    for rank, told in enumerate(found):
        if isinstance(told, ConfigError):
            raise ConfigError(f"rank {rank}: {told}")
        if isinstance(told, UnavailableError):
            raise LoaderError(f"rank {rank}: {told}")
        if told["blake2b"] != found[0]["blake2b"]:
            raise _apart(rank, "initial weights")
    first: dict[str, str] = found[0]
    return first


def check_is_shared(run: RunDirectory, config_blake2b: str, world: World) -> None:
    """See that all ranks find what the first one has just written into the run directory.

    Args:
        run: that of this rank's node.
        config_blake2b: what write_run returned to the first rank.
        world: all ranks.

    Raises:
        ConfigError: on every rank, some don't: the directory is on a disk of each node's own.
        LoaderError: on every rank, the storage of one fails.
    """
    mine: str | UnavailableError | None
    try:
        mine = None if _is_seen(run.config, config_blake2b) else socket.gethostname()
    except UnavailableError as error:
        mine = error
    found = world.gather(mine)
    for rank, told in enumerate(found):
        if isinstance(told, UnavailableError):
            raise LoaderError(f"rank {rank}: {told}")
    if apart := sorted({host for host in found if host}):
        raise ConfigError(
            f"{run.path}: {', '.join(apart)} can't read what the first rank wrote there; take an --output on a file "
            "system that all nodes share"
        )


def _is_seen(file: Path, blake2b: str) -> bool:
    """Whether a file with this checksum is there, or comes in time.

    Raises:
        UnavailableError: it can't be read, at the last.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        failure: OSError | None = None
        try:
            if checksum(file) == blake2b:  # opened: NFS then looks what is new
                return True
        except OSError as error:
            failure = error
        if time.monotonic() > deadline:
            if is_passing(failure):
                raise unavailable(file, reason(failure)) from failure
            return False
        time.sleep(0.5)


def _apart(rank: int, what: str) -> ConfigError:
    return ConfigError(
        f"rank {rank} was given other {what} than rank 0: see that all nodes have the same files under these names, "
        "and get the same settings"
    )
