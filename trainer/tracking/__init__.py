"""A run's copy in MLflow. The only importer of mlflow in the trainer.

The files of the run directory are the truth, and this package carries them over: metrics.jsonl line by line, parameters
and lineage once, evaluations as child runs. It keeps in mlflow.json how far it has come, so it goes on after any
interruption, and training never waits for it: a thread of the first rank does it while a run goes on, and

    python -m trainer.tracking sync RUN

does it later, for a run on a node without network or a server that was away.

Without MLFLOW_TRACKING_URI the store is an SQLite file beside the run directory, RUN/../mlflow.db, without a server:
    mlflow ui --backend-store-uri sqlite:///runs/mlflow.db
"""

from trainer.tracking.evaluations import Store, WaitingError, evaluation_store, log_evaluation
from trainer.tracking.runs import RefusedError, prepare, status_of, sync
from trainer.tracking.store import LostRunError
from trainer.tracking.tracker import Tracker

__all__ = [
    "LostRunError", "RefusedError", "Store", "Tracker", "WaitingError", "evaluation_store", "log_evaluation", "prepare",
    "status_of", "sync",
]  # fmt: skip
