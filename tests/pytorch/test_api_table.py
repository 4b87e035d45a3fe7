"""The table of APIs against what torch really hands to a TorchFunctionMode."""

from __future__ import annotations

import operator
import threading
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from framework_versions import release
from msprobe.frameworks.pytorch import api_table
from msprobe.frameworks.pytorch.api_list import CATEGORIES, ApiListError, read_lists
from msprobe.frameworks.pytorch.api_table import Api, ApiTable, load_table
from msprobe.frameworks.pytorch.operators import ARRIVES_AS
from msprobe.pytorch.apis.operator_names import OperatorNames

TABLE = load_table()
ON, OFF = read_lists(api_table.PACKAGED)


class Arrived(Exception):
    """Raised at the first arrival: whether the arguments make sense to the kernel does not matter."""


class Naming(TorchFunctionMode):
    """Names calls as the frontend does."""

    def __init__(self, spelling: OperatorNames, table: ApiTable = TABLE, stop: bool = False) -> None:
        super().__init__()
        self.spelling, self.table, self.stop = spelling, table, stop
        self.titles: list[Optional[str]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        api = self.table.lookup[func]
        dunder = self.spelling.take(func)
        if dunder is not None:
            api = self.table.operators.get(dunder)
        if type(func).__name__ != "method-wrapper":
            self.titles.append(None if api is None else api.title)
            if self.stop:
                raise Arrived
        return func(*args, **(kwargs or {}))


@pytest.fixture
def spelling() -> Any:
    spelling = OperatorNames()
    spelling.install()
    yield spelling
    spelling.remove()


def titles(call: Callable[[], Any], table: ApiTable = TABLE) -> list[Optional[str]]:
    spelling = OperatorNames()
    spelling.install()
    try:
        with Naming(spelling, table) as mode:
            call()
    finally:
        spelling.remove()
    return mode.titles


X, Y = torch.rand(3, 3) + 1, torch.rand(3, 3) + 1
N = torch.tensor([1, 2, 3])


def iadd() -> None:
    x = X
    x += 0


def setitem() -> None:
    X[0] = X[0].detach()


# --- spellings


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: X + Y, "Tensor.__add__"),
        (lambda: 1 + X, "Tensor.__radd__"),
        (iadd, "Tensor.__iadd__"),
        (lambda: X.add(Y), "Tensor.add"),
        (lambda: X.clone().add_(Y), "Tensor.add_"),
        (lambda: torch.add(X, Y), "Torch.add"),
        (lambda: X @ Y, "Tensor.__matmul__"),
        (lambda: X.matmul(Y), "Tensor.matmul"),
        (lambda: X * 2, "Tensor.__mul__"),
        (lambda: 2 * X, "Tensor.__rmul__"),
        (lambda: operator.imul(X.clone(), 2), "Tensor.__imul__"),
        (lambda: X - 1, "Tensor.__sub__"),
        (lambda: 1 - X, "Tensor.__rsub__"),
        (lambda: operator.isub(X.clone(), 2), "Tensor.__isub__"),
        (lambda: X / 2, "Tensor.__truediv__"),
        (lambda: 2 / X, "Tensor.__rtruediv__"),
        (lambda: operator.itruediv(X.clone(), 2), "Tensor.__itruediv__"),
        (lambda: X**2, "Tensor.__pow__"),
        (lambda: 2**X, "Tensor.__rpow__"),
        (lambda: operator.ipow(X.clone(), 2), "Tensor.__ipow__"),
        (lambda: -X, "Tensor.__neg__"),
        (lambda: X.neg(), "Tensor.neg"),
        (lambda: +X, "Tensor.__pos__"),
        (lambda: abs(X), "Tensor.__abs__"),
        (lambda: X > Y, "Tensor.__gt__"),
        (lambda: X >= Y, "Tensor.__ge__"),
        (lambda: X < Y, "Tensor.__lt__"),
        (lambda: X <= Y, "Tensor.__le__"),
        (lambda: X == Y, "Tensor.__eq__"),
        (lambda: X != Y, "Tensor.__ne__"),
        (lambda: X.gt(Y), "Tensor.gt"),
        (lambda: N & 1, "Tensor.__and__"),
        (lambda: 1 & N, "Tensor.__rand__"),
        (lambda: 1 | N, "Tensor.__ror__"),
        (lambda: 1 ^ N, "Tensor.__rxor__"),
        (lambda: ~N, "Tensor.__invert__"),
        (lambda: N << 1, "Tensor.__lshift__"),
        (lambda: X % 2, "Tensor.__mod__"),
        (lambda: 2 % X, "Tensor.__rmod__"),
        (lambda: operator.imod(X.clone(), 2), "Tensor.__imod__"),
        (lambda: X // 2, "Tensor.__floordiv__"),
        (lambda: 2 // X, "Tensor.__rfloordiv__"),
        (lambda: operator.ifloordiv(X.clone(), 2), "Tensor.__ifloordiv__"),
        (lambda: np.float32(2) + X, "Tensor.__radd__"),
        (lambda: X + np.float32(2), "Tensor.__add__"),
        (setitem, "Tensor.__setitem__"),
        (lambda: X[0], None),
        (lambda: X.__add__(other=Y, alpha=2), "Tensor.__add__"),
    ],
)
def test_a_call_is_named_as_it_was_written(call: Callable[[], Any], expected: Optional[str]) -> None:
    assert titles(call)[-1] == expected


def test_removing_the_operators_leaves_torch_tensor_exactly_as_it_was() -> None:
    before = dict(vars(torch.Tensor))
    spelling = OperatorNames()
    spelling.install()
    spelling.install()
    assert vars(torch.Tensor)["__add__"] is not before.get("__add__")
    spelling.remove()
    spelling.remove()
    after = dict(vars(torch.Tensor))
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


def test_an_operator_that_other_code_put_over_ours_stays(spelling: OperatorNames) -> None:
    theirs = lambda self, other: "theirs"  # noqa: E731
    torch.Tensor.__add__ = theirs
    spelling.remove()
    try:
        assert vars(torch.Tensor)["__add__"] is theirs
    finally:
        del torch.Tensor.__add__


def test_every_operator_in_the_list_of_spellings_exists_and_arrives_as_said(spelling: OperatorNames) -> None:
    for dunder, method in ARRIVES_AS.items():
        seen: list[Any] = []

        class First(TorchFunctionMode):
            def __torch_function__(self, func: Any, *_: Any, seen: list[Any] = seen) -> Any:
                seen.append((func, spelling.take(func)))
                raise Arrived

        operand = () if dunder in ("__neg__", "__pos__", "__abs__") else (N,)
        with pytest.raises(Arrived), First():
            getattr(N, dunder)(*operand)
        assert seen == [(getattr(torch.Tensor, method), dunder)]


class Reflecting:
    """Not a number: what torch answers with NotImplemented, this class answers itself."""

    def __radd__(self, other: Any) -> str:
        return "reflected"

    __rmatmul__ = __rmul__ = __gt__ = __radd__


class Mine(torch.Tensor):
    def __add__(self, other: Any) -> Any:
        return super().__add__(other)


def outcomes() -> list[Any]:
    def attempt(call: Callable[[], Any]) -> Any:
        try:
            result = call()
        except Exception as error:
            return type(error), str(error)
        return (type(result), result.tolist()) if isinstance(result, torch.Tensor) else result

    mine, leaf = X.as_subclass(Mine), X.clone().requires_grad_()
    (2 * leaf + leaf @ leaf).sum().backward()
    return [
        attempt(call)
        for call in (
            lambda: X + Reflecting(),
            lambda: X * Reflecting(),
            lambda: X @ Reflecting(),
            lambda: Reflecting() > X,
            lambda: X + "text",
            lambda: "text" + X,
            lambda: X @ None,
            lambda: X > [1],
            lambda: X.__add__("text"),
            lambda: X.__add__(),
            lambda: X.__add__(Y, alpha=3),
            lambda: X.__mul__(other=Y),
            lambda: X + torch.rand(7),
            lambda: mine + 1,
            lambda: 1 + mine,
            lambda: mine * 2,
            lambda: torch.nn.Parameter(X) + 1,
            lambda: isinstance(X + 1, torch.Tensor),
            lambda: np.float64(2) * X,
            lambda: leaf.grad,
            lambda: torch.vmap(lambda t: t + 1)(X),
        )
    ]


def test_operators_mean_the_same_while_installed() -> None:
    bare = outcomes()
    spelling = OperatorNames()
    spelling.install()
    try:
        installed = outcomes()
        with Naming(spelling):
            collected = outcomes()
    finally:
        spelling.remove()
    assert installed == bare
    assert collected == bare
    assert outcomes() == bare


def test_a_failed_operator_leaves_no_trace_in_the_next_call() -> None:
    def call() -> None:
        with pytest.raises(TypeError):
            X + "text"
        X.add(Y)

    assert titles(call)[-1] == "Tensor.add"


def test_spelling_is_right_in_every_thread(spelling: OperatorNames) -> None:
    wrong: list[Any] = []

    def work(call: Callable[[], Any], expected: str) -> None:
        with Naming(spelling) as mode:
            for _ in range(300):
                call()
        wrong.extend(title for title in mode.titles if title != expected)

    calls = [
        (lambda: X + Y, "Tensor.__add__"),
        (lambda: X.add(Y), "Tensor.add"),
        (lambda: 1 + X, "Tensor.__radd__"),
    ]
    threads = [threading.Thread(target=work, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_spelling_is_seen_below_the_handler_of_another_mode(spelling: OperatorNames) -> None:
    with Naming(spelling) as mode, torch.device("cpu"):
        X + Y
    assert mode.titles[-1] == "Tensor.__add__"


# --- arrivals

IMAGE, BOOLS, VECTOR = torch.rand(1, 4, 4, 4), N > 1, torch.rand(4)
CUBE, INDEX = torch.rand(2, 4, 4), torch.ones(2, 4, 4, dtype=torch.long)
MASK = INDEX > 0
ARGUMENTS: list[tuple[Any, ...]] = [
    *[(CUBE,), (CUBE, CUBE), (CUBE, CUBE, CUBE), (CUBE, 0), (INDEX,), (INDEX, INDEX), (MASK,), (CUBE, 0, 1)],
    *[(CUBE, 2.0), (CUBE, 0, INDEX), (CUBE, 0, INDEX, CUBE), (CUBE, 0, INDEX, 1.0), (CUBE, (0,))],
    *[(CUBE, [0], [1]), (IMAGE, 2), (IMAGE, IMAGE), ([CUBE, CUBE],), ([CUBE, CUBE], 0), (CUBE, MASK)],
    *[
        (CUBE, MASK, 1.0),
        (CUBE, MASK, CUBE),
        (CUBE, torch.float32),
        (CUBE, INDEX, CUBE),
        (CUBE, (INDEX,), CUBE),
    ],
    *[(MASK, CUBE, CUBE), (CUBE, (2, 2)), (CUBE, 0, 0), (CUBE, 1, 1, 1), (CUBE, 1.0, 1.0), (CUBE, 1, CUBE)],
    *[
        (CUBE, 0, CUBE, 0),
        (CUBE, [CUBE, CUBE]),
        (CUBE,) * 4,
        (CUBE,) * 5,
        (CUBE,) * 6,
        (4,),
        (0, 4),
        (0, 4, 5),
    ],
    *[
        (CUBE, 0, INDEX, "sum"),
        (CUBE, 0, INDEX, CUBE, "sum"),
        (CUBE, 2, None, CUBE),
        (VECTOR, 4),
        (CUBE, [4]),
    ],
    *[(CUBE, 0, True), ([CUBE], [CUBE]), (CUBE, CUBE, 1), (CUBE, lambda x: x), (CUBE, CUBE, lambda x, y: x)],
    *[(CUBE, CUBE, CUBE, lambda x, y, z: x), (CUBE, CUBE, 0), (1, CUBE), (CUBE, CUBE, 0, 0)],
    *[(CUBE, VECTOR, VECTOR, VECTOR, VECTOR, True, 0.1, 0.1, True), (CUBE, [4], VECTOR, VECTOR, 1e-5)],
    *[
        (CUBE, VECTOR, VECTOR, VECTOR, VECTOR, True, 0.1, 1e-5),
        (IMAGE, IMAGE, 0, 0, False),
        (IMAGE, [1], True),
    ],
    *[(CUBE, [CUBE, CUBE], [CUBE] * 4, True, 1, 0.0, True, False, True), (CUBE, [CUBE, CUBE], *(CUBE,) * 4)],
    *[(CUBE, CUBE, [CUBE] * 4, True, 1, 0.0, True, False, True)],
]
EXACT: dict[str, tuple[Any, ...]] = {
    "torch.einsum": ("ij,jk", X, Y),
    "functional.multi_head_attention_forward": (
        CUBE,
        CUBE,
        CUBE,
        4,
        1,
        *[VECTOR] * 2,
        *[None] * 2,
        False,
        0.0,
        CUBE,
        VECTOR,
    ),
}
# Kernels of other devices and quantized ones want arguments of their own; they are builtins like the rest.
NOT_TRIED = 55


@pytest.mark.filterwarnings("ignore")
def test_what_is_in_the_list_arrives_and_gets_the_name_in_the_list(spelling: OperatorNames) -> None:
    tried, wrong, not_tried = 0, [], []
    for category in ("functional", "vf", "tensor", "torch"):
        for name in ON[category]:
            expected = f"{api_table.PREFIXES[category]}.{name}"
            exact = EXACT.get(f"{category}.{name}")
            for arguments in [exact] if exact else ARGUMENTS:
                mode = Naming(spelling, stop=True)
                try:
                    with mode:
                        if category == "tensor":
                            getattr(arguments[0], name)(*arguments[1:])
                        else:
                            operator.attrgetter(name)(api_table._home(category))(*arguments)
                except Arrived:
                    tried += 1
                    if mode.titles != [expected]:
                        wrong.append((expected, mode.titles))
                    break
                except Exception:
                    continue
            else:
                not_tried.append(expected)
    removed = ("Tensor.qr", "Torch.qr") if release("torch") >= (2, 15) else ()  # they only raise
    assert [one for one in wrong if one[0] not in removed] == []
    assert len(not_tried) <= NOT_TRIED, not_tried
    assert tried > 1100


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: F.relu(X), ["Functional.relu"]),
        (lambda: F.gelu(X), ["Functional.gelu"]),
        (lambda: torch._C._nn.gelu(X), ["Functional.gelu"]),
        (lambda: F.linear(X, Y), ["Functional.linear"]),
        (lambda: torch.conv2d(IMAGE, IMAGE), ["Functional.conv2d"]),
        (lambda: F.sigmoid(X), ["Tensor.sigmoid"]),
        (lambda: F.tanh(X), ["Tensor.tanh"]),
        (lambda: torch._VF.tanh(X), ["Torch.tanh"]),
        (lambda: F.max_pool2d(IMAGE, 2), ["Functional.max_pool2d"]),
        (lambda: F.max_pool2d(IMAGE, 2, return_indices=True), ["Functional.max_pool2d_with_indices"]),
        (lambda: F.cross_entropy(X, N % 3), ["Tensor.__mod__", "Functional.cross_entropy"]),
        (lambda: torch.linalg.norm(X), ["Torch.linalg.norm"]),
        (lambda: torch.einsum("ij,jk", X, Y), ["Torch.einsum"]),
        (lambda: X.transpose(0, 1).reshape(9).view(3, 3), [None, None, None]),
        (lambda: (X.shape, X.T, X.data, X.grad, X.dtype, X.device), []),
        (lambda: torch.zeros(2), [None]),
        (lambda: X.to(torch.float64), ["Tensor.to"]),
        (lambda: X.clone().contiguous(), ["Tensor.clone", "Tensor.contiguous"]),
    ],
)
def test_functions_arrive_under_these_names(call: Callable[[], Any], expected: list[Optional[str]]) -> None:
    assert titles(call) == expected


def test_a_recurrent_network_is_vf() -> None:
    net = torch.nn.LSTM(3, 3)
    assert [title for title in titles(lambda: net(X)) if title] == ["VF.lstm"]


def test_property_reads_are_known_beforehand() -> None:
    for name in ("shape", "grad", "T", "dtype", "device", "requires_grad", "is_cuda"):
        assert getattr(torch.Tensor, name).__get__ in TABLE.plain
    assert {torch.is_complex, torch.Tensor.item, torch.Tensor.view} <= TABLE.plain


def test_plain_functions_can_be_ignored() -> None:
    spelled = {getattr(torch.Tensor, method) for method in ARRIVES_AS.values()}
    assert not TABLE.plain & (spelled | TABLE.untracked | TABLE.composite)
    assert not [func for func in TABLE.plain if TABLE.lookup.get(func) is not None]
    assert torch.Tensor.data.__get__ not in TABLE.plain
    assert torch.Tensor.backward not in TABLE.plain


# --- torch.ops


@torch.library.custom_op("msprobe_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_custom_operators_are_collected_however_they_are_called() -> None:
    table = load_table()
    for call in (
        lambda: twice(X),
        lambda: torch.ops.msprobe_test.twice(X),
        lambda: torch.ops.msprobe_test.twice.default(X),
    ):
        assert titles(call, table) == ["Ops.msprobe_test.twice"]
    api = table.lookup[torch.ops.msprobe_test.twice]
    assert api is not None
    assert api.untracked


def test_aten_and_the_profiler_are_off_and_can_be_switched_on(tmp_path: Path) -> None:
    def profiled() -> None:
        with torch.profiler.record_function("region"):
            torch.ops.aten.relu(X)

    assert titles(profiled) == [None, None, None]
    table = load_table(str(edited(tmp_path, "    - aten.*\n", "", "ops:\n", "ops:\n  - aten.*\n")))
    assert titles(profiled, table) == [None, "Aten.relu", None]


def test_the_more_exact_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text("ops: ['*', aten.relu]\nswitched_off:\n  ops: [aten.*, msprobe_test.twice]\n")
    table = load_table(str(path))
    assert titles(lambda: torch.ops.aten.relu(X), table) == ["Aten.relu"]
    assert titles(lambda: torch.ops.aten.sin(X), table) == [None]
    assert titles(lambda: twice(X), table) == [None]
    assert torch.ops.msprobe_test.twice.default in table.untracked
    assert torch.ops.aten.sin not in table.untracked


# --- the rest of what the frontend asks


def find(category: str, name: str) -> Api:
    func = api_table._resolve(category, name)
    assert func is not None
    api = TABLE.lookup[func]
    assert api is not None
    return api


def test_traits() -> None:
    assert find("tensor", "add_").inplace
    assert find("tensor", "__ipow__").inplace
    assert TABLE.operators["__iadd__"].inplace
    assert find("tensor", "__setitem__").inplace
    assert not find("tensor", "__invert__").inplace
    assert not find("tensor", "add").inplace
    assert find("functional", "relu").inplace_at == 1
    assert find("functional", "dropout").inplace_at == 3
    assert find("functional", "dropout").random
    assert not find("functional", "relu").random
    assert find("torch", "_fused_adamw_").untracked
    assert find("distributed", "all_reduce").collective


def test_composite_functions_are_python_functions_outside_the_list() -> None:
    assert torch.functional.meshgrid in TABLE.composite
    assert torch.nn.init.kaiming_uniform_ in TABLE.composite
    assert F.cross_entropy not in TABLE.composite
    assert torch.Tensor.backward not in TABLE.composite


def test_a_listed_function_that_is_switched_off_becomes_composite(tmp_path: Path) -> None:
    table = load_table(str(edited(tmp_path, "  - cross_entropy\n", "")))
    assert F.cross_entropy in table.composite
    assert table.lookup[F.cross_entropy] is None


def test_functions_that_change_values_without_the_version_counter_are_known() -> None:
    for func in (
        torch.Tensor.numpy,
        torch.Tensor.data.__get__,
        torch.Tensor.data.__set__,
        torch._fused_adamw_,
    ):
        assert func in TABLE.untracked
    assert torch.distributed.all_reduce in TABLE.untracked
    assert torch.Tensor.add_ not in TABLE.untracked


def test_collectives_arrive_under_the_names_that_all_versions_know(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        out, parts = torch.zeros(3, 3), [torch.zeros(3, 3)]
        called = {
            "all_reduce": (X.clone(),),
            "broadcast": (X.clone(), 0),
            "reduce": (X.clone(), 0),
            "all_gather": (parts, X),
            "all_gather_into_tensor": (out, X),
            "reduce_scatter_tensor": (out, X),
            "reduce_scatter": (out, [X]),
            "all_to_all": (parts, [X]),
            "all_to_all_single": (out, X),
            "gather": (X, parts),
            "scatter": (out, [X]),
        }
        for name, arguments in called.items():
            call = getattr(torch.distributed, name)
            seen = titles(lambda call=call, arguments=arguments: call(*arguments))
            assert seen == [f"Distributed.{name}"], name
    finally:
        torch.distributed.destroy_process_group()
    assert TABLE.by_attribute == ["batch_isend_irecv"]


# --- the list


def edited(folder: Path, *changes: str) -> Path:
    text = api_table.PACKAGED.read_text()
    for old, new in zip(changes[::2], changes[1::2]):
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "support_wrap_ops.yaml"
    path.write_text(text)
    return path


def test_every_name_except_those_of_torch_npu_exists_in_this_torch() -> None:
    assert [name for name in TABLE.missing if not name.startswith("npu.")] == []
    assert len(TABLE.missing) == len(ON["npu"])
    for category in CATEGORIES[:-2]:
        for name in OFF[category]:
            assert api_table._resolve(category, name) is not None, name


def test_one_function_has_one_line() -> None:
    seen: dict[Any, str] = {}
    for category in ("functional", "vf", "tensor", "torch", "distributed"):
        for name in ON[category] + OFF[category]:
            if category == "tensor" and name in ARRIVES_AS:
                continue
            func = api_table._resolve(category, name)
            assert func not in seen, (category, name, seen[func])
            seen[func] = f"{category}.{name}"


def test_views_metadata_and_creation_are_off() -> None:
    for name in (
        "view",
        "reshape",
        "transpose",
        "permute",
        "expand",
        "size",
        "item",
        "detach",
        "flatten",
        "split",
    ):
        assert name in OFF["tensor"]
    for name in ("zeros", "ones", "empty", "arange", "ones_like", "is_floating_point", "_foreach_add_"):
        assert name in OFF["torch"]


def test_a_moved_line_switches_a_call(tmp_path: Path) -> None:
    path = edited(tmp_path, "    - flatten\n", "", "tensor:\n", "tensor:\n  - flatten\n", "  - __add__\n", "")
    table = load_table(str(path))
    assert titles(lambda: X.flatten(), table) == ["Tensor.flatten"]
    assert titles(lambda: X + Y, table) == [None]
    assert titles(lambda: X.add(Y), table) == ["Tensor.add"]


def test_an_operator_can_be_on_while_its_method_is_off(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text("tensor: [__add__]\n")
    table = load_table(str(path))
    assert titles(lambda: X + Y, table) == ["Tensor.__add__"]
    assert titles(lambda: X.add(Y), table) == [None]


def test_a_name_that_this_torch_does_not_have_is_skipped_and_counted(tmp_path: Path) -> None:
    table = load_table(str(edited(tmp_path, "functional:\n", "functional:\n  - not_yet_invented\n")))
    assert "functional.not_yet_invented" in table.missing
    assert titles(lambda: F.relu(X), table) == ["Functional.relu"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("functional: [relu", "is not YAML"),
        ("- relu\n", "expected categories with lists of names, found list"),
        ("", "expected categories with lists of names, found nothing"),
        ("functionals: [relu]\n", "functionals is not a category"),
        ("functional: relu\n", "functional: expected a list of names, found str"),
        ("functional: [1]\n", "functional: 1 is not a name"),
        ("functional: [relu, relu]\n", "functional: relu is listed twice"),
        ("tensor: [add]\nswitched_off: {tensor: [add]}\n", "tensor: add is listed twice"),
        ("switched_off: [add]\n", "switched_off: expected categories"),
        ("switched_off: {tenser: [add]}\n", "switched_off.tenser is not a category"),
        ("off: {tensor: [add]}\n", "is not a category"),
    ],
)
def test_a_bad_list_gives_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(text)
    with pytest.raises(ApiListError) as error:
        load_table(str(path))
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_list_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ApiListError, match="cannot be read"):
        load_table(str(tmp_path / "nothing.yaml"))
