"""Layers of the real Megatron, on CPU over gloo: `pip install --no-deps megatron-core` (not a dependency of ours)."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest
from collecting import configured

import gloo
from msprobe.dump.reader import open_dump

SCRIPT = """
import multiprocessing, sys, warnings
warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from msprobe.pytorch import PrecisionDebugger

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = ModelParallelConfig(tensor_model_parallel_size=2, use_cpu_initialization=True, sequence_parallel=True)
        given = {"config": config, "init_method": torch.nn.init.xavier_normal_, "skip_bias_add": False, "bias": True}
        self.up = ColumnParallelLinear(8, 12, gather_output=False, **given)
        self.down = RowParallelLinear(12, 8, input_is_parallel=True, **given)

def run(rank):
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 4), rank=rank, world_size=4)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    net = Net()
    debugger = PrecisionDebugger(sys.argv[2])
    debugger.start(net)
    debugger.stop()
    debugger.step()

ranks = [multiprocessing.get_context("fork").Process(target=run, args=(rank,)) for rank in range(4)]
for one in ranks: one.start()
for one in ranks: one.join()
sys.exit(max(abs(one.exitcode) for one in ranks))
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed")
def test_parameters_and_stages_of_megatron_itself(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), configured(tmp_path, level="mix")]
    done = gloo.run(command, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    ranks = open_dump(tmp_path / "dump").ranks
    assert len(ranks) == 4
    for rank in ranks:
        found = rank.parallel
        cut = {name: (layout.shape, *map(str, layout.placements)) for name, layout in found.parameters.items()}
        assert cut == {
            "up.weight": ((12, 8), "S(0)"),
            "up.bias": ((12,), "S(0)"),
            "down.weight": ((8, 12), "S(1)"),
            "down.bias": ((8,), "R"),
        }
        assert [name for name, layout in found.parameters.items() if layout.sequence_parallel] == ["down.bias"]
        group = (0, 1) if rank.rank < 2 else (2, 3)
        assert found.parameters["up.weight"].mesh.ranks == found.groups["TENSOR_MODEL_PARALLEL_GROUP"] == group
        assert (found.pipeline.stages, found.pipeline.stage) == (2, (rank.rank // 2,))
        assert not rank.troubles
