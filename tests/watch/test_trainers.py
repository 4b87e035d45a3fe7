"""MsprobeCallback in real trainers: Hugging Face's, Lightning's, accelerate's loop."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from msprobe.pytorch import Monitor, MsprobeCallback, PrecisionDebugger
from msprobe.watch.reading.run import Run


def curve(path, kind, name, statistic="norm"):
    run = Run(path)
    steps, values = run.ranks[0].curve(kind, name, statistic)
    run.close()
    return steps.tolist(), values


def small_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def train_with_hugging_face(tmp_path, callbacks, accumulate=1):
    from transformers import Trainer, TrainingArguments

    generator = torch.Generator().manual_seed(1)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(64, (16, 8), generator=generator)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=2, gradient_accumulation_steps=accumulate,
        max_steps=6, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, logging_steps=1, seed=3,
    )  # fmt: skip
    model = small_llama()
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def test_hugging_face_trainer_is_watched_and_trains_the_same(tmp_path):
    losses, bare = train_with_hugging_face(tmp_path, [])
    callback = MsprobeCallback({"dump_path": str(tmp_path / "watch"), "targets": "all"})
    watched_losses, watched = train_with_hugging_face(tmp_path, [callback])
    assert watched_losses == losses
    assert all(torch.equal(one, other) for one, other in zip(bare, watched))
    steps, stored = curve(tmp_path / "watch", "scalar", "loss", "value")
    assert steps == list(range(6))
    assert [round(float(loss), 4) for loss in stored] == [round(loss, 4) for loss in losses]
    assert curve(tmp_path / "watch", "grad", "lm_head.weight")[0] == list(range(6))
    assert curve(tmp_path / "watch", "output", "model.layers.1.mlp")[0] == list(range(6))
    assert callback.monitor is None


def test_hugging_face_trainer_with_accumulation_counts_optimizer_steps(tmp_path):
    train_with_hugging_face(tmp_path, [MsprobeCallback({"dump_path": str(tmp_path / "watch")})], accumulate=2)
    assert curve(tmp_path / "watch", "scalar", "loss", "value")[0] == list(range(6))


def test_hugging_face_trainer_runs_the_debugger_at_chosen_steps(tmp_path):
    debugger = {"dump_path": str(tmp_path / "dump"), "task": "statistics", "level": "L0", "step": [2]}
    train_with_hugging_face(tmp_path, [MsprobeCallback(debugger=debugger)])
    PrecisionDebugger._current._lifecycle.close()
    PrecisionDebugger._current = None
    assert [path.name for path in (tmp_path / "dump").glob("step*")] == ["step2"]
    assert not list(tmp_path.glob("watch*"))


def train_with_lightning(tmp_path, callbacks):
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 1))

        def training_step(self, batch, index):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    torch.manual_seed(0)
    module = Net()
    data = DataLoader(TensorDataset(torch.randn(24, 8, generator=torch.Generator().manual_seed(1))), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=callbacks, default_root_dir=str(tmp_path), gradient_clip_val=0.1,
    )  # fmt: skip
    trainer.fit(module, data)
    return [parameter.detach().clone() for parameter in module.parameters()]


def test_lightning_trainer_is_watched_and_trains_the_same(tmp_path):
    bare = train_with_lightning(tmp_path, [])
    config = {"dump_path": str(tmp_path / "watch"), "targets": "all"}
    watched = train_with_lightning(tmp_path, [MsprobeCallback(config)])
    assert all(torch.equal(one, other) for one, other in zip(bare, watched))
    steps, losses = curve(tmp_path / "watch", "scalar", "loss", "value")
    assert steps == list(range(12))
    assert losses[-1] < losses[0]
    before = curve(tmp_path / "watch", "grad_before_clip", "net.0.weight")[1]
    after = curve(tmp_path / "watch", "grad", "net.0.weight")[1]
    assert (after <= before).all()
    assert (after < before).any()


def test_a_loop_of_accelerate_is_watched(tmp_path):
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path)})
    for (batch,) in data:
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            monitor.step(loss=loss)
    monitor.close()
    assert curve(tmp_path, "grad", "weight")[0] == [0, 1, 2, 3]
    assert curve(tmp_path, "scalar", "lr", "value")[0] == [0, 1, 2, 3]
