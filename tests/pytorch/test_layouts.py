"""Parallel layouts over gloo: training stays the same, and the dump says how each tensor is spread."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from collecting import collecting
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from train_layouts import LAYOUTS, MICROBATCHES, WORLD, Block, make_stage, sample

import gloo
from framework_versions import missing
from msprobe.dump.items import items
from msprobe.dump.parallel import Parallel
from msprobe.dump.reader import open_dump
from msprobe.pytorch.parallel import parallel_facts
from msprobe.pytorch.parallel.layouts import Layouts
from msprobe.pytorch.parallel.pipeline import PipelineCalls

SCRIPT = Path(__file__).with_name("train_layouts.py")


@pytest.fixture(
    scope="module",
    params=["mix", pytest.param("L0", marks=pytest.mark.slow), pytest.param("L1", marks=pytest.mark.slow)],
)
def trained(request, tmp_path_factory):
    """The directory with a dump for each layout, and whether training was the same."""
    directory = tmp_path_factory.mktemp(f"layouts_{request.param}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MSPROBE_CHECK_CACHE": "1"}
    names = [name for name in LAYOUTS if not missing(f"pytorch/test_layouts.py::{name}")]
    done = gloo.run([sys.executable, str(SCRIPT), str(directory), request.param, *names], timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return directory, json.loads(done.stdout[done.stdout.index("{") :])  # gloo of older torch prints too


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
def test_msprobe_had_no_error(directory, layout):
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


PIPELINES = {
    "gpipe": ("ScheduleGPipe", 1),
    "one_forward_one_backward": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zero_bubble": ("ScheduleInterleavedZeroBubble", 2),
}


@pytest.mark.parametrize("layout", list(PIPELINES))
def test_a_pipeline_is_described(directory, layout):
    schedule, each = PIPELINES[layout]
    for rank in ranks(directory, layout):
        found = rank.parallel.pipeline
        own = tuple(range(rank.rank, WORLD * each, WORLD))
        assert (found.schedule, found.stages, found.stage) == (schedule, WORLD * each, own)
        assert (found.models, found.microbatches) == (own, MICROBATCHES)


@pytest.mark.parametrize("layout", list(PIPELINES))
def test_every_call_of_a_stage_has_the_values_of_its_microbatch(directory, layout):
    """Each linear layer's input and output, by stage and microbatch, are those of the stages run one after another."""
    seen = 0
    stages = [make_stage(number) for number in range(WORLD * PIPELINES[layout][1])]
    chunks = sample(0, 8, 6).chunk(MICROBATCHES)
    for rank in ranks(directory, layout):
        for name, record in rank.records.items():
            if ".linear." in name.lower() and ".forward" in name and record["input_args"][0]["shape"][-1] == 6:
                stage, microbatch = record["stage"], record["microbatch"]
                with torch.no_grad():
                    expected = torch.nn.Sequential(*stages[:stage])(chunks[microbatch])
                    given = rank.tensor(record["input_args"][0]["data_name"])
                    np.testing.assert_allclose(given, expected.numpy(), rtol=1e-5, atol=1e-6)
                    made = rank.tensor(record["output"][0]["data_name"])
                    np.testing.assert_allclose(made, stages[stage][0](expected).numpy(), rtol=1e-5, atol=1e-6)
                seen += 1
    kinds = 2 if directory.name.startswith("layouts_mix") else 1  # modules and APIs
    assert seen == kinds * len(stages) * MICROBATCHES


@pytest.mark.parametrize("layout", list(PIPELINES))
def test_a_backward_record_has_the_stage_and_the_microbatch_of_its_call(directory, layout):
    for rank in ranks(directory, layout):
        for name, record in rank.records.items():
            if ".backward" in name:
                forward = rank.records[name.replace(".backward", ".forward")]
                assert (record["stage"], record["microbatch"]) == (forward["stage"], forward["microbatch"])


@pytest.mark.parametrize("layout", list(PIPELINES))
def test_the_gradients_of_a_pipeline_are_those_of_all_microbatches(directory, layout):
    if directory.name.startswith("layouts_L1"):
        pytest.skip("level L1 records no gradients of parameters")
    each = PIPELINES[layout][1]
    stages = [make_stage(number) for number in range(WORLD * each)]
    torch.nn.functional.mse_loss(torch.nn.Sequential(*stages)(sample(0, 8, 6)), sample(1, 8, 6)).backward()
    for rank in ranks(directory, layout):
        for index, number in enumerate(rank.parallel.pipeline.models):
            start = "Module." if each == 1 else f"Module.{index}."
            item = rank.records[f"{start}0.Linear.parameters_grad"]["weight"][0]
            expected = stages[number][0].weight.grad.numpy()
            np.testing.assert_allclose(rank.tensor(item["data_name"]), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("layout", ["fsdp1_flat", "fsdp1_original"])
def test_the_parts_of_flat_parameters_cover_every_parameter_once(directory, layout):
    counts = {name: np.zeros(parameter.numel(), int) for name, parameter in Block().named_parameters()}
    for rank in ranks(directory, layout):
        assert len(rank.parallel.flat) == 2
        for part in (one for parts in rank.parallel.flat.values() for one in parts):
            assert int(np.prod(part.shape)) == len(counts[part.name])
            counts[part.name][part.first : part.last] += 1
    assert all((count == 1).all() for count in counts.values())


@pytest.mark.parametrize("layout", ["fsdp1_flat", "fsdp1_original"])
def test_flat_parameters_are_recorded_as_the_original_ones(directory, layout):
    """Complete while a module runs; the elements of each rank make up the gradients of one device."""
    if directory.name.startswith("layouts_L1"):
        pytest.skip("level L1 records no gradients of parameters")
    expected = reference(range(4))
    made = {name: np.full(gradient.size, np.nan) for name, gradient in expected.items()}
    for rank in ranks(directory, layout):
        parts = {part.name: part for one in rank.parallel.flat.values() for part in one}
        for record, members in rank.records.items():
            path = ".".join(step for step in record.split(".")[1:] if step != "_fsdp_wrapped_module")
            name = f"{path.split('.')[0]}."
            assert "_flat_param" not in str(members)
            for key, item in members.get("parameters", {}).items():
                assert tuple(item["shape"]) == expected[name + key].shape
            for key, (item,) in members.items() if record.endswith(".parameters_grad") else ():
                part = parts[name + key]
                made[name + key][part.first : part.last] = rank.tensor(item["data_name"])
    for name, gradient in expected.items():
        np.testing.assert_allclose(made[name], gradient.reshape(-1), rtol=1e-4, atol=1e-6)


def test_megatrons_attributes_are_layouts_on_the_tensor_parallel_group(directory):
    for rank in ranks(directory, "megatron"):
        found = rank.parallel.parameters
        assert set(found) == {"norm.weight", "fused.weight", "fused.bias", "out.weight", "layers.0.weight"}
        fused = found["fused.weight"]
        assert (fused.shape, str(fused.placements[0]), fused.stride) == ((96, 16), "S(0)", 3)
        assert (fused.mesh.ranks, fused.mesh.coordinate) == ((0, 1, 2, 3), (rank.rank,))
        assert (found["out.weight"].shape, str(found["out.weight"].placements[0])) == ((16, 32), "S(1)")
        assert (found["norm.weight"].sequence_parallel, found["fused.weight"].sequence_parallel) == (True, False)
        assert (found["layers.0.weight"].allreduce, found["fused.weight"].allreduce) == (False, True)
        assert rank.parallel.modules == {"layers.0": f"layers.{2 + rank.rank}"}


def test_a_sampler_says_which_part_of_the_batch_a_rank_has(directory):
    complete = sample(0, 12, 16).numpy()
    for rank in ranks(directory, "data_parallel"):
        batch = rank.parallel.batch
        assert (batch.part, batch.of, batch.order) == (rank.rank, WORLD, "strided")
        record = next(record for record in rank.records.values() if "input_args" in record)
        given = rank.tensor(record["input_args"][0]["data_name"])
        np.testing.assert_array_equal(given, complete[batch.part :: batch.of][:3])


@pytest.mark.parametrize(
    ("layout", "order", "dimensions"),
    [
        ("context_contiguous", "contiguous", (1, 1)),
        ("context_balanced", "load_balanced", (1, 1)),
        ("context_before_start", "load_balanced", (2,)),  # torch no longer knows the buffers, only attention
    ],
)
def test_the_order_of_a_cut_sequence(directory, layout, order, dimensions):
    complete = sample(0, 2, 16, 6).numpy()
    for rank in ranks(directory, layout):
        found = rank.parallel.context
        assert (found.order, found.sequence_dimension) == (order, dimensions)
        assert (found.mesh.names, found.mesh.coordinate) == (("cp",), (rank.rank,))
        name = (
            next(name for name in rank.records if "linear" in name and name.endswith(".forward"))
            if not directory.name.startswith("layouts_L0")
            else None
        )
        if name is not None:
            given = rank.tensor(rank.records[name]["input_args"][0]["data_name"])
            parts = np.split(complete, 2 * WORLD, axis=1)
            at = rank.rank
            own = [2 * at, 2 * at + 1] if order == "contiguous" else [at, 2 * WORLD - 1 - at]
            np.testing.assert_array_equal(given, np.concatenate([parts[one] for one in own], axis=1))


@pytest.fixture
def alone():
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_layout_is_described_once_and_its_mesh_is_in_run_json_even_if_made_during_the_step(
    alone, tmp_path, monkeypatch
):
    described = []
    describe = Layouts.describe
    monkeypatch.setattr(Layouts, "describe", lambda self, spec: described.append(spec) or describe(self, spec))
    with collecting(tmp_path) as dump:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
        tensor = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0), Replicate()])
        for _ in range(5):
            tensor = tensor + 1
        torch.sum(tensor, 0)
    dump.directory = dump.directory.with_name("rank0")
    assert not dump.errors
    assert len(described) == 2  # of the sums, and of the result of torch.sum
    found = open_dump(dump.directory).ranks[0].parallel
    outputs = [item for record in dump.data.values() for item in record["output"] if item]
    layouts = [found.layout_of(item) for item in outputs if item["type"].endswith("DTensor")]
    assert [str(one.placements[0]) for one in layouts] == ["S(0)"] * 5 + ["P(sum)"]
    assert all(one.mesh.names == ("a", "b") for one in layouts)


def test_a_script_without_distributed_pays_nothing(tmp_path, monkeypatch):
    for owner, name in ((gc, "get_referrers"), (parallel_facts, "parameter_layouts"), (PipelineCalls, "install")):
        monkeypatch.setattr(owner, name, lambda *args: pytest.fail("not in a script without ranks"))
    model = torch.nn.Linear(2, 2)
    with collecting(tmp_path, model, level="mix") as dump:
        model(torch.ones(1, 2))
    assert "parallel" not in json.loads((dump.directory / "run.json").read_text())
    assert open_dump(dump.directory).ranks[0].parallel == Parallel()
