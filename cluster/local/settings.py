"""How this machine is to be used: a section of the cluster's settings."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.places import check_rank_per_gpu


@dataclass(frozen=True)
class LocalSettings:
    """[local].

    Attributes:
        gpus: to train and evaluate on; 0 for the CPU.
        ranks: processes that train; 0 for one per GPU, or one.
        threads: of each process; 0 shares the machine's cores among them.
    """

    gpus: int = 0
    ranks: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        if min(self.gpus, self.ranks, self.threads) < 0:
            raise ValueError("gpus, ranks and threads must be 0 or more")
        check_rank_per_gpu("ranks", self.ranks, self.gpus)

    @property
    def processes(self) -> int:
        """Processes that train."""
        return self.ranks or self.gpus or 1
