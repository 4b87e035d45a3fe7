"""`PrecisionDebugger` for MindSpore's dynamic graph: what the framework brings to the common lifecycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from mindspore import nn

from msprobe.collect import notices
from msprobe.collect.custom import CustomApis
from msprobe.collect.debugger import Custom, Debugger, OnClassOrInstance
from msprobe.collect.lifecycle import Frontend, Probe, UsageError
from msprobe.collect.online import OnlineSender
from msprobe.collect.selection import Selection
from msprobe.config import Settings, load
from msprobe.config.settings import FreeBenchmarkSettings, OverflowSettings, TensorSettings
from msprobe.dump import layout
from msprobe.dump.writer import RankWriter
from msprobe.frameworks.mindspore.api_table import Api, load_table
from msprobe.graphdump.dumping.running import is_scheduler
from msprobe.mindspore import header
from msprobe.mindspore.apis.api_patches import ApiPatches
from msprobe.mindspore.cells.cell_calls import Models, is_compiled, named_below
from msprobe.mindspore.graph.graph_kernels import GraphKernels
from msprobe.mindspore.graph.graph_kernels import refuse as refuse_in_graph
from msprobe.mindspore.graph.graph_probe import TASKS as RECORDING_TASKS
from msprobe.mindspore.graph.graph_probe import GraphProbe, JitProbe, TappedLifecycle
from msprobe.mindspore.graph.graph_probe import refuse as refuse_cells_in_graph
from msprobe.mindspore.header import in_graph_mode
from msprobe.mindspore.kernels.kernel_calls import HAS_DISPATCH
from msprobe.mindspore.kernels.kernel_probe import KernelProbe
from msprobe.mindspore.kernels.region_kernels import RegionLifecycle
from msprobe.mindspore.probe import MindSporeProbe
from msprobe.mindspore.scheduler import SchedulerLifecycle
from msprobe.mindspore.tasks.dry_runs import DryRuns
from msprobe.mindspore.tasks.free_benchmark_probe import FreeBenchmarkProbe
from msprobe.mindspore.tasks.overflow_probe import OverflowProbe
from msprobe.tasks.free_benchmark.run import FreeBenchmarkRun
from msprobe.tasks.overflow_check.run import OverflowRun

_TASKS = ("statistics", "tensor", "structure", "overflow_check", "free_benchmark")
_PYNATIVE = "pynative"
_CUSTOM_APIS = CustomApis(lambda prefix, name: Api(f"{prefix}.{name}", name))


class MindSporeFrontend:
    name = "mindspore"
    model_kind = "a mindspore.nn.Cell"

    def __init__(self) -> None:
        self.custom = _CUSTOM_APIS
        self._sites: Optional[ApiPatches] = None
        self._sender: Optional[OnlineSender] = None
        self._overflows: Optional[OverflowRun] = None
        self._benchmark: Optional[FreeBenchmarkRun] = None
        self._rehearsals = DryRuns()

    def rank(self) -> Optional[int]:
        return header.rank()

    def filter_rank(self) -> int:
        return header.local_rank()

    def listed_models(self, model: Any) -> Optional[list[Any]]:
        models: list[Any] = Models(model) if isinstance(model, (list, tuple)) else [model]
        return models if models and all(isinstance(one, nn.Cell) for one in models) else None

    def mode_directory(self, settings: Settings, models: Sequence[Any]) -> Optional[str]:
        """`pynative` where some Cell is compiled: its inside belongs into `graph`, beside it."""
        if settings.level not in ("L0", "mix", "L2") or in_graph_mode():
            return None
        if not any(is_compiled(each.cell) for each in named_below(models)):
            return None
        if settings.task not in RECORDING_TASKS:
            notices.warn_once(
                "the model has Cells whose construct is under mindspore.jit: this task looks at them as a whole, in "
                "pynative/, and not at what runs inside them."
            )
        return _PYNATIVE

    def probe(self, settings: Settings, writer: RankWriter, selection: Selection) -> Probe:
        if in_graph_mode() and settings.level == "L0" and settings.task in RECORDING_TASKS:
            return GraphProbe(settings, writer, selection)
        if in_graph_mode():
            notices.warn_once(
                "MindSpore is in graph mode now: Cells and APIs run compiled and are not seen. "
                "Call mindspore.set_context(mode=mindspore.PYNATIVE_MODE) before the model runs."
            )
        names_calls = settings.level in ("L1", "mix", "L2")
        if names_calls and self._sites is None:
            self._sites = ApiPatches(load_table())
        sites = self._sites if names_calls else None
        if isinstance(settings.section, OverflowSettings):
            self._overflows = self._overflows or OverflowRun(settings.section.overflow_nums)
            return OverflowProbe(settings, writer, selection, sites, self.custom, self._overflows)
        if isinstance(settings.section, FreeBenchmarkSettings):
            self._benchmark = self._benchmark or FreeBenchmarkRun(settings.section, settings.dump_path)
            step = layout.parse_step(writer.directory.parent.name) or 0
            return FreeBenchmarkProbe(
                settings,
                writer,
                selection,
                sites,
                self.custom,
                self._benchmark,
                self._rehearsals,
                step,
                self.rank() or 0,
            )
        if isinstance(settings.section, TensorSettings) and settings.section.online_run_ut:
            self._sender = self._sender or OnlineSender(settings.section, self.rank())
            self._sender.opened(writer.directory)
        kind = {"L0": JitProbe, "mix": JitProbe, "L2": KernelProbe}.get(settings.level, MindSporeProbe)
        return kind(settings, writer, selection, sites, self.custom)

    def facts(self) -> dict[str, Any]:
        return header.mindspore_facts()

    def parameter_bytes(self, models: Sequence[Any]) -> int:
        return sum(int(parameter.nbytes) for model in models for parameter in model.get_parameters())

    def ending(self) -> list[str]:
        if self._sender is not None:
            self._sender.end()
        return [line for run in (self._overflows, self._benchmark) if run is not None for line in run.summary()]


class PrecisionDebugger(Debugger):
    framework = "mindspore"

    @classmethod
    def _load(cls, config_path: Optional[str], **arguments: Any) -> Settings:
        return load(cls.framework, config_path, graph_mode=in_graph_mode(), **arguments)

    @classmethod
    def _refuse(cls, settings: Settings) -> None:
        if in_graph_mode() and settings.level == "L2":
            refuse_in_graph(settings)
            return
        if in_graph_mode():
            refuse_cells_in_graph(settings)
            return
        if settings.task not in _TASKS:
            raise UsageError(
                f'task "{settings.task}" is not in this version of msprobe for MindSpore; it has: {", ".join(_TASKS)}.'
            )
        if settings.level == "L2" and not HAS_DISPATCH:
            raise UsageError('level "L2" needs MindSpore 2.8 or later; this one has: L0, L1, mix, debug.')

    @classmethod
    def _of(cls, settings: Settings) -> PrecisionDebugger:
        debugger = super()._of(settings)
        if is_scheduler():
            debugger._lifecycle = SchedulerLifecycle(settings)  # type: ignore[assignment]
        elif in_graph_mode() and settings.level == "L2":
            debugger._lifecycle = GraphKernels(settings)  # type: ignore[assignment]
        elif settings.level == "L2":
            debugger._lifecycle = RegionLifecycle(settings, debugger._lifecycle._frontend)
        elif settings.level in ("L0", "mix") and settings.task in RECORDING_TASKS:
            debugger._lifecycle = TappedLifecycle(settings, debugger._lifecycle._frontend)
        return debugger

    @classmethod
    def _frontend(cls) -> tuple[Frontend, Custom]:
        frontend = MindSporeFrontend()
        return frontend, frontend.custom

    @OnClassOrInstance
    def forward_backward_dump_end(self) -> None:
        """Deprecated: stop(), except that compiled regions go on being recorded at L1 until the step ends."""
        notices.warn_once("forward_backward_dump_end() is deprecated: use stop().")
        lifecycle = self._lifecycle
        lifecycle.stop()
        probe = lifecycle.probe
        if lifecycle.settings.level == "L1" and isinstance(probe, MindSporeProbe):
            probe.keep_jit()
