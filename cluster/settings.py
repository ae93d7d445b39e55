"""What to run, and the places to run it: a TOML file and section.key=value.

Each place's section is declared beside what starts jobs there; this module only puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.k8s.settings import KubernetesSettings
from cluster.local.settings import LocalSettings
from cluster.slurm.settings import SlurmSettings
from trainer.settings import parse, read_toml


@dataclass(frozen=True)
class ProgramSettings:
    """[preprocess], [pretrain] and [eval].

    Attributes:
        arguments: as on the program's own command line; those after ``--`` are added.
    """

    arguments: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ClusterSettings:
    """All sections."""

    preprocess: ProgramSettings = field(default_factory=ProgramSettings)
    pretrain: ProgramSettings = field(default_factory=ProgramSettings)
    eval: ProgramSettings = field(default_factory=ProgramSettings)
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    local: LocalSettings = field(default_factory=LocalSettings)


def load_settings(path: Path | None, overrides: Sequence[str] = ()) -> ClusterSettings:
    """Read a settings file, if there is one, and apply overrides such as ``slurm.pretrain.nodes=8``.

    Raises:
        ConfigError: no such file, not TOML, an unknown key, a wrong type or an impossible value.
    """
    raw = read_toml(path, "cluster's settings") if path else {}
    return parse(raw, ClusterSettings, str(path or "settings"), overrides)
