"""FSDP1 (FullyShardedDataParallel): each rank has some elements of every parameter, in flat tensors or in its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from layout_dumps import Rank
from written import write_dump

from msprobe.compare import compare
from msprobe.compare.result import Comparison
from msprobe.dump.errors import DumpError

pytestmark = pytest.mark.fast
SHAPES = {"a.weight": (4, 3), "a.bias": (4,), "head.weight": (5, 4)}
UNITS = {
    "_fsdp_wrapped_module.a._fsdp_wrapped_module": ("a.weight", "a.bias"),
    "_fsdp_wrapped_module": ("head.weight",),
}
BATCH = 12
Array = Any
Setting = Optional[str]
"""None for one device, "flat" for use_orig_params=False, "original" for True."""


def values(seed: int) -> dict[str, Array]:
    made = np.random.default_rng(seed)
    return {name: made.normal(size=shape) for name, shape in SHAPES.items()}


def write(root: Path, setting: Setting = None, world: int = 1, fault: str = "", lists: bool = False) -> Path:
    for number in range(world):
        rank = Rank(root / "step0" / ("rank" if setting is None else f"rank{number}"), "statistics" not in fault)
        weights = values(1)
        if fault == "shard of rank 1":
            weights["a.weight"].reshape(-1)[8:10] += 1.0
        batches = np.array_split(np.random.default_rng(2).normal(size=(BATCH, 3)), world)
        _compute(rank, weights, batches[number], setting)
        parts = _parts(number, world) if setting else {}
        grads = values(3)
        of_ranks = [_head_gradient(weights, batch) for batch in batches]
        grads["head.weight"] = of_ranks[number] if fault == "not reduced" else np.mean(of_ranks, 0)
        if fault == "not averaged":
            grads = {name: world * one for name, one in grads.items()}
        if fault == "gradient of rank 1" and number == 1:
            grads["head.weight"] = grads["head.weight"] + 0.5
        _write_gradients(rank, grads, setting, parts)
        rate = 0.2 if fault == "rate of rank 1" and number == 1 else 0.1
        names = _update(rank, weights, grads, setting, parts, rate, lists)
        run: dict[str, Any] = {"msprobe": "0", "world_size": world, "settings": {"precision": "high"}}
        if setting is not None:
            run["parallel"] = {"parameters": {f"{unit}._flat_param": _described(parts[unit]) for unit in UNITS}}
        task = "tensor" if rank.saves else "statistics"
        write_dump(root, rank.data, rank.parents, rank=None if setting is None else number, task=task, run=run)
        step = {"event": "optimizer_step", "after": "Torch.stack.0.forward", "groups": [{"lr": 0.1, "names": names}]}
        end = {"event": "optimizer_step_end", "after": list(rank.data)[-1]}
        (rank.directory / "training.json").write_text(json.dumps({"events": [step, end]}))
    return root


def _parts(rank: int, world: int) -> dict[str, list[tuple[str, int, int]]]:
    """(name, first, last) of what a rank has of each unit, as FSDP1 cuts: equal parts, the last one is padded."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    for unit, names in UNITS.items():
        total = sum(int(np.prod(SHAPES[name])) for name in names)
        length, at = -(-total // world), 0
        found[unit] = []
        for name in names:
            size = int(np.prod(SHAPES[name]))
            first, last = max(rank * length - at, 0), min((rank + 1) * length - at, size)
            if first < last:
                found[unit].append((name, first, last))
            at += size
    return found


def _described(parts: list[tuple[str, int, int]]) -> dict[str, Any]:
    return {"flat": True, "parts": [[name, list(SHAPES[name]), first, last] for name, first, last in parts]}


def _compute(rank: Rank, weights: dict[str, Array], x: Array, setting: Setting) -> None:
    start = "Module._fsdp_wrapped_module." if setting else "Module."
    a, head = f"{start}a{'._fsdp_wrapped_module' if setting else ''}.L.forward.0", f"{start}head.L.forward.0"
    y = x @ weights["a.weight"].T + weights["a.bias"]
    rank.call("Functional.linear.0.forward", [x, weights["a.weight"], weights["a.bias"]], y, a)
    rank.call(a, [x], y, None, weight=weights["a.weight"], bias=weights["a.bias"])
    z = y @ weights["head.weight"].T
    rank.call("Functional.linear.1.forward", [y, weights["head.weight"]], z, head)
    rank.call(head, [y], z, None, weight=weights["head.weight"])
    given = z / len(x)
    rank.data["Functional.linear.1.backward"] = {
        "input": [rank.item(given)],
        "output": [rank.item(given @ weights["head.weight"]), rank.item(given.T @ y)],
    }
    rank.parents["Functional.linear.1.backward"] = head


def _head_gradient(weights: dict[str, Array], x: Array) -> Array:
    y = x @ weights["a.weight"].T + weights["a.bias"]
    return (y @ weights["head.weight"].T).T @ y / len(x)


def _write_gradients(rank: Rank, grads: dict[str, Array], setting: Setting, parts: Any) -> None:
    start = "Module._fsdp_wrapped_module." if setting else "Module."
    own = {name: grads[name].reshape(-1)[a:b] for one in parts.values() for name, a, b in one} if setting else grads
    for name, gradient in own.items():
        path, _, last = name.partition(".")
        wrapped = "._fsdp_wrapped_module" if setting and path == "a" else ""
        record = rank.data.setdefault(f"{start}{path}{wrapped}.L.parameters_grad", {})
        record[last] = [rank.item(gradient)]


def _update(rank: Rank, weights: Any, grads: Any, setting: Setting, parts: Any, rate: float, lists: bool) -> list[str]:
    """The updates, of each tensor alone or of all of them in one call; returns the names that the optimizer has."""
    made: list[tuple[Array, Array]] = []
    names: list[str] = []
    if setting == "flat":
        for unit, held in parts.items():
            total = sum(int(np.prod(SHAPES[name])) for name in UNITS[unit])
            padded = -(-total // max(1, WORLD))
            pairs = []
            for kind in (weights, grads):
                flat = np.concatenate([kind[name].reshape(-1)[a:b] for name, a, b in held])
                pairs.append(np.pad(flat, (0, padded - len(flat))))
            made.append((pairs[0], pairs[1]))
            names.append(f"{unit}._flat_param")
    elif setting == "original":
        names = [f"_fsdp_wrapped_module.{name}".replace(".a.", ".a._fsdp_wrapped_module.") for name in SHAPES]
        for held in parts.values():
            made += [(weights[n].reshape(-1)[a:b], grads[n].reshape(-1)[a:b]) for n, a, b in held]
    else:
        names, made = list(SHAPES), [(weights[name], grads[name]) for name in SHAPES]
    norms = [np.linalg.norm(gradient) for _, gradient in made]  # clipping stacks as many as there are tensors
    rank.data["Torch.stack.0.forward"] = {
        "input_args": [[rank.item(one) for one in norms]],
        "input_kwargs": {},
        "output": [rank.item(np.array(norms))],
    }
    rank.parents["Torch.stack.0.forward"] = None
    after = [before - rate * gradient for before, gradient in made]
    if lists:
        rank.data["Torch._foreach_add_.0.forward"] = {
            "input_args": [[rank.item(one) for one, _ in made], [rank.item(one) for _, one in made]],
            "input_kwargs": {},
            "output": [[rank.item(one) for one in after]],
        }
        rank.parents["Torch._foreach_add_.0.forward"] = None
    for number, ((before, gradient), new) in enumerate(zip(made, after) if not lists else ()):
        rank.call(f"Tensor.add_.{number}.forward", [before, gradient], new, None)
    return names


WORLD = 3


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("single"))


def _odd(result: Comparison) -> list[tuple[str, str, str]]:
    """What was not compared; the norms of tensors that the runs do not share are none of it."""
    rows = [row for _, row in result.rows() if not row.name.startswith("Torch.stack")]
    return [(row.name, row.verdict, row.reason) for row in rows if row.verdict != "pass"]


@pytest.mark.parametrize("setting", ["flat", "original"])
@pytest.mark.parametrize("lists", [False, True])
def test_clean_flat_parameters_are_the_same_as_one_device(tmp_path: Path, setting: str, lists: bool) -> None:
    target, golden = write(tmp_path / "a", setting, WORLD, lists=lists), write(tmp_path / "b", lists=lists)
    for pair in ((target, golden), (golden, target)):
        result = compare(*pair)
        assert _odd(result) == []
        assert result.verdict == "same"


@pytest.mark.parametrize("setting", ["flat", "original"])
@pytest.mark.parametrize(
    ("fault", "kind", "name", "ranks"),
    [
        ("not averaged", "gradient not averaged", "parameters_grad", (0, 1, 2)),
        ("not reduced", "gradient not averaged", "head", (0, 1, 2)),
        ("gradient of rank 1", "parameter gradient", "head", (1,)),
        ("rate of rank 1", "call", "add_", (1,)),
        ("shard of rank 1", "weight", "a.", (1,)),
    ],
)
def test_a_fault_is_named_with_its_ranks(
    tmp_path: Path, single: Path, setting: str, fault: str, kind: str, name: str, ranks: tuple[int, ...]
) -> None:
    result = compare(write(tmp_path, setting, WORLD, fault), single)
    assert result.verdict == "differs"
    assert result.origin is not None
    assert result.origin.kind == kind
    assert name in result.origin.name
    assert result.origin.ranks == ranks


def test_statistics_of_flat_tensors_are_compared_in_part_and_it_is_said_what_to_do(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", fault="statistics")
    result = compare(write(tmp_path / "flat", "flat", WORLD, "statistics"), golden)
    assert result.verdict == "not_compared"
    assert {reason for _, _, reason in _odd(result) if "task tensor" in reason}
    assert compare(write(tmp_path / "original", "original", WORLD, "statistics"), golden).verdict == "same"


def test_parts_that_do_not_make_up_a_parameter_are_an_error(tmp_path: Path, single: Path) -> None:
    target = write(tmp_path, "flat", WORLD)
    file = target / "step0" / "rank1" / "run.json"
    run = json.loads(file.read_text())
    part = run["parallel"]["parameters"]["_fsdp_wrapped_module._flat_param"]["parts"][0]
    part[2] += 1
    file.write_text(json.dumps(run))
    with pytest.raises(DumpError, match=r"head\.weight: the ranks have the elements .* contradict each other"):
        compare(target, single)
