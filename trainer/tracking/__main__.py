"""``python -m trainer.tracking sync RUN``."""

from __future__ import annotations

import contextlib
import sys
import tomllib
from collections.abc import Sequence

from preprocessing.command_line import OneLineParser, parse_path
from preprocessing.interruption import end_when_interrupted
from preprocessing.storage_errors import exit_code, is_passing, unavailable
from preprocessing.terminal import in_line, show, tell_error
from trainer.credentials import without_credentials
from trainer.run_directory import RunDirectory
from trainer.tracking import LostRunError, RefusedError, WaitingError, prepare, status_of, sync
from trainer.tracking.store import read_cursor, what_failed


def main(argv: Sequence[str] | None = None) -> int:
    """Carry over; the exit code is 0, 1 where that is to be tried again, or 2 where trying again is in vain."""
    parser = OneLineParser(prog="python -m trainer.tracking", description="Carry a run over to MLflow.")
    parser.add_argument("command", choices=["sync"])
    parser.add_argument("run", type=parse_path, help="a run directory")
    arguments = parser.parse_args(argv)
    run = RunDirectory(arguments.run)
    try:
        experiment = tomllib.loads(run.config.read_text(encoding="utf-8"))["tracking"]["experiment"]
    except (FileNotFoundError, NotADirectoryError):
        tell_error(f"{run.path}: not a run directory (no {run.config.name})")
        return 2
    except OSError as error:
        tell_error(unavailable(run.config, error.strerror) if is_passing(error) else f"{run.config}: {error.strerror}")
        return exit_code(error)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        tell_error(f"{run.config}: damaged ({error})")
        return 2
    try:
        prepare(run, experiment)  # for a run that trained with tracking.enabled=false
        return _carry_over(run)
    except OSError as error:
        tell_error(f"{run.tracking}: can't be read or written ({error.strerror}); try again later")
        return 1


def _carry_over(run: RunDirectory) -> int:
    """Sync, and tell how far MLflow has got, or what is in the way; returns the exit code.

    Raises:
        OSError: the file that names the MLflow run can't be read.
    """
    before = 0
    with contextlib.suppress(ValueError):  # damaged, as sync tells
        before = _steps(run)
    try:
        run_id = sync(run, status_of(run))
    except (LostRunError, RefusedError) as error:
        tell_error(error)
        return 2
    except WaitingError as error:
        tell_error(f"{error}; try again later")
        return 1
    except Exception as error:  # MLflow raises its own, its database's and its HTTP client's
        cursor = read_cursor(run)
        told, code = what_failed(error, cursor.tracking_uri)
        other = ", or name another store by MLFLOW_TRACKING_URI: it is in none yet"
        tell_error(told if cursor.run_id or code == 2 else told + other)
        return code
    now = _steps(run)
    added = f", up to {before} as before" if 0 < before < now else " as before" if before == now else ""
    steps = f"steps up to {now}{added}" if now else "no steps yet"
    show(in_line(f"MLflow run {run_id} at {without_credentials(read_cursor(run).tracking_uri)} has {steps}"))
    return 0


def _steps(run: RunDirectory) -> int:
    """How far the MLflow run has got."""
    return read_cursor(run).steps.get(run.metrics.name, 0)


if __name__ == "__main__":
    end_when_interrupted("trainer.tracking: interrupted; the same command goes on")
    sys.exit(main())
