"""The store of MLflow that a run goes to, and how far it has got there."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, unquote

import pydantic

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a training reports to its user and to nobody else
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # among the lines of a training
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # with the password that it may have

from mlflow.entities import LifecycleStage
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.tracking import MlflowClient

from preprocessing.locks import holder, lock_file, refuse_link, try_lock, wait_and_lock
from preprocessing.status import exists, is_dir
from trainer.credentials import without_credentials
from trainer.files import write_atomically
from trainer.run_directory import RunDirectory
from trainer.settings import first_problem

_log = logging.getLogger(__name__)

# MLflow's own patience with a server that is away is minutes for each request. Nothing is lost by less: what did not
# arrive is sent again. It looks at these variables before each one.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"  # seconds
_GIVEN = os.environ.get(_TIMEOUT)  # by the user
_OF_UPLOADS = "600"
os.environ.setdefault(_TIMEOUT, "20")

Whole = Annotated[int, pydantic.Field(ge=0, lt=1 << 63)]  # a step, or a time: as the tables of MLflow have room for

_SOON = 10.0  # seconds that another writer is waited for without a word
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # MLflow's page opens on trainings, not on chats

for _noisy in ("mlflow", "alembic"):  # what a new store's tables are called, and that a monitor has begun
    logging.getLogger(_noisy).setLevel(logging.WARNING)
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # a traceback of every error, which is raised too
# A monitor that a store which is away ends; with the store's URI, and the password that it may have.
logging.getLogger("mlflow.system_metrics.system_metrics_monitor").setLevel(logging.CRITICAL)
# At every look what each GPU does not tell, such as its utilization where MIG divides it, for as long as a run trains.
logging.getLogger("mlflow.system_metrics.metrics.gpu_monitor").setLevel(logging.CRITICAL)
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # each try of a server that is away, maybe for days


class LostRunError(RuntimeError):
    """Which run of MLflow it is nobody knows any more, or MLflow has it no more. The message says what to do."""


@dataclass
class Cursor:
    """How far MLflow has got with a training; kept in mlflow.json of the run directory."""

    tracking_uri: str
    experiment: str
    run_id: str  # empty until the store was reached for the first time
    steps: dict[str, int]  # file -> last step carried over
    described: bool = False  # whether the parameters are there
    directory: str = ""  # of the run, as it was found last
    key: str = ""  # a tag of the MLflow run, by which one is found again whose creation was never confirmed


_CURSOR = pydantic.TypeAdapter(Cursor)


def read_cursor(run: RunDirectory) -> Cursor:
    """Read mlflow.json.

    Raises:
        ValueError: it is damaged.
    """
    return _CURSOR.validate_json(run.tracking.read_bytes(), strict=True)


def write_cursor(run: RunDirectory, cursor: Cursor) -> None:
    """Write mlflow.json."""
    write_atomically(run.tracking, json.dumps(asdict(cursor), indent=2) + "\n")


def default_tracking_uri(run: Path) -> str:
    """The one that was chosen, or an SQLite store beside the run directory."""
    return chosen_tracking_uri() or _uri_of(run.resolve().parent / "mlflow.db")


def chosen_tracking_uri() -> str | None:
    """MLFLOW_TRACKING_URI; an SQLite store's path is made whole, since a run stays in it wherever commands start."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    database = database_of(given)
    if database is None:
        return given or None
    _, mark, query = given.partition("?")
    return f"{_uri_of(database.resolve())}{mark}{query}"


def tell_of_another_store(run: RunDirectory, cursor: Cursor) -> None:
    """Warn where MLFLOW_TRACKING_URI names another store than the one that a run is in and stays in."""
    chosen = chosen_tracking_uri()
    if cursor.run_id and chosen not in (None, cursor.tracking_uri):
        _log.warning(
            "MLFLOW_TRACKING_URI is %s, but the run stays in %s, where it was first; delete %s to have it carried over "
            "to the other",
            *(without_credentials(chosen), without_credentials(cursor.tracking_uri), run.tracking),
        )


def experiment_id(client: MlflowClient, name: str, tracking_uri: str) -> str:
    """The id of an experiment, which is made where there is none.

    Raises:
        LostRunError: it was deleted there.
    """
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == LifecycleStage.DELETED:
        where = without_credentials(tracking_uri)
        raise LostRunError(f"{where}: experiment {name!r} was deleted there; restore it, or set tracking.experiment")
    if found is not None:
        return str(found.experiment_id)
    # Without a location MLflow would put the artifacts of an SQLite store into the current directory.
    database = database_of(tracking_uri)
    location = (database.parent / "mlartifacts").resolve().as_uri() if database else None
    return str(client.create_experiment(name, artifact_location=location, tags=_KIND))


def place_of(run: RunDirectory) -> str:
    """Where a run directory lies, as its cursor has it."""
    return str(run.path.resolve())


def check_store(run: RunDirectory, cursor: Cursor) -> None:
    """See that a server that a run directory names was named here: it gets files, and this user's credentials.

    Raises:
        LostRunError: the directory has come from elsewhere, maybe from others, and MLFLOW_TRACKING_URI names no such.
    """
    chosen = chosen_tracking_uri()
    uri = cursor.tracking_uri if cursor.run_id else chosen or cursor.tracking_uri
    is_local = uri.startswith(("sqlite:", "file:", "/"))
    if is_local or cursor.directory == place_of(run) or uri.rstrip("/") == (chosen or "").rstrip("/"):
        return
    raise LostRunError(
        f"{run.tracking} names the server {without_credentials(cursor.tracking_uri)}, but has come from elsewhere; "
        "set MLFLOW_TRACKING_URI to it if it is yours, or delete the file"
    )


def database_of(tracking_uri: str) -> Path | None:
    """The file of an SQLite store; None for another kind."""
    path = tracking_uri.removeprefix("sqlite:///")
    return Path(unquote(path.partition("?")[0])) if path != tracking_uri else None


def _uri_of(database: Path) -> str:
    """The URI of an SQLite store. SQLAlchemy reads the path in it up to a ``?``, and ``%25`` as ``%``.

    Of a path with such marks the slashes are quoted too, or MLflow would make the folders that the URI seems to name.
    """
    path = str(database.absolute())
    return f"sqlite:////{quote(path[1:], safe='') if {'%', '?'} & set(path) else path[1:]}"


def is_refusal(error: MlflowException) -> bool:
    """Whether a store that is there does not take what it was given: trying again is in vain."""
    return bool(error.error_code == ErrorCode.Name(INVALID_PARAMETER_VALUE))


def is_lost(tracking_uri: str, run_id: str) -> bool:
    """Whether a store has no such run any more.

    Raises:
        Exception: MLflow's, its database's or its HTTP client's, of a store that is away.
    """
    try:
        return bool(MlflowClient(tracking_uri).get_run(run_id).info.lifecycle_stage == LifecycleStage.DELETED)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
            raise
        return True


@contextlib.contextmanager
def one_writer(tracking_uri: str, run: Path) -> Iterator[None]:
    """Let no other process, on this host or another, carry over to the same SQLite store, or the same run to a server.

    Where the file system has no locks there is none: SQLite has its own between the processes of one host.

    Raises:
        OSError: the folder of an SQLite store is not there, or the lock can't be taken.
    """
    database = database_of(tracking_uri)
    if database is not None and not is_dir(database.parent):
        raise OSError(
            f"{database.parent} is not there; mount it; or, where it has moved, make a link there to its new place, or "
            "delete the run's mlflow.json to have everything carried over to another store"
        )
    path = run / "mlflow.lock" if database is None else database.with_name(f"{database.name}.lock")
    with lock_file(path) as file:
        if wait_and_lock(file, _SOON, lambda _: None) is False:
            _log.warning("%s: %s has held it for %d s; waiting for that", path, holder(file), _SOON)
            try_lock(file.fileno(), wait=True)
        if database is not None and not exists(database):
            _create(database)
        yield


@contextlib.contextmanager
def time_for_uploads() -> Iterator[None]:
    """Wait longer for a server: it answers once gigabytes lie where it keeps artifacts, maybe in a cloud's storage."""
    before = os.environ[_TIMEOUT]
    os.environ[_TIMEOUT] = _GIVEN or _OF_UPLOADS
    try:
        yield
    finally:
        os.environ[_TIMEOUT] = before


def _create(database: Path) -> None:
    """Make an SQLite store that is there whole or not at all: of half its tables MLflow can't make the others."""
    unfinished = database.with_name(f".{database.name}.unfinished")
    # Emptied, not deleted: after a try that found the disk full MLflow keeps its connection to that very file, and
    # would not see another. Of one that was killed SQLite removes the journal.
    refuse_link(unfinished)
    unfinished.write_bytes(b"")
    MlflowClient(_uri_of(unfinished)).search_experiments(max_results=1)
    unfinished.replace(database)


def first_line(error: Exception) -> str:
    """What an error says, on one line and without credentials; of a file's problems, the first and its place."""
    if isinstance(error, pydantic.ValidationError):
        return first_problem(error)
    lines = [line for line in str(error).splitlines() if not line.startswith("(raised as a result of ")]  # SQLAlchemy's
    return without_credentials(lines[0]) if lines else type(error).__name__


def what_failed(error: Exception, tracking_uri: str) -> tuple[str, int]:
    """What to tell of an error of a store, in a line, and a command's exit code: 1 where to try again helps, or 2."""
    told = f"{without_credentials(tracking_uri)}: {first_line(error)}"
    if isinstance(error, ImportError):  # of its database
        return f"{told}; install that, or choose another MLFLOW_TRACKING_URI", 2
    if isinstance(error, MlflowException) and is_refusal(error):
        return told, 2
    return f"{told}; try again later", 1
