"""Which file belongs to which node, in the cases that real dumps on this machine do not show."""

from __future__ import annotations

from msprobe.graphdump.graphs.ir import Graph, Node, Signature, Spec
from msprobe.graphdump.graphs.matching import DumpedOperator, match
from msprobe.graphdump.graphs.operators import link


def node(key: str, name: str, *inputs: str, dtype: str = "Float32") -> Node:
    kind = name.rsplit("/", 1)[-1].split("-op")[0]
    return Node(key, kind, name, inputs, Signature((), (Spec(dtype, (2,)),)))


def linked(nodes: list[Node], seen: dict[str, DumpedOperator], on_cpu: bool = False) -> tuple[dict[str, str], str]:
    ((links, how),) = match({0: Graph(tuple(nodes))}, {0: nodes}, {0: seen}, on_cpu).values()
    return {name: found.full_name for name, found in links.items()}, how


def test_equal_names_are_the_same_operator():
    nodes = [node("0", "Default/Add-op12"), node("1", "Default/Add-op3", "0")]
    files = {"Default_Add-op3": DumpedOperator("Add", 20), "Default_Add-op12": DumpedOperator("Add", 10)}
    assert linked(nodes, files) == (
        {"Default_Add-op3": "Default/Add-op3", "Default_Add-op12": "Default/Add-op12"},
        "name",
    )


def test_the_last_part_of_the_scope_is_enough():
    nodes = [node("0", "Default/a/Conv2D-op107"), node("1", "Default/b/Conv2D-op108")]
    files = {"Conv2D-op107": DumpedOperator("Conv2D", 1)}
    assert linked(nodes, files) == ({"Conv2D-op107": "Default/a/Conv2D-op107"}, "name")


def test_an_ambiguous_last_part_is_not_guessed():
    nodes = [node("0", "Default/a/Conv2D-op1"), node("1", "Default/b/Conv2D-op1")]
    assert linked(nodes, {"Conv2D-op1": DumpedOperator("Conv2D", 1)}) == ({}, "name")


def test_data_types_tell_that_numbers_have_changed():
    nodes = [node("0", "Default/Mul-op1", dtype="BFloat16"), node("1", "Default/Mul-op0")]
    files = {
        "Default_Mul-op0": DumpedOperator("Mul", 1, {("output", 0): "BFloat16"}),
        "Default_Mul-op1": DumpedOperator("Mul", 2, {("output", 0): "Float32"}),
    }
    assert linked(nodes, files) == (
        {"Default_Mul-op0": "Default/Mul-op1", "Default_Mul-op1": "Default/Mul-op0"},
        "order",
    )


def test_an_operator_that_ran_before_its_input_shows_it_too():
    nodes = [node("0", "Default/Mul-op1"), node("1", "Default/Mul-op0", "0")]
    early_first = {"Default_Mul-op0": DumpedOperator("Mul", 1), "Default_Mul-op1": DumpedOperator("Mul", 2)}
    assert linked(nodes, early_first)[1] == "order"
    late_first = {"Default_Mul-op0": DumpedOperator("Mul", 2), "Default_Mul-op1": DumpedOperator("Mul", 1)}
    assert linked(nodes, late_first)[1] == "name"


def test_numbers_run_on_through_the_graphs_of_a_rank():
    graphs = {0: [node("0", "Default/Cast-op1"), node("1", "Default/Cast-op2")], 1: [node("0", "Default/Cast-op0")]}
    found = match(
        {number: Graph(tuple(nodes)) for number, nodes in graphs.items()},
        graphs,
        {0: {"Default_Cast-op1": DumpedOperator("Cast", 1)}, 1: {"Default_Cast-op2": DumpedOperator("Cast", 2)}},
        True,
    )
    assert {name: one.full_name for name, one in found[0][0].items()} == {"Default_Cast-op1": "Default/Cast-op2"}
    assert {name: one.full_name for name, one in found[1][0].items()} == {"Default_Cast-op2": "Default/Cast-op0"}


def test_files_that_no_node_explains_stay_unlinked():
    assert linked([node("0", "Default/Add-op0")], {"Other_Sub-op0": DumpedOperator("Sub", 1)}) == ({}, "name")


def test_where_nothing_speaks_for_either_the_device_decides():
    nodes = [node("0", "Default/Mul-op1"), node("1", "Default/Mul-op0")]
    files = {"Default_Mul-op0": DumpedOperator("Mul", 1)}
    assert linked(nodes, files, on_cpu=True) == ({"Default_Mul-op0": "Default/Mul-op1"}, "order")
    assert linked(nodes, files, on_cpu=False) == ({"Default_Mul-op0": "Default/Mul-op0"}, "name")


def test_a_node_with_two_names_in_files_is_two_operators():
    add = node("0", "Default/Add-op0")
    names = ["Default_Add-op0", "Default_Add"]
    files = {name: DumpedOperator("Add", 1) for name in names}
    found = list(link(0, 0, [add], files, dict.fromkeys(names, add), "name"))
    assert [operator.in_files for operator in found] == names
    assert {operator.name for operator in found} == {"Default/Add-op0"}
