"""Two real processes under msrun: a directory a rank, collectives forward, the rank filter."""

from __future__ import annotations

import numpy as np
from mscollecting import Dump, assert_same, configured
from msranks import needs_msrun, run_two

from msprobe.dump.parallel import Layout, Mesh, Placement
from msprobe.dump.reader import open_dump

SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Layout, Tensor, mint, nn, ops
from mindspore.communication import create_group, get_rank, init
from mindspore.parallel.shard import _DistributedTensorInfo
from msprobe.mindspore import PrecisionDebugger
init()
rank = get_rank()
debugger = PrecisionDebugger(sys.argv[1])
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(3, 3, weight_init="ones", bias_init="zeros")
        self.reduce = ops.AllReduce()
    def construct(self, x):
        return self.reduce(self.fc(x))
net = Net()
create_group("pair", [1, 0])
layout = Layout((2,), ("mp",))
for name, value in layout("mp", "None").to_dict().items():
    if name != "rank_list":
        setattr(net.fc.weight.param_info, name, value)
cut = Tensor(np.full((2, 3), rank), ms.float32)
cut._dtensor_info = _DistributedTensorInfo(layout("None", "mp"))
x = Tensor(np.full((2, 3), rank + 1), ms.float32)
debugger.start(net)
ops.exp(cut)
gradient = ms.grad(lambda x: ops.exp(net(x) * 0.1).sum())(x)
mint.distributed.all_reduce(x)
sent = Tensor(np.full(2, rank + 1.0), ms.float32)
mint.distributed.broadcast(sent, 0)
later = Tensor(np.full(2, rank + 1.0), ms.float32)
handle = mint.distributed.all_reduce(later, async_op=True)
handle.wait()
left = Tensor(np.full(2, rank + 1.0), ms.float32)
never = mint.distributed.all_reduce(left, async_op=True)
try:
    ms.communication.comm_func.all_reduce(Tensor(np.full(2, rank + 1.0), ms.float32))[0].asnumpy()
except RuntimeError as error:
    assert "InnerCommAllReduce" in str(error)  # MindSpore has no CPU kernel for it
@ms.jit
def region(x):
    return ops.sin(x)
region(mint.nn.functional.relu(mint.abs(x) + 1))
debugger.stop()
debugger.step()
never.wait()
print("done", rank, x.asnumpy()[0, 0], sent.asnumpy()[0], later.asnumpy()[0], left.asnumpy()[0], flush=True)
"""


def check_layouts(dump, rank):
    """A parameter that shard() has noted, which is still complete, and a tensor that is a part of a larger one."""
    found = open_dump(dump.directory).ranks[0]
    assert found.parallel.groups["pair"] == (1, 0)
    mesh = Mesh(("mp",), (2,), (0, 1), (rank,))
    assert found.parallel.parameters == {"fc.weight": Layout((3, 3), mesh, (Placement("S", 0),))}
    item = dump["Functional.exp.0.forward"]["input_args"][0]
    assert item["shape"] == [2, 3]
    assert found.parallel.layout_of(item) == Layout((2, 6), mesh, (Placement("S", 1),))
    assert "layout" not in dump["Functional.exp.0.forward"]["output"][0]


PREFIXES = (
    "Tensor",
    "Functional",
    "Primitive",
    "Mint",
    "MintFunctional",
    "MintDistributed",
    "Distributed",
    "Jit",
    "Cell",
)


@needs_msrun
def test_two_processes_have_a_directory_each(tmp_path):
    run_two(tmp_path, SCRIPT, configured(tmp_path, "mix", "tensor"))
    for rank in (0, 1):
        dump = Dump(tmp_path / "dump", 0, f"rank{rank}")
        assert not dump.errors, dump.errors
        assert dump.json("run.json")["world_size"] == 2
        check_layouts(dump, rank)
        assert_same(dump["Cell.fc.Dense.forward.0"]["input_args"][0], np.full((2, 3), rank + 1))
        assert "Cell.fc.Dense.backward.0" in dump.names
        summed = dump["Primitive.reduce.AllReduce.0.forward"]["output"][0]
        assert_same(summed, np.full((2, 3), 9.0))
        reduced = dump["MintDistributed.all_reduce.0.forward"]
        assert_same(reduced["input_args"][0], np.full((2, 3), rank + 1))
        assert_same(reduced["output"][0], np.full((2, 3), 3.0))
        assert_same(dump["MintDistributed.broadcast.0.forward"]["output"][0], np.full(2, 1.0))
        assert_same(dump["MintDistributed.all_reduce.1.forward"]["output"][0], np.full(2, 3.0))
        assert dump["MintDistributed.all_reduce.2.forward"]["not_waited"] is True
        assert_same(dump["Distributed.all_reduce.0.forward"]["input_args"][0], np.full(2, rank + 1.0))
        assert {name.partition(".")[0] for name in dump.names} == set(PREFIXES)  # of seed 000, 8.2


@needs_msrun
def test_the_rank_filter(tmp_path):
    run_two(tmp_path, SCRIPT, configured(tmp_path, "L1", rank=[1]))
    assert [path.name for path in (tmp_path / "dump" / "step0").iterdir()] == ["rank1"]
    logs = "".join(path.read_text(errors="replace") for path in (tmp_path / "log").glob("worker_*.log"))
    assert "nothing was collected: this process is rank 0" in logs
