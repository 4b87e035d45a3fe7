"""Configuration: config.json and constructor arguments in, one typed `Settings` out.

A bad configuration gives one error that lists every problem. Standard library only:
loading settings imports no framework.
"""

from msprobe.config.errors import ConfigError, Problem
from msprobe.config.loading import load
from msprobe.config.settings import (
    FreeBenchmarkSettings,
    OverflowSettings,
    RunUtSettings,
    Section,
    Settings,
    StatisticsSettings,
    StructureSettings,
    TensorSettings,
)

__all__ = [
    "ConfigError",
    "FreeBenchmarkSettings",
    "OverflowSettings",
    "Problem",
    "RunUtSettings",
    "Section",
    "Settings",
    "StatisticsSettings",
    "StructureSettings",
    "TensorSettings",
    "load",
]
