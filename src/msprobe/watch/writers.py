"""Live writers: TensorBoard, Weights & Biases and MLflow, each imported only when the configuration asks for it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional, Protocol

from msprobe.collect import notices
from msprobe.config.errors import ConfigError, Problem
from msprobe.watch.settings import WatchSettings


class Writer(Protocol):
    def write(self, step: int, tags: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoardWriter:
    """Writes event files with TensorBoard's own package, without a framework."""

    def __init__(self, folder: Path) -> None:
        events = _require("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._event = _require("tensorboard.compat.proto.event_pb2", "tensorboard").Event
        self._summary = _require("tensorboard.compat.proto.summary_pb2", "tensorboard").Summary
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._writer = events.EventFileWriter(str(folder))

    def write(self, step: int, tags: Mapping[str, float], time: Optional[float] = None) -> None:
        from time import time as now

        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in tags.items()]
        summary = self._summary(value=values)
        self._writer.add_event(self._event(step=step, wall_time=now() if time is None else time, summary=summary))

    def close(self) -> None:
        self._writer.close()


class WandbWriter:
    """Writes to the run that the script has started, or starts one with the options of the configuration."""

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        self._wandb = _require("wandb", "wandb")
        self._own = self._wandb.run is None
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._run = self._wandb.init(**{"dir": str(folder), **options}) if self._own else self._wandb.run

    def write(self, step: int, tags: Mapping[str, float]) -> None:
        self._run.log({**tags, "step": step})

    def close(self) -> None:
        if self._own:
            self._run.finish()


class MlflowWriter:
    """Writes to the active run, or starts one."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._mlflow = _require("mlflow", "mlflow")
        given = dict(options)
        uri, experiment = given.pop("tracking_uri", None), given.pop("experiment_name", None)
        if uri is not None:
            self._mlflow.set_tracking_uri(uri)
        if experiment is not None:
            self._mlflow.set_experiment(experiment)
        self._own = self._mlflow.active_run() is None
        self._run = self._mlflow.start_run(**given) if self._own else self._mlflow.active_run()

    def write(self, step: int, tags: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(tags), step=step, run_id=self._run.info.run_id)

    def close(self) -> None:
        if self._own:
            self._mlflow.end_run()


class LiveWriters:
    """All writers of a run. A writer that fails is switched off, and training continues."""

    def __init__(self, settings: WatchSettings, rank: Optional[int]) -> None:
        self._writers: dict[str, Writer] = {}
        where = settings.dump_path
        for name, options in settings.writers.items():
            if name == "tensorboard":
                folder = Path(options.get("dir", where / "tensorboard"))
                self._writers[name] = TensorBoardWriter(folder / ("rank" if rank is None else f"rank{rank}"))
            elif name == "wandb":
                self._writers[name] = WandbWriter(options, where)
            else:
                self._writers[name] = MlflowWriter(options)

    def __bool__(self) -> bool:
        return bool(self._writers)

    def write(self, step: int, tags: Mapping[str, float]) -> None:
        for name, writer in list(self._writers.items()):
            try:
                writer.write(step, tags)
            except Exception as error:
                del self._writers[name]
                notices.warn(f"the writer {name} failed at step {step} and is now off: {error}")

    def close(self) -> None:
        for name, writer in self._writers.items():
            try:
                writer.close()
            except Exception as error:
                notices.warn(f"the writer {name} could not be closed: {error}")
        self._writers.clear()


def _require(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        expected = f"install it: pip install {package}"
        raise ConfigError("the monitor's config", [Problem(f"writers.{package}", str(error), expected)]) from None
