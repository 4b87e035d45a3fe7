"""Live writers with the real packages: Weights & Biases offline, MLflow into local files."""

from __future__ import annotations

import pytest
import torch

from msprobe.pytorch import Monitor

pytestmark = pytest.mark.slow


def train(config):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(model, optimizer, config)
    for _ in range(5):
        loss = model(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss)
    monitor.close()


def test_weights_and_biases_gets_every_step(tmp_path):
    pytest.importorskip("wandb")
    train({"dump_path": str(tmp_path), "writers": {"wandb": {"mode": "offline", "project": "p"}}})
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert b"grad/weight/norm" in content
    assert b"loss" in content


def test_mlflow_gets_every_step(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    train({"dump_path": str(tmp_path), "writers": {"mlflow": {"tracking_uri": uri, "run_name": "r"}}})
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs(["0"])
    history = client.get_metric_history(run.info.run_id, "grad/weight/norm")
    assert [metric.step for metric in history] == list(range(5))
