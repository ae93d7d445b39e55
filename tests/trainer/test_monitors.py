"""What DeepSpeed's configuration has figures reported to: real files, and TensorBoard's own reader of them."""

import logging
from importlib.util import find_spec
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.files import read_lines
from trainer.monitors import Monitors, check_installed
from trainer.run_directory import RunDirectory
from trainer.settings import ConfigError


def csv_files(folder: Path):
    return {"csv_monitor": {"enabled": True, "output_path": str(folder), "job_name": "job"}}


def tensorboard(folder: Path):
    return {"tensorboard": {"enabled": True, "output_path": str(folder), "job_name": "job"}}


def in_csv(folder: Path, name: str) -> list[tuple[int, float]]:
    rows = [line.split(",") for line in (folder / "job" / f"{name}.csv").read_text().splitlines()]
    return [(int(samples), float(value)) for samples, value in rows if samples.isdigit()]


def in_tensorboard(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "job"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_every_figure_is_reported_and_goes_on_where_the_run_does(call, deepspeed_config, tmp_path):
    config = deepspeed_config(**csv_files(tmp_path / "csv"), **tensorboard(tmp_path / "tb"))
    for steps in (4, 8):
        assert call(f"train.max_steps={steps}", deepspeed_config=config)[0] == [0]
    run = RunDirectory(tmp_path / "run")
    figures = {f"Train/{name}": [(line["samples"], line[name]) for line in read_lines(run.metrics)]
               for name in ("loss", "mlm_accuracy", "grad_norm", "learning_rate")}  # fmt: skip
    lines = list(read_lines(run.validation_metrics))
    assert len(lines) > 1
    figures["Validation/perplexity"] = [(8 * line["step"], line["perplexity"]) for line in lines]
    figures["Train/Samples/lr"] = figures["Train/learning_rate"]  # DeepSpeed's own
    for name, points in figures.items():
        assert in_csv(tmp_path / "csv", name.replace("/", "_")) == points
        assert in_tensorboard(tmp_path / "tb", name) == [(samples, pytest.approx(value)) for samples, value in points]
    assert [samples for samples, _ in figures["Train/loss"]] == [8 * step for step in range(1, 9)]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed")
def test_what_is_not_installed_is_told_before_anything_is_written(call, deepspeed_config, tmp_path, world):
    codes, log = call(world=world, deepspeed_config=deepspeed_config(wandb={"enabled": True}))
    assert codes == [2] * world
    (error,) = [line for line in log.splitlines() if line.startswith("error: ")]
    assert error == "error: DeepSpeed's configuration: wandb needs wandb, which is not installed here"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("off", [False, "false", "off", 0])  # to DeepSpeed these are one
def test_what_is_not_reported_to_need_not_be_installed(off):
    check_installed({"wandb": {"enabled": off}, "comet": {}, "zero_optimization": {"stage": 2}})


@pytest.mark.parametrize("on", [True, "true", "on", 1])
@pytest.mark.skipif(find_spec("comet_ml") is not None, reason="comet_ml is installed")
def test_what_is_reported_to_by_deepspeed_s_own_reading_has_to_be_installed(on):
    with pytest.raises(ConfigError, match="comet needs comet_ml, which is not installed here"):
        check_installed({"comet": {"enabled": on}})


@pytest.mark.parametrize("world", [1, 2])
def test_what_does_not_start_is_a_mistake_in_a_new_run(call, deepspeed_config, tmp_path, world):
    """And what was written before that is no riddle to the next start."""
    (tmp_path / "file").touch()
    config = deepspeed_config(**csv_files(tmp_path / "file" / "folder"))
    codes, log = call(world=world, deepspeed_config=config)
    assert codes == [2] * world
    (error,) = [line for line in log.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: DeepSpeed's configuration: csv_monitor does not start (")
    assert "Not a directory" in error
    assert "Traceback" not in log
    assert RunDirectory(tmp_path / "run").ending == "failed"
    codes, log = call("schedule.peak=0.5")
    assert codes == [2]
    assert "choose another --output, or remove this one, in which nothing has been trained" in log
    assert call()[0] == [0]


def test_what_does_not_start_is_left_out_of_a_run_that_goes_on(call, deepspeed_config, tmp_path):
    (tmp_path / "tb").touch()
    assert call("train.max_steps=4")[0] == [0]
    config = deepspeed_config(**tensorboard(tmp_path / "tb"), **csv_files(tmp_path / "csv"))
    codes, log = call(deepspeed_config=config)
    assert codes == [0]
    (told,) = [line for line in log.splitlines() if line.startswith("tensorboard does not start (")]
    assert told.endswith("): this start reports nothing to it")
    assert [samples for samples, _ in in_csv(tmp_path / "csv", "Train_loss")] == [40, 48, 56, 64]


@pytest.mark.parametrize("name", ["Train_loss", "Train_Samples_lr"])  # DeepSpeed reports the latter amid an update
def test_a_disk_that_is_full_ends_no_run(call, deepspeed_config, tmp_path, name):
    folder = tmp_path / "csv" / "job"
    folder.mkdir(parents=True)
    (folder / f"{name}.csv").symlink_to("/dev/full")
    config = deepspeed_config(**csv_files(tmp_path / "csv"), **tensorboard(tmp_path / "tb"))
    codes, log = call(deepspeed_config=config)
    assert codes == [0]
    (told,) = [line for line in log.splitlines() if line.startswith("csv_monitor takes no figures (")]
    assert told.endswith("No space left on device): this start reports no more to it")
    assert [samples for samples, _ in in_tensorboard(tmp_path / "tb", "Train/loss")] == [8 * s for s in range(1, 9)]


class Service:
    """One that fails."""

    def __init__(self, error):
        self._error = error

    def write_events(self, events):
        raise self._error


@pytest.mark.parametrize(
    ("error", "told"), [(TimeoutError(), "TimeoutError"), (OSError("no answer\n  from here"), "no answer from here")]
)
def test_an_error_of_many_words_or_none_is_told_in_a_line_and_once(caplog, error, told):
    monitors = Monitors()
    monitors._monitors["comet"] = Service(error)
    for samples in (8, 16):
        monitors.report(samples, {"loss": 1.0}, "Train")
    assert caplog.messages == [f"comet takes no figures ({told}): this start reports no more to it"]
    assert not monitors.enabled


def test_without_any_nothing_is_reported(caplog):
    monitors = Monitors()
    monitors.start({"csv_monitor": {"enabled": False}}, is_new=True)
    assert not monitors.enabled
    with caplog.at_level(logging.INFO):
        monitors.report(8, {"loss": 1.0}, "Train")
    assert not caplog.messages
