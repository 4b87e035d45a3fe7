"""Dumps of a small model in any layout, computed with numpy: every kind of fault in milliseconds, without processes.

Two blocks `x + down(relu(up(x)))` and a loss; `up` is split by columns, `down` by rows, their sum is an all-reduce.
Data-parallel ranks have their part of the batch, and their gradients of the weights are averaged before the update.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
from written import write_dump

BATCH, WIDTH, WIDE = 8, 6, 12
Array = Any


@dataclass
class Rank:
    """What one rank records; tensors are saved unless only statistics are wanted."""

    directory: Path
    saves: bool
    data: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, Optional[str]] = field(default_factory=dict)
    count: int = 0

    def item(self, array: Array) -> dict[str, Any]:
        array = np.asarray(array, dtype=np.float32)
        wide = array.astype(np.float64)
        item = {
            "type": "torch.Tensor",
            "dtype": "torch.float32",
            "shape": list(array.shape),
            "Max": float(wide.max()),
            "Min": float(wide.min()),
            "Mean": float(wide.mean()),
            "Norm": float(np.sqrt((wide * wide).sum())),
            "requires_grad": True,
        }
        if self.saves:
            folder = self.directory / "dump_tensor_data"
            folder.mkdir(parents=True, exist_ok=True)
            self.count += 1
            np.save(folder / f"{self.count}.npy", array)
            item["data_name"] = f"{self.count}.npy"
        return item

    def call(self, name: str, inputs: list[Array], output: Array, parent: Optional[str], **parameters: Array) -> None:
        record: dict[str, Any] = {
            "input_args": [self.item(one) for one in inputs],
            "input_kwargs": {},
            "output": [self.item(output)],
        }
        if parameters:
            record["parameters"] = {key: self.item(value) for key, value in parameters.items()}
        self.data[name] = record
        self.parents[name] = parent


def weights(layer: int) -> tuple[Array, Array]:
    made = np.random.default_rng(layer + 7)
    return made.normal(size=(WIDTH, WIDE)) / 3, made.normal(size=(WIDE, WIDTH)) / 3


def batch() -> Array:
    return np.random.default_rng(1).normal(size=(BATCH, WIDTH))


def write_run(root: Path, dp: int = 1, tp: int = 1, fault: str = "", saves: bool = True, mesh: bool = True) -> Path:
    """A run of dp x tp ranks; rank = data part * tp + tensor part."""
    world = dp * tp
    ranks = {
        place: Rank(root / "step0" / ("rank" if world == 1 else f"rank{place[0] * tp + place[1]}"), saves)
        for place in itertools.product(range(dp), range(tp))
    }
    x = {place: batch().reshape(dp, -1, WIDTH)[0 if fault == "same data" else place[0]] for place in ranks}
    for layer in range(2):
        x = _block(ranks, x, layer, dp, tp, fault if layer == 1 else "")
    loss = {}
    for place, rank in ranks.items():
        loss[place] = np.mean(x[place] ** 2)
        rank.call("Functional.mse_loss.0.forward", [x[place]], loss[place], None)
    _update(ranks, x, dp, tp, fault)
    for place, rank in ranks.items():
        number = None if world == 1 else place[0] * tp + place[1]
        run: dict[str, Any] = {"msprobe": "0", "world_size": world, "settings": {"precision": "high"}}
        if world > 1 and mesh:
            grid = np.arange(world).reshape(dp, tp).tolist()
            meshes = [{"names": ["dp", "tp"], "ranks": grid, "coordinate": list(place)}]
            run["parallel"] = {"groups": {"default_pg": list(range(world))}, "meshes": meshes}
            if fault == "stored shard":
                stored = {"shape": [WIDE, WIDTH], "mesh": 0, "placements": ["S(0)", "R"]}
                run["parallel"]["parameters"] = {"1.down.weight": stored}
        task = "tensor" if saves else "statistics"
        write_dump(root, rank.data, rank.parents, rank=number, task=task, run=run)
    return root


def _block(ranks: dict[Any, Rank], x: dict[Any, Array], layer: int, dp: int, tp: int, fault: str) -> dict[Any, Array]:
    up, down = weights(layer)
    parts: dict[Any, Array] = {}
    for place, rank in ranks.items():
        part = place[1]
        own_up, own_down = np.split(up, tp, 1)[part], np.split(down, tp, 0)[part]
        if fault == "mis-sliced" and part == 1:
            own_up = np.roll(up, 1, 1)[:, WIDE // tp * part :][:, : WIDE // tp]
        own_down = _spoiled(own_down, place == max(ranks), fault)
        hidden = x[place] @ own_up
        rank.call(
            f"Functional.linear.{2 * layer}.forward", [x[place], own_up], hidden, f"Module.{layer}.up.L.forward.0"
        )
        rank.call(f"Module.{layer}.up.L.forward.0", [x[place]], hidden, f"Module.{layer}.B.forward.0", weight=own_up)
        active = np.maximum(hidden, 0)
        if fault == "one rank" and place == max(ranks):
            active = active * 1.02
        if fault == "a little" and place == max(ranks):
            active = active * 1.01
        rank.call(f"Functional.relu.{layer}.forward", [hidden], active, f"Module.{layer}.B.forward.0")
        if fault == "extra call" and place == max(ranks):
            rank.call("Torch.dropout.0.forward", [active], 1.1 * active, f"Module.{layer}.B.forward.0")
            active = 1.1 * active
        parts[place] = active @ own_down
        name = f"Module.{layer}.down.L.forward.0"
        rank.call(f"Functional.linear.{2 * layer + 1}.forward", [active, own_down], parts[place], name)
    out = {}
    for place, rank in ranks.items():
        total = sum(parts[place[0], one] for one in range(tp))
        if fault == "missing all-reduce":
            total = parts[place]
        elif fault == "reduced twice":
            total = total * tp
        elif fault == "mean for sum":
            total = total / tp
        elif fault == "wrong group":
            total = sum(parts[one, place[1]] for one in range(dp))
        if tp > 1 and fault != "missing all-reduce":
            name = f"Module.{layer}.down.L.forward.0"
            rank.call(f"Distributed.all_reduce.{layer}.forward", [parts[place]], total, name)
        own_down = _spoiled(np.split(down, tp, 0)[place[1]], place == max(ranks), fault)
        relu = rank.data[f"Functional.relu.{layer}.forward"]["output"][0]
        rank.call(f"Module.{layer}.down.L.forward.0", [x[place]], total, f"Module.{layer}.B.forward.0", weight=own_down)
        rank.data[f"Module.{layer}.down.L.forward.0"]["input_args"] = [relu]
        out[place] = x[place] + total
        block = f"Module.{layer}.B.forward.0"
        rank.call(f"Tensor.__add__.{layer}.forward", [x[place], total], out[place], block)
        rank.call(block, [x[place]], out[place], None)
    return out


def _spoiled(weight: Array, is_last: bool, fault: str) -> Array:
    """The weight that a rank has loaded: another one on the last rank, or on all of them after one lost its shard."""
    if fault == "stored shard":
        return np.concatenate([weight[: WIDE // 2], 1.01 * weight[WIDE // 2 :]])
    return weight * 1.01 if fault == "stale weight" and is_last else weight


def write_sequence(root: Path, parts: int = 1, fault: str = "") -> Path:
    """Positions added to the embedding of a sequence; with two parts in the order that balances causal attention."""
    x = np.random.default_rng(2).normal(size=(2, 8, WIDTH))
    places = np.broadcast_to(np.arange(8.0)[None, :, None], (2, 8, 1)).copy()
    for part in range(parts):
        rank = Rank(root / "step0" / ("rank" if parts == 1 else f"rank{part}"), True)
        kept = np.arange(8) if parts == 1 else np.concatenate([np.split(np.arange(8), 4)[i] for i in (part, 3 - part)])
        plain = kept if fault != "not balanced" else np.split(np.arange(8), parts)[part]
        own, at = x[:, kept], places[:, plain]
        rank.call("Tensor.mul.0.forward", [own], 2 * own, "Module.embedding.E.forward.0")
        rank.call("Module.embedding.E.forward.0", [own], 2 * own, None)
        rank.call("Torch.sin.0.forward", [at], np.sin(at), "Module.positions.P.forward.0")
        rank.call("Module.positions.P.forward.0", [at], np.sin(at), None)
        rank.call("Tensor.__add__.0.forward", [2 * own, np.sin(at)], 2 * own + np.sin(at), None)
        run: dict[str, Any] = {"msprobe": "0", "world_size": parts, "settings": {"precision": "high"}}
        if parts > 1:
            run["parallel"] = {
                "meshes": [{"names": ["cp"], "ranks": list(range(parts)), "coordinate": [part]}],
                "context": {"mesh": 0, "order": "load_balanced", "sequence_dimension": [1]},
            }
        number = None if parts == 1 else part
        write_dump(root, rank.data, rank.parents, rank=number, task="tensor", run=run)
    return root


def _update(ranks: dict[Any, Rank], x: dict[Any, Array], dp: int, tp: int, fault: str) -> None:
    """The gradient of a scale that is applied last, and the update of it."""
    grads = {place: (2 * x[place] ** 2 / x[place].size).sum(0) for place in ranks}
    for place, rank in ranks.items():
        given = np.full_like(x[place], 2.0 / x[place].size) * x[place]
        rank.data["Functional.mse_loss.0.backward"] = {
            "input": [rank.item(np.ones(()))],
            "output": [rank.item(given)],
        }
        split = given @ np.split(weights(1)[1], tp, 0)[place[1]].T  # what each tensor-parallel rank has of a gradient
        rank.data["Functional.relu.1.backward"] = {"input": [rank.item(split)], "output": [rank.item(2 * split)]}
        rank.parents.update({"Functional.mse_loss.0.backward": None, "Functional.relu.1.backward": None})
        mean = sum(grads[one, place[1]] for one in range(dp)) / dp
        if fault == "not averaged":
            mean = grads[place]
        elif fault == "summed":
            mean = mean * dp
        elif fault == "summed over all":
            mean = mean * dp * tp
        if fault.startswith("divided by "):
            total, number = mean * dp, int(fault.rpartition(" ")[2])
            mean = total / number
            rank.call("Tensor.div_.0.forward", [total], mean, None)
            rank.data["Tensor.div_.0.forward"]["input_args"].append({"type": "int", "value": number})
        rank.call("Tensor.add_.0.forward", [np.ones(WIDTH), mean], np.ones(WIDTH) - 0.1 * mean, None)


def write_pipeline(root: Path, parts: int = 1, stages: int = 1, fault: str = "") -> Path:
    """Two layers, each an `up`; with two stages on two ranks, that take the batch in parts. Then an update of both
    weights."""
    ranks = {stage: Rank(root / "step0" / ("rank" if stages == 1 else f"rank{stage}"), True) for stage in range(stages)}
    weight = {layer: np.random.default_rng(layer + 3).normal(size=(WIDTH, WIDTH)) / 2 for layer in range(2)}
    made: dict[tuple[int, int], Array] = {}
    for part, x in enumerate(np.split(batch(), parts)):
        for layer in weight:
            stage, name = layer * stages // 2, f"Module.{layer}.up.L.forward.{part}"
            number, made[part, layer] = (layer if stages == 1 else part), x @ weight[layer]
            ranks[stage].call(f"Functional.linear.{number}.forward", [x, weight[layer]], made[part, layer], name)
            ranks[stage].call(name, [x], made[part, layer], None, weight=weight[layer])
            x = made[part, layer]
    for part, layer in itertools.product(range(parts), reversed(weight)):
        rank, number = ranks[layer * stages // 2], layer if stages == 1 else part
        given = [rank.item(made[part, layer])], [rank.item(made[part, layer] @ weight[layer].T)]
        rank.data[f"Functional.linear.{number}.backward"] = dict(zip(("input", "output"), given))
        rank.parents[f"Functional.linear.{number}.backward"] = f"Module.{layer}.up.L.forward.{part}"
    for layer, before in weight.items():
        gradient = np.random.default_rng(9 if fault == "update" and layer == 1 else layer).normal(size=before.shape)
        name = f"Tensor.add_.{layer if stages == 1 else 0}.forward"
        ranks[layer * stages // 2].call(name, [before, gradient], before - 0.1 * gradient, None)
    if fault in ("repeated update", "one more update"):
        gradient = np.random.default_rng(0 if fault == "repeated update" else 8).normal(size=weight[0].shape)
        ranks[stages - 1].call("Tensor.add_.1.forward", [weight[0], gradient], weight[0] - 0.1 * gradient, None)
    for stage, rank in ranks.items():
        run = {"msprobe": "0", "world_size": stages, "settings": {"precision": "high"}}
        place = None if stages == 1 else stage
        write_dump(root, rank.data, rank.parents, rank=place, task="tensor", run=run)
    return root


def write_scalars(root: Path, values: list[float]) -> Path:
    """One loss a rank, as statistics."""
    for number, value in enumerate(values):
        rank = Rank(root, False)
        rank.call("Functional.mse_loss.0.forward", [np.ones((8 // len(values), 2))], value, None)
        run = {"msprobe": "0", "world_size": len(values), "settings": {"precision": "high"}}
        place = number if len(values) > 1 else None
        write_dump(root, rank.data, rank.parents, rank=place, run=run)
    return root
