"""Three spellings of the graph's text, and the .pb file, all give the same graph."""

from __future__ import annotations

import real_dumps
from hypothesis import given
from hypothesis import strategies as st

from msprobe.graphdump.graphs.graph_pb import parse_pb
from msprobe.graphdump.graphs.ir import NOT_EXECUTED, SourceLine, Spec, parse_text, source_line

SEED_002 = """
  %20(equivoutput) = Conv2D(%17, %19) {instance name: conv2d} primitive_attrs: {IsFeatureMapInputList: (0), kernel_size: (3, 3), mode: 1, out_channel: 384, input_names: [
x, w],    pri_format: NC1HWC0, pad: (0, 0, 0, 0), visited: true, pad_mod: same, format: NCHW,  pad_list: (1, 1, 1, 1), precision_flag: reduce, groups: 1, output_used_num:
(1), stream_id:     0, stride: (1, 1, 1, 1), group: 1, dilation: (1, 1, 1, 1), output_names: [output], IsFeatureMapOutput: true, ms_function_graph: true}
       : (<Tensor[Float32], (32, 256, 13, 13)>, <Tensor[Float32], (384, 256, 3, 3)>) -> (<Tensor[Float32], (32, 384, 13, 13)>)
       : (<Float16xNC1HWC0[const vector][32, 16, 13, 13, 16]>, <Float16xFracZ[const vector][144, 24, 16, 16]>) -> (<Float32xNC1HWC0[const vector][32, 24, 13, 13, 16]>)
       : full_name_with_scope: (Default/network-WithLossCell/_backbone-AlexNet/conv3-Conv2d/Conv2D-op12)
       ...
       # In file ./tain_alexnet.py(175)/        x = self.conv3(x)/
       ...
"""  # noqa: E501

SEED_004 = """
  %24(equivoutput) = Conv2D(%23, %21) {instance name: conv2d} primitive_attrs: {compile_info: , pri_format: NC1HWC0, stride: (1, 1, 1, 1), pad: (0, 0, 0, 0), pad_mod: same, out_channel:
192, mode: 1, dilation: (1, 1, 1, 1), output_names: [output], group: 1, format: NCHW, offset_a: 0, kernel_size: (3, 3), groups: 1, input_names: [x, w], pad_list: (1, 1, 1, 1),
IsFeatureMapOutput: true, IsFeatureMapInputList: (0)}
       : (<Tensor[Float32]x[const vector][32, 128, 13, 13]>, <Tensor[Float16]x[const vector][192, 128, 3, 3]>) -> (<Tensor[Float16]x[const vector][32, 192, 13, 13]>)
       : (<Float16xNC1HWC0[const vector][32, 8, 13, 13, 16]>, <Float16xFracZ[const vector][72, 12, 16, 16]>) -> (<Float16xNC1HWC0[const vector][32, 12, 13, 13, 16]>)
       : (Default/network-WithLossCell/_backbone-AlexNet/conv3-Conv2d/Conv2D-op107)
       ...
       # In file {Absolute path of model_zoo}/official/cv/alexnet/src/alexnet.py(58)/        x = self.conv3(x)/
       ...
  %25(equivoutput) = BiasAdd(%24, %22) {instance name: bias_add} primitive_attrs: {output_used_num: (1), input_names: [x, b], format: NCHW, compile_info: , output_names: [output],
IsFeatureMapOutput: true, IsFeatureMapInputList: (0), pri_format: NC1HWC0}
       : (<Tensor[Float16]x[const vector][32, 192, 13, 13]>) -> (<Tensor[Float16]x[const vector][192]>) -> (<Tensor[Float16]x[const vector][32, 192, 13, 13]>)
       : (<Float16xNC1HWC0[const vector][32, 12, 13, 13, 16]>) -> (<Float16xDefaultFormat[const vector][192]>) -> (<Float16xNC1HWC0[const vector][32, 12, 13, 13, 16]>)
       : (Default/network-WithLossCell/_backbone-AlexNet/conv3-Conv2d/BiasAdd-op105)
       ...
       # In file {Absolute path of model_zoo}/official/cv/alexnet/src/alexnet.py(58)/        x = self.conv3(x)/
       ...
"""  # noqa: E501


def test_the_current_documents_sample_is_understood():
    (conv,) = parse_text(SEED_002).nodes
    assert (conv.key, conv.type, conv.inputs) == ("20", "Conv2D", ("17", "19"))
    assert conv.full_name == "Default/network-WithLossCell/_backbone-AlexNet/conv3-Conv2d/Conv2D-op12"
    assert conv.signature.host_inputs == (Spec("Float32", (32, 256, 13, 13)), Spec("Float32", (384, 256, 3, 3)))
    assert conv.signature.host_outputs == (Spec("Float32", (32, 384, 13, 13)),)
    assert conv.signature.device_inputs == (
        Spec("Float16", (32, 16, 13, 13, 16), "NC1HWC0"),
        Spec("Float16", (144, 24, 16, 16), "FracZ"),
    )
    assert conv.signature.device_outputs == (Spec("Float32", (32, 24, 13, 13, 16), "NC1HWC0"),)
    assert conv.lines == (SourceLine("./tain_alexnet.py", 175, 175, "x = self.conv3(x)"),)


def test_the_older_documents_sample_is_understood():
    conv, bias = parse_text(SEED_004).nodes
    assert conv.full_name.endswith("conv3-Conv2d/Conv2D-op107")
    assert conv.signature.host_outputs == (Spec("Float16", (32, 192, 13, 13)),)
    assert bias.full_name.endswith("conv3-Conv2d/BiasAdd-op105")
    assert bias.inputs == ("24", "22")
    assert bias.signature.host_inputs == (Spec("Float16", (32, 192, 13, 13)), Spec("Float16", (192,)))
    assert bias.signature.device_inputs[1] == Spec("Float16", (192,), "DefaultFormat")
    assert bias.lines[0].is_at("alexnet.py", 58)


def test_text_and_pb_of_a_real_graph_agree():
    graphs = real_dumps.alexnet() / "rank_0" / "graphs"
    text = parse_text((graphs / "ms_output_trace_code_graph_0.ir").read_text())
    message = parse_pb((graphs / "ms_output_trace_code_graph_0.pb").read_bytes())
    assert len(text.nodes) > 100
    assert [(n.type, n.full_name) for n in text.nodes] == [(n.type, n.full_name) for n in message.nodes]
    for one, other in zip(text.nodes, message.nodes):
        if one.type in NOT_EXECUTED:
            continue
        assert one.signature.host_outputs == other.signature.host_outputs, one.full_name
        ends = [
            [getattr(graph.producer(key), "full_name", None) for key in node.inputs]
            for graph, node in ((text, one), (message, other))
        ]
        assert ends[0] == ends[1], one.full_name
        # By text, not by number: for a Cell that is called on several lines (relu), the framework's two files
        # name different ones of them.
        code = [{(line.file, line.text) for line in node.lines} for node in (one, other)]
        assert code[1] <= code[0], one.full_name


def test_tuples_and_constants_are_taken_apart():
    text = (
        '  %7(CNode_33) = TopK(%para1_x, Tensor(shape=[4], dtype=Int64, value=[ 4 32, 3]), "a, b)", I64(0)) {a: 1}\n'
        "      : (<Tensor[Float32], (4)>, <Int64, NoShape>) -> (<Tuple[Tensor[Float32],Tensor[Int32]], "
        "TupleShape((2), ())>)\n"
        "      # Fullname with scope: (Default/TopK-op1)\n"
    )
    (node,) = parse_text(text).nodes
    assert node.inputs == ("%x", "Tensor(shape=[4], dtype=Int64, value=[ 4 32, 3])", '"a, b)"', "I64(0)")
    assert node.signature.host_inputs == (Spec("Float32", (4,)), Spec("Int64", None))
    assert node.signature.host_outputs == (Spec("Float32", (2,)), Spec("Int32", ()))


def test_a_tuple_of_equal_tensors_is_taken_apart():
    text = (
        "  %8(r) = Split(%3)\n"
        "      : (<Tensor[Float32], (10)>) -> (<Tuple[Tensor[Float32]*2], TupleShape((5), (5, 1))>)\n"
    )
    (node,) = parse_text(text).nodes
    assert node.signature.host_outputs == (Spec("Float32", (5,)), Spec("Float32", (5, 1)))


def test_a_line_of_code_is_found_by_its_file_and_number():
    statement = SourceLine("/home/me/train.py", 10, 12, "x = f(a,")
    assert statement.is_at("train.py", 10)
    assert statement.is_at("me/train.py", 12)
    assert statement.is_at("/home/me/train.py", 11)
    assert not statement.is_at("train.py", 13)
    assert not statement.is_at("rain.py", 10)
    block = SourceLine("/home/me/train.py", 10, 30, "def construct(self, x):")
    assert block.is_at("train.py", 10)
    assert not block.is_at("train.py", 11)


def test_every_spelling_of_a_source_note_is_read():
    expected = SourceLine("/a b/net.py", 7, 7, "return x/2")
    assert source_line("      # In file /a b/net.py(7)/    return x/2/") == expected
    assert source_line("      # In file /a b/net.py:7, 11~24/    return x/2/") == expected
    assert source_line("      #  - In file /a b/net.py:7, 11~24/    return x/2/") == expected
    assert source_line("      #    In file /a b/net.py:7/    return x/2/") == expected
    assert source_line("# In file /n.py:7~9, 1~2/def f():/") == SourceLine("/n.py", 7, 9, "def f():")
    assert source_line("# Corresponding code candidate:") is None


def test_a_graph_that_feeds_on_itself_does_not_hang():
    graph = parse_text("  %1(a) = Depend(%2)\n  %2(b) = Depend(%1)\n  %3(c) = Mul(%1)\n")
    assert graph.producer("1") is None
    assert graph.consumers == {}


def test_keys_of_several_subgraphs_do_not_meet():
    graph = parse_text(
        "subgraph @first() {\n  %0(a) = Mul(%para1_x)\n  %1(b) = Add(%0)\n"
        "  Return(%1)\n      : (<Tensor[Bool], ()>)\n}\n"
        "subgraph @second() {\n  %0(a) = Sub(%para1_x)\n  %1(b) = Exp(%0)\n}\n"
    )
    assert [(node.type, node.signature.host_outputs) for node in graph.nodes] == [
        (kind, ()) for kind in ("Mul", "Add", "Sub", "Exp")
    ]
    sources = {node.type: graph.producer(node.inputs[0]) for node in graph.nodes}
    assert [source.type if source else None for source in sources.values()] == [None, "Mul", None, "Sub"]


def test_notes_after_an_unknown_statement_belong_to_no_node():
    (node,) = parse_text(
        "  %0(a) = Mul(%para1_x)\n      # Fullname with scope: (Default/Mul-op0)\n"
        "  %1(b) = call @sub(%0)\n      # In file /n.py:7/x = 1/\n"
    ).nodes
    assert (node.full_name, node.lines) == ("Default/Mul-op0", ())


@given(st.text(max_size=300), st.integers(0, 2000))
def test_any_text_is_read_without_an_error(noise, at):
    for node in parse_text(SEED_002[:at] + noise + SEED_002[at:]).nodes:
        assert node.signature is not None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_graph_or_a_value_error(data):
    try:
        parse_pb(data)
    except ValueError as error:
        assert "not a graph message" in str(error)  # noqa: PT017
