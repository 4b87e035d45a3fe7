"""`msprobe graph`: makes and reads dumps of MindSpore's graph mode; finds the data of a source line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from msprobe.cli import graph_dump
from msprobe.cli.everything import add_all

if TYPE_CHECKING:
    from msprobe.graphdump import GraphDump, Operator
    from msprobe.graphdump.check import CheckResult
    from msprobe.report.screen import Screen

EPILOG = """examples:
  msprobe graph find ./dump train.py:175          operators and data of a source line
  msprobe graph find ./dump "x = self.conv3(x)"   the same, by the text of the line
  msprobe graph op ./dump Conv2D-op12             one operator: neighbours, statistics over iterations
  msprobe graph order ./dump                      execution order, with anomalies
  msprobe graph check ./dump                      overflow, extreme values, dead tensors
  msprobe graph dump --config data_dump.json train.py   make a dump: see `msprobe graph dump --help`
exit code: 0 shown or no anomaly, 1 anomalies found (check) or nothing matched (find, op), 2 not a dump"""
LISTED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="graph_verb", required=True, metavar="dump|find|op|order|check")
    dump = verbs.add_parser("dump", help="run a training script with the Graph-mode Dump, on any device")
    graph_dump.add_arguments(dump)
    find = verbs.add_parser("find", help="show the operators of a source line and their data")
    find.add_argument("dump", type=Path, metavar="DUMP")
    find.add_argument("line", metavar="LINE", help="file.py:175, or a part of the text of the line")
    op = verbs.add_parser("op", help="show one operator: inputs, outputs, neighbours, statistics over iterations")
    op.add_argument("dump", type=Path, metavar="DUMP")
    op.add_argument("name", metavar="NAME", help="a name, a part of one, a type, or a regular expression")
    order = verbs.add_parser("order", help="show the execution order, with anomalies marked")
    order.add_argument("dump", type=Path, metavar="DUMP")
    check = verbs.add_parser("check", help="find overflow, extreme values and dead tensors")
    check.add_argument("dump", type=Path, metavar="DUMP")
    check.add_argument("--only", action="append", metavar="KIND", help="only this kind; may be repeated")
    for sub in (order, check):
        _add_limits(sub)
    for sub in (find, op, order, check):
        sub.epilog, sub.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
        sub.add_argument("--rank", type=int, help="only this rank")
        sub.add_argument("--iteration", type=int, help="only this iteration")
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        add_all(sub)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--too-large", type=float, default=1e6, metavar="X", help="report larger magnitudes; default 1e6"
    )
    parser.add_argument(
        "--too-small", type=float, default=1e-10, metavar="X", help="report smaller ones; default 1e-10"
    )
    parser.add_argument(
        "--zero-share", type=float, default=1.0, metavar="X", help="report this share of zeros; default 1"
    )
    parser.add_argument(
        "--unchanged", type=float, default=0.0, metavar="R", help="report a smaller relative change; default 0"
    )
    parser.add_argument("--range-of", metavar="DTYPE", help="report values outside this type, e.g. float16")


def run(args: argparse.Namespace) -> int:
    if args.graph_verb == "dump":
        return graph_dump.run(args)
    from msprobe.graphdump import GraphDump
    from msprobe.report.screen import Screen

    dump = GraphDump(args.dump)
    screen = Screen(args.everything, listing=True)
    code = {"find": _find, "op": _op, "order": _order, "check": _check}[args.graph_verb](args, dump, screen)
    if not args.json:
        if dump.notes:
            screen.say([f"Note: {note}" for note in dump.notes], drop=1)
        screen.show()
    return code


def _find(args: argparse.Namespace, dump: GraphDump, screen: Screen) -> int:
    from msprobe.dump.plural import count
    from msprobe.report import graph_output as output

    operators = dump.select_nodes(line=args.line, rank=args.rank)
    if args.json:
        output.print_graph_json(dump, [output.as_json(dump, operator, args.iteration) for operator in operators])
        return 0 if operators else 1
    screen.say([f"{args.line}: {count(len(operators), 'operator')}"])
    for operator in operators:
        output.add_head(screen, operator)
        output.add_slots(screen, operator)
        measured = output.measure(dump, dump.select_tensors([operator], iteration=args.iteration))
        output.add_tensors(screen, dump, measured)
    if not operators:
        screen.say([_known_lines(dump, args.line)])
    return 0 if operators else 1


def _known_lines(dump: GraphDump, query: str) -> str:
    """A hint: the known lines of that file, or the source files in the graphs."""
    lines = [line for operator in dump.operators if operator.node for line in operator.node.lines]
    wanted = query.rsplit(":", 1)[0]
    numbers = sorted({line.first for line in lines if line.is_at(wanted, line.first)})
    if numbers:
        return f"lines of {wanted} in the graphs: {', '.join(map(str, numbers))}"
    files = sorted({line.file for line in lines if not line.is_installed})
    return f"source files in the graphs: {', '.join(files) or 'none'}"


def _op(args: argparse.Namespace, dump: GraphDump, screen: Screen) -> int:
    from msprobe.dump.plural import count
    from msprobe.report import graph_output as output

    operators = _find_named(dump, args.name, args.rank)
    if args.json:
        output.print_graph_json(dump, [output.as_json(dump, operator, args.iteration) for operator in operators])
        return 0 if operators else 1
    screen.say([f"{args.name}: {count(len(operators), 'operator')}"])
    if len(operators) > LISTED:
        output.add_names(screen, operators)
        screen.say([f"more than {LISTED}: give a longer name to see their data"])
        return 0
    for operator in operators:
        output.add_head(screen, operator)
        output.add_slots(screen, operator)
        output.add_neighbours(screen, dump, operator)
        measured = output.measure(dump, dump.select_tensors([operator], iteration=args.iteration))
        output.add_tensors(screen, dump, measured)
        output.add_plots(screen, measured)
    return 0 if operators else 1


def _find_named(dump: GraphDump, name: str, rank: Optional[int]) -> tuple[Operator, ...]:
    """Operators that match `name`. Tries in this order: full name, part of a name, type, regular expression."""
    import re

    from msprobe.config.kinds import name_pattern
    from msprobe.dump.errors import DumpError

    written = name_pattern(name)  # as in data_dump.json
    if written is not None:
        name = written
    partial = () if written is not None else dump.select_nodes(name=name, rank=rank)
    exact = tuple(operator for operator in partial if name in (operator.name, operator.in_files))
    found = exact or partial or dump.select_nodes(type=name, rank=rank)
    if found and written is None:
        return found
    try:
        return dump.select_nodes(regex=name, rank=rank)
    except re.error as error:
        raise DumpError(f"no operator matches {name!r}, and it is not a regular expression: {error}.") from None


def _order(args: argparse.Namespace, dump: GraphDump, screen: Screen) -> int:
    from msprobe.dump.plural import count, have
    from msprobe.report import graph_output as output

    marks: dict[Any, dict[str, list[str]]] = {}
    checked = _run_checks(args, dump)
    output.warn(checked.unreadable)
    for finding in checked.findings:
        text = " ".join(filter(None, (finding.kind, finding.role)))
        where = marks.setdefault(finding.operator.key, {}).setdefault(text, [])
        iteration = str(finding.tensor.iteration)
        if iteration not in where:
            where.append(iteration)
    rows: list[dict[str, Any]] = []
    for position, operator in enumerate(one for one in dump.execution if args.rank in (None, one.rank)):
        line = operator.line
        rows.append(
            {
                "position": position,
                "rank": operator.rank,
                "graph": operator.graph,
                "type": operator.type,
                "name": operator.name,
                "line": f"{Path(line.file).name}:{line.first}" if line else "",
                "anomalies": marks.get(operator.key, {}),
            }
        )
    if args.json:
        output.print_graph_json(dump, rows)
        return 0
    marked = [row["name"] for row in rows if row["anomalies"]]
    found = f"{len(marked)} {have(len(marked))} anomalies, the first is {marked[0]}" if marked else "no anomaly"
    screen.say([f"{count(len(rows), 'operator')} in execution order: {found}"])
    output.add_order(screen, [[*list(row.values())[:-1], _marks(row["anomalies"])] for row in rows])
    return 0


def _marks(anomalies: dict[str, list[str]]) -> str:
    return "; ".join(f"{text} in iteration {', '.join(where)}" for text, where in anomalies.items())


def _run_checks(args: argparse.Namespace, dump: GraphDump) -> CheckResult:
    from msprobe.dump.errors import DumpError
    from msprobe.graphdump.check import KINDS, Limits, check
    from msprobe.graphdump.files.datatypes import find_type
    from msprobe.report.progress import progress

    kinds = [kind.replace("-", " ") for kind in getattr(args, "only", None) or KINDS]
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise DumpError(f"unknown check {unknown[0]!r}; choose from {', '.join(KINDS)}.")
    narrow = None
    if args.range_of is not None:
        known = find_type(args.range_of)
        if known is None or "float" not in known.name:
            raise DumpError(f"--range-of {args.range_of} is not a floating-point type; write float16 or bfloat16.")
        narrow = known.name
    limits = Limits(args.too_large, args.too_small, args.zero_share, args.unchanged, narrow)
    chosen = dump.select_tensors(rank=args.rank, iteration=args.iteration)
    return check(dump, limits, kinds, chosen, lambda items: progress(items, len(items), "checking"))


def _check(args: argparse.Namespace, dump: GraphDump, screen: Screen) -> int:
    from msprobe.dump.plural import count
    from msprobe.report import graph_output as output

    checked = _run_checks(args, dump)
    output.warn(checked.unreadable)
    rows = [
        {
            "kind": finding.kind,
            "role": finding.role,
            "rank": finding.tensor.rank,
            "graph": finding.tensor.graph,
            "iteration": finding.tensor.iteration,
            "operator": finding.operator.name,
            "slot": finding.tensor.label,
            "detail": finding.detail,
            "line": f"{finding.operator.line.file}:{finding.operator.line.first}" if finding.operator.line else "",
            "file": output.relative(dump, finding.tensor),
        }
        for finding in checked.findings
    ]
    if args.json:
        output.print_graph_json(dump, rows)
    else:
        chosen = len(dump.select_tensors(rank=args.rank, iteration=args.iteration))
        first = f", the first: {rows[0]['kind']} in {rows[0]['operator']}" if rows else ""
        checks = f"{checked.judged} of {count(chosen, 'tensor')} checked"
        screen.say([f"{count(len(rows), 'finding')}{first}; {checks}"])
        output.add_findings(screen, rows)
    return 1 if rows or checked.unreadable else 0
