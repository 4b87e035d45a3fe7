"""Level L2, dynamic graph: the result of every operator and the gradient of its input are in some record, even if
the dispatch mode does not show them; so are the changes of parameters by optimizers."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.experimental import optim
from mscollecting import collecting


@pytest.fixture(scope="module", autouse=True)
def a_graph_has_run():
    """What this process compiles is not dumped: a dump is for the life of a process (test_region_kernels.py)."""

    @ms.jit
    def small(x):
        return x + 1

    small(Tensor(1.0))


IMAGE = np.random.default_rng(1).standard_normal((2, 4, 8, 8)).astype(np.float32)
ROWS = (np.random.default_rng(2).random((2, 6)) * 0.4 + 0.1).astype(np.float32)
LABELS = Tensor(np.array([0, 1], np.int32))


def image(cell: nn.Cell) -> tuple[Any, np.ndarray]:
    return cell.set_train(), IMAGE


def rows(call: Any) -> tuple[Any, np.ndarray]:
    return call, ROWS


CASES = {
    "Conv2d": lambda: image(nn.Conv2d(4, 4, 3, has_bias=True)),
    "Conv2dTranspose": lambda: image(nn.Conv2dTranspose(4, 4, 3)),
    "BatchNorm2d": lambda: image(nn.BatchNorm2d(4)),
    "GroupNorm": lambda: image(nn.GroupNorm(2, 4)),
    "MaxPool2d": lambda: image(nn.MaxPool2d(2, 2)),
    "AvgPool2d": lambda: image(nn.AvgPool2d(2, 2)),
    "LayerNorm": lambda: rows(nn.LayerNorm((6,))),
    "Dense": lambda: rows(nn.Dense(6, 3)),
    "Dropout": lambda: rows(nn.Dropout(p=0.5).set_train()),
    "PReLU": lambda: rows(nn.PReLU()),
    "CrossEntropy": lambda: rows(lambda x: nn.CrossEntropyLoss()(x, LABELS)),
    "SoftmaxCrossEntropy": lambda: rows(lambda x: nn.SoftmaxCrossEntropyWithLogits(sparse=True)(x, LABELS)),
    "MSELoss": lambda: rows(lambda x: nn.MSELoss()(x, ops.ones_like(x))),
    "SmoothL1Loss": lambda: rows(lambda x: nn.SmoothL1Loss()(x, ops.ones_like(x))),
    "nn.Softmax": lambda: rows(nn.Softmax()),
    "softmax, then sqrt": lambda: rows(lambda x: ops.sqrt(ops.softmax(x, -1))),
    "two softmaxes": lambda: rows(lambda x: ops.softmax(ops.softmax(x, -1), 0)),
    "attention": lambda: rows(lambda x: ops.matmul(ops.softmax(ops.matmul(x, x.T), -1), x)),
    "bmm": lambda: rows(lambda x: ops.bmm(x.reshape(1, 2, 6), x.reshape(1, 6, 2))),
    "cat": lambda: rows(lambda x: ops.cat([x, x * 2])),
    "mint.cat": lambda: rows(lambda x: mint.cat([x, x * 2])),
    "stack": lambda: rows(lambda x: ops.stack([x, x * 2])),
    "split": lambda: rows(lambda x: ops.split(x, 3, 1)[1]),
    "index": lambda: rows(lambda x: x[0]),
    "slice": lambda: rows(lambda x: x[:, 1:3]),
    "gather": lambda: rows(lambda x: ops.gather(x, LABELS, 0)),
    "where": lambda: rows(lambda x: ops.where(x > 0.3, x, x * 2)),
    "pad": lambda: rows(lambda x: ops.pad(x, (1, 1))),
    "masked_fill": lambda: rows(lambda x: ops.masked_fill(x, x > 0.3, 0.0)),
    "tile": lambda: rows(lambda x: ops.tile(x, (2, 1))),
    "clamp": lambda: rows(lambda x: ops.clamp(x, 0.2, 0.4)),
    "cast": lambda: rows(lambda x: x.astype(ms.float16)),
    "divide": lambda: rows(lambda x: x / (x + 1)),
    "power": lambda: rows(lambda x: x**3),
    "max": lambda: rows(lambda x: x.max()),
    "norm": lambda: rows(ops.norm),
    "cumsum": lambda: rows(lambda x: ops.cumsum(x, 0)),
    "topk": lambda: rows(lambda x: ops.topk(x, 2)[0]),
    "transpose": lambda: rows(lambda x: ops.transpose(x, (1, 0))),
    "mint.matmul": lambda: rows(lambda x: mint.matmul(x, x.T)),
    "mint.softmax": lambda: rows(lambda x: mint.softmax(x, -1)),
    "mint.sqrt": lambda: rows(mint.sqrt),
    "log_softmax": lambda: rows(lambda x: ops.log_softmax(x, -1)),
    "prod": lambda: rows(lambda x: ops.prod(x, 1)),
    "std": lambda: rows(lambda x: ops.std(x, 1)),
    "var": lambda: rows(lambda x: ops.var(x, 1)),
    "amax": lambda: rows(lambda x: ops.amax(x, 1)),
    "amin": lambda: rows(lambda x: ops.amin(x, 1)),
    "max of an axis": lambda: rows(lambda x: ops.max(x, 1)[0]),
    "min of an axis": lambda: rows(lambda x: ops.min(x, 1)[0]),
    "logsumexp": lambda: rows(lambda x: ops.logsumexp(x, 1)),
    "maximum": lambda: rows(lambda x: ops.maximum(x, x * 0 + 0.3)),
    "minimum": lambda: rows(lambda x: ops.minimum(x, x * 0 + 0.3)),
    "atan2": lambda: rows(lambda x: ops.atan2(x, x + 1)),
    "flip": lambda: rows(lambda x: ops.flip(x, (0,))),
    "permute": lambda: rows(lambda x: ops.permute(x, (1, 0))),
    "swapaxes": lambda: rows(lambda x: ops.swapaxes(x, 0, 1)),
    "unsqueeze": lambda: rows(lambda x: ops.unsqueeze(x, 0)),
    "broadcast_to": lambda: rows(lambda x: ops.broadcast_to(x, (3, 2, 6))),
    "narrow": lambda: rows(lambda x: ops.narrow(x, 1, 1, 3)),
    "chunk": lambda: rows(lambda x: ops.chunk(x, 2, 1)[1]),
    "index_select": lambda: rows(lambda x: ops.index_select(x, 0, LABELS)),
    "gather_elements": lambda: rows(lambda x: ops.gather_elements(x, 0, ops.zeros((2, 6), ms.int64))),
    "tril": lambda: rows(ops.tril),
    "triu": lambda: rows(ops.triu),
    "diag": lambda: rows(lambda x: ops.diag(x[0])),
    "outer": lambda: rows(lambda x: ops.outer(x[0], x[1])),
    "addmm": lambda: rows(lambda x: ops.addmm(ops.ones((2, 2)), x, x.T)),
    "cosine_similarity": lambda: rows(lambda x: ops.cosine_similarity(x, x + 1)),
    "nll_loss": lambda: rows(lambda x: ops.nll_loss(ops.log_softmax(x, -1), LABELS)),
    "binary_cross_entropy": lambda: rows(lambda x: ops.binary_cross_entropy(x, ops.ones_like(x))),
    "kl_div": lambda: rows(lambda x: ops.kl_div(x, ops.ones_like(x))),
    "l1_loss": lambda: rows(lambda x: ops.l1_loss(x, ops.ones_like(x))),
    "huber_loss": lambda: rows(lambda x: ops.huber_loss(x, ops.ones_like(x))),
    "glu": lambda: rows(ops.glu),
    "interpolate": lambda: image(nn.Upsample(scale_factor=2.0, mode="nearest", recompute_scale_factor=True)),
    "AdaptiveAvgPool2d": lambda: image(nn.AdaptiveAvgPool2d(2)),
    "Flatten": lambda: image(nn.Flatten()),
    "LSTM": lambda: (lambda cell: (lambda x: cell(x.reshape(1, 2, 6))[0], ROWS))(nn.LSTM(6, 5, batch_first=True)),
    "GRU": lambda: (lambda cell: (lambda x: cell(x.reshape(1, 2, 6))[0], ROWS))(nn.GRU(6, 5, batch_first=True)),
    "MultiheadAttention": lambda: (
        lambda cell: (lambda x: cell(x.reshape(2, 1, 6), x.reshape(2, 1, 6), x.reshape(2, 1, 6))[0], ROWS)
    )(nn.MultiheadAttention(6, 2)),
    **{
        name: lambda name=name: rows(getattr(ops, name))
        for name in (
            *("relu", "sigmoid", "tanh", "gelu", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "abs", "square", "silu"),
            *("elu", "selu", "hardswish", "hardsigmoid", "softplus", "leaky_relu", "relu6", "mish", "erf", "mean"),
            *("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "log1p", "expm1", "reciprocal", "neg", "erfc"),
            *("celu", "hardshrink", "softshrink", "logsigmoid", "hardtanh", "softsign", "log2", "log10", "exp2"),
        )
    },
}


def figures(value: Any) -> Any:
    array = value.asnumpy().astype(np.float64)
    return list(value.shape), float(array.max()), float(array.min()), float(np.linalg.norm(array))


def is_in(records: dict[str, Any], direction: str, value: Any) -> bool:
    """Whether a tensor with these figures is an output of some record of this direction."""
    shape, high, low, norm = figures(value)

    def fits(entry: Any) -> bool:
        if isinstance(entry, list):
            return any(map(fits, entry))
        if not isinstance(entry, dict) or entry.get("shape") != shape or entry["Norm"] is None:
            return False
        return np.allclose([entry["Max"], entry["Min"], entry["Norm"]], [high, low, norm], rtol=1e-5, atol=1e-7)

    outputs = (record.get("output") for name, record in records.items() if name.endswith(direction))
    return any(map(fits, outputs))


@pytest.mark.parametrize("case", CASES)
def test_the_result_and_the_gradient_of_an_operator_are_recorded(tmp_path, logged, case):
    call, array = CASES[case]()
    results = []
    weights = Tensor(np.random.default_rng(3).standard_normal(4096).astype(np.float32))

    def weighted(x):
        result = call(x)
        results.append(result)
        return (result.reshape(-1).astype(ms.float32) * weights[: result.size]).sum()

    with collecting(tmp_path, call if isinstance(call, nn.Cell) else None, level="L2") as dump:
        gradient = ms.grad(weighted)(Tensor(array))
    assert is_in(dump.data, ".forward", results[0])
    assert is_in(dump.data, ".backward", gradient)
    assert not logged("was not seen")
    assert all(name.startswith("Kernel.") for name in dump.names)


OPTIMIZERS = {
    **{
        name: lambda weights, name=name: getattr(nn, name)(weights, learning_rate=0.1)
        for name in ("SGD", "Adam", "AdamWeightDecay", "Adagrad", "Adadelta", "RMSProp", "FTRL", "AdaMax", "Rprop")
    },
    "Momentum": lambda weights: nn.Momentum(weights, 0.1, 0.9),
    **{
        f"experimental {name}": lambda weights, name=name: getattr(optim, name)(weights, lr=0.1)
        for name in ("SGD", "Adam", "AdamW", "RMSprop")
    },
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_an_optimizer_shows_its_gradients_and_the_parameters_before_and_after(tmp_path, case):
    def trained(collect: bool) -> tuple[Any, Any, np.ndarray]:
        weight = ms.Parameter(Tensor(ROWS.copy()), name="w")
        optimizer = OPTIMIZERS[case]([weight])
        gradient = Tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6))
        if not collect:
            optimizer((gradient,))
            return None, None, weight.asnumpy().copy()
        with collecting(tmp_path, level="L2") as dump:
            optimizer((gradient,))
        name = f"Kernel.{case.split()[-1]}.0.forward"
        return dump, dump[name], weight.asnumpy().copy()

    dump, record, after = trained(True)
    assert np.array_equal(after, trained(False)[2])
    assert not np.array_equal(after, ROWS)
    gradients, before = record["input_args"]
    assert np.isclose(gradients[0]["Max"], 1.0)
    assert np.isclose(before[0]["Norm"], np.linalg.norm(ROWS.astype(np.float64)))
    assert np.isclose(record["output"][0]["Norm"], np.linalg.norm(after.astype(np.float64)))
    assert not any(name.startswith("Jit.") for name in dump.names)
    assert "__call__" not in vars(nn.Optimizer) or vars(nn.Optimizer)["__call__"].__module__.startswith("mindspore")


def test_a_scope_ends_at_a_call_whose_operator_is_not_seen(tmp_path):
    scope = ["Kernel.Exp.0.forward", "Kernel.__getitem__.0.forward"]
    with collecting(tmp_path, level="L2", section={"scope": scope}) as dump:
        ops.sqrt(ops.exp(Tensor(ROWS))[0])
    assert dump.names == scope
