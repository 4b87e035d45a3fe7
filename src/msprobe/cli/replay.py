"""`msprobe replay`: runs one recorded call again: is it deterministic, how exact is it, and whose result is nearer?"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from msprobe.messages import Message, beside

if TYPE_CHECKING:
    from msprobe.analyze.repeat_record import Part, Repetition
    from msprobe.dump.reader import RankDump

RECORDED, GOLDEN = "replay.threads_recorded", "replay.threads_golden"
EPILOG = """example:
  msprobe replay ./dump/step0/rank/Functional.softmax.3.forward
  msprobe replay ./target/step0/rank/Torch.matmul.1.backward --golden ./golden/step0/rank/Torch.matmul.1.backward
  msprobe replay ./dump/step0/rank/Module.layers.3.Block.forward.0 --run train.py --epochs 1
  the dump needs the tensors of the call (task tensor). The call runs in its dtype, and once with wider floats
  (float32 in float64, bfloat16 in float32). Distances are in units of the last place (ulp).
  A dump has no code of modules: --run starts the script, repeats the module in that step, with the recorded inputs if
  the dump has them, and ends the script. With wider floats means float64 there.
exit code: 0 deterministic, 1 not deterministic, 2 failed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("record", metavar="RECORD", help="a rank directory and the name of a record in it")
    parser.add_argument("--golden", metavar="RECORD", help="the same call in the dump of the good run")
    parser.add_argument("--times", type=int, default=16, metavar="N", help="how often to run it; default 16")
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu, cuda, npu, …; default cpu")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON; the script prints to stderr")
    parser.add_argument(
        "--run",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="for a module: the script that makes it, and its arguments; the last option",
    )


def run(args: argparse.Namespace) -> int:
    from msprobe.cli.framework import require_framework
    from msprobe.dump.errors import DumpError
    from msprobe.report.json_output import print_json
    from msprobe.report.terminal import print_lines

    rank, name = find_record(Path(args.record))
    if args.times < 1:
        raise DumpError(f"--times is {args.times}; give 1 or more")
    golden = find_record(Path(args.golden)) if args.golden else None
    require_framework(str(rank.head.get("framework")), f"replaying {name}")
    found = _repeat(args, rank, name, golden)
    notes = [*_thread_note(RECORDED, rank, found), *(_thread_note(GOLDEN, golden[0], found) if golden else ())]
    if args.json:
        parts = [{**vars(part), "nearer": part.nearer} for part in found.parts]
        answer = {"name": name, "device": found.device, "times": found.times, "results": found.results}
        said = {"notes": notes, **beside({"notes": notes}, "", "notes")}
        print_json("replay", {**answer, "parts": parts, "threads": found.threads, **said})
    else:
        word = "deterministic" if found.results == 1 else f"not deterministic: {found.results} different results"
        head = f"{name}: {word} in {found.times} runs on {found.device}"
        print_lines([head, *(f"  {_text(part)}" for part in found.parts), *(f"  note: {note}" for note in notes)])
    return 0 if found.results == 1 else 1


def _thread_note(id: str, rank: RankDump, found: Repetition) -> list[str]:
    """Some kernels add in parts, one for each thread."""
    recorded = rank.run.get("threads")
    if not isinstance(recorded, int) or found.threads is None or recorded == found.threads:
        return []
    return [Message(id, recorded=recorded, here=found.threads)]


def _repeat(args: argparse.Namespace, rank: RankDump, name: str, golden: Optional[tuple[RankDump, str]]) -> Repetition:
    """An API from its tensors alone; a module where the script calls it."""
    if not args.run:
        from msprobe.analyze.repeat_record import repeat_record

        return repeat_record(rank, name, args.times, args.device, golden)
    from msprobe.dump.errors import DumpError
    from msprobe.dump.names import is_module
    from msprobe.rerun.launch import Script
    from msprobe.rerun.replay_module import repeat_module

    if not is_module(name):
        raise DumpError(f"{name} is no module: it runs from its saved tensors, without --run")
    if args.device != "cpu":
        raise DumpError("--device has no effect with --run: the module runs where the script puts it")
    script = Script(tuple(args.run), quiet=args.json)
    script.check()
    with tempfile.TemporaryDirectory(prefix="msprobe_replay_") as directory:
        return repeat_module(script, rank, name, args.times, Path(directory), golden)


def find_record(path: Path) -> tuple[RankDump, str]:
    """The rank directory and the name of `DUMP/step0/rank/NAME`. Raises DumpError if there is no such record."""
    from msprobe.check.core.framework import FRAMEWORKS
    from msprobe.dump.errors import DumpError
    from msprobe.dump.reader import open_dump

    try:
        dump = open_dump(path.parent)
    except DumpError:
        raise DumpError(
            f"{path} is neither a dump nor a record; give the rank directory and a name in its dump.json, "
            "such as ./dump_path/step0/rank/Torch.exp.3.forward."
        ) from None
    rank, name = dump.ranks[0], path.name
    if len(dump.ranks) > 1 or name not in rank.records:
        raise DumpError(f"{path.parent} has no record {name!r}; give the rank directory and the name of a record.")
    if rank.head.get("framework") not in FRAMEWORKS:
        raise DumpError(f"{rank.label} does not name its framework; replay needs a dump of msprobe.")
    return rank, name


def _text(part: Part) -> str:
    said = [f"{part.slot}, {part.dtype}: {_ulp(part.here)} from wider floats"]
    if part.recorded is not None:
        said.append(f"recorded in the target {_ulp(part.recorded)}")
    if part.golden is not None:
        said.append(f"in the golden run {_ulp(part.golden)}")
    if part.nearer:
        said.append(f"nearer: {part.nearer}")
    return ", ".join(said)


def _ulp(value: Optional[float]) -> str:
    return "no distance" if value is None else f"{value:.3g} ulp"
