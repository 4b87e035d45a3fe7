"""Reads MindSpore's Graph-mode Dump and Ascend's asynchronous dump files. Needs neither of them installed."""

from msprobe.graphdump.files.directory import Tensor
from msprobe.graphdump.files.statistics import Statistics
from msprobe.graphdump.graphs.operators import Operator
from msprobe.graphdump.reader import GraphDump

__all__ = ["GraphDump", "Operator", "Statistics", "Tensor"]
