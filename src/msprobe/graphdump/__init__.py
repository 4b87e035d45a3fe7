"""MindSpore's Graph-mode Dump and Ascend's asynchronous dump files, read without either installed."""

from msprobe.graphdump.directory import Tensor
from msprobe.graphdump.operators import Operator
from msprobe.graphdump.reader import GraphDump
from msprobe.graphdump.statistics import Statistics

__all__ = ["GraphDump", "Operator", "Statistics", "Tensor"]
