"""Parallel layouts over gloo: training stays the same, and the dump says how each tensor is spread."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from train_layouts import LAYOUTS, WORLD, Block, sample

import gloo
from msprobe.dump.items import items
from msprobe.dump.reader import open_dump

SCRIPT = Path(__file__).with_name("train_layouts.py")


@pytest.fixture(
    scope="module",
    params=["mix", pytest.param("L0", marks=pytest.mark.slow), pytest.param("L1", marks=pytest.mark.slow)],
)
def trained(request, tmp_path_factory):
    """The directory with a dump for each layout, and whether training was the same."""
    directory = tmp_path_factory.mktemp(f"layouts_{request.param}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MSPROBE_CHECK_CACHE": "1"}
    done = gloo.run([sys.executable, str(SCRIPT), str(directory), request.param], timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return directory, json.loads(done.stdout)


@pytest.fixture
def directory(trained):
    return trained[0]


def ranks(directory, layout, step=0):
    found = [rank for rank in open_dump(directory / layout).ranks if rank.step == step]
    assert [rank.rank for rank in found] == list(range(WORLD))
    return found


def places(layout, coordinate):
    """For each dimension of the tensor, the indices that the rank at this place of the mesh has."""
    indices = [np.arange(size) for size in layout.shape]
    for placement, size, at in zip(layout.placements, layout.mesh.shape, coordinate):
        if placement.kind == "S":
            whole = indices[placement.dimension]
            chunks = [chunk(chunk(whole, placement.factor, k), size, at) for k in range(placement.factor)]
            indices[placement.dimension] = np.concatenate(chunks)
    return indices


def chunk(indices, count, number):
    """As torch.chunk: all parts but the last have the same size."""
    size = -(-len(indices) // count)
    return indices[number * size : (number + 1) * size]


def assemble(parts):
    """The complete tensor from (layout, part of a rank)."""
    made = np.full(parts[0][0].shape, np.nan)
    for layout, part in parts:
        made[np.ix_(*places(layout, layout.mesh.coordinate))] = part
    return made


def reference(batches):
    """The gradients of one device."""
    torch.manual_seed(0)
    model = Block()
    model(torch.cat([sample(rank, 3, 16) for rank in batches])).square().mean().backward()
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_training_is_the_same_to_the_last_bit(trained, layout):
    assert trained[1][layout] is True


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_nothing_of_ours_went_wrong(directory, layout):
    for rank in ranks(directory, layout):
        assert not rank.troubles
        assert rank.parallel.groups["default_pg"] == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("layout", "batches"), [("fsdp2", range(4)), ("tensor_parallel", [0]), ("two_dimensions", [0, 1])]
)
def test_gradients_put_together_by_their_layouts_are_those_of_one_device(directory, layout, batches):
    parts = {}
    for rank in ranks(directory, layout):
        for record, members in rank.records.items():
            if record.endswith(".parameters_grad"):
                for slot, item in items(members):
                    name = f"{record.split('.')[1]}.{slot.rpartition('.')[2]}"
                    found = rank.parallel.layout_of(item)
                    if found is not None:
                        assert found == rank.parallel.parameters[name]
                        parts.setdefault(name, []).append((found, rank.tensor(item["data_name"])))
    if not parts and directory.name.startswith("layouts_L1"):
        pytest.skip("level L1 records no gradients of parameters")
    assert len(parts) == (4 if layout == "tensor_parallel" else 8)
    expected = reference(batches)
    for name, shards in parts.items():
        np.testing.assert_allclose(assemble(shards), expected[name], rtol=1e-4, atol=1e-7)


def test_a_partial_sum_is_recorded_as_one(directory):
    found = ranks(directory, "distributed_tensor")
    name = next((name for name in found[0].records if "matmul" in name and name.endswith("forward")), None)
    if name is None:
        pytest.skip("level L0 records no APIs")
    total = 0.0
    for rank in found:
        item = dict(items(rank.records[name]))["output.0"]
        layout = rank.parallel.layout_of(item)
        assert [str(one) for one in layout.placements] == ["S(1)", "P(sum)"]
        assert (item["shape"], item["local_shape"]) == ([4, 5], list(rank.tensor(item["data_name"]).shape))
        part = np.zeros((4, 5))
        part[np.ix_(*places(layout, layout.mesh.coordinate))] = rank.tensor(item["data_name"])
        total = total + part
    np.testing.assert_allclose(total, (sample(0, 4, 6) @ sample(1, 6, 5)).numpy(), rtol=1e-5, atol=1e-6)


def test_each_rank_knows_its_place_in_a_mesh_of_two_dimensions(directory):
    for rank in ranks(directory, "two_dimensions"):
        mesh = rank.parallel.parameters["up.weight"].mesh
        assert (mesh.names, mesh.shape, mesh.ranks) == (("dp", "tp"), (2, 2), (0, 1, 2, 3))
        assert mesh.coordinate == mesh.coordinate_of(rank.rank) == divmod(rank.rank, 2)
        assert [str(one) for one in rank.parallel.parameters["up.weight"].placements] == ["S(0,2)", "S(0)"]
        assert rank.parallel.groups["mesh_tp"] == (0, 1) if rank.rank < 2 else (2, 3)


def test_the_sequence_is_cut_for_the_norm(directory):
    for rank in ranks(directory, "sequence_parallel"):
        record = rank.records.get("Module.0.LayerNorm.forward.0")
        if record is None:
            pytest.skip("level L1 records no modules")
        layout = rank.parallel.layout_of(dict(items(record))["input.0"])
        assert (layout.shape, str(layout.placements[0])) == ((2, 8, 16), "S(1)")
