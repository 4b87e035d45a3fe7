"""The answer of `msprobe check`: on the terminal, as JUnit XML, and as a line for GitHub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Optional
from xml.etree import ElementTree

from msprobe.baseline.changed_lines import Change
from msprobe.baseline.result import CheckResult
from msprobe.dump import layout
from msprobe.report.terminal import printable

_SOURCE = re.compile(r"(.+):(\d+) in ")


def answer_lines(result: CheckResult) -> list[str]:
    """At most ten lines or so; the first one is the answer."""
    answer, place = result.answer, result.answer.place
    lines = [f"{answer.verdict.capitalize()}: {answer.sentence}"]
    if place is not None:
        where = [f"step {place.step}" if place.step is not None else "", f"rank {place.rank}"]
        facts = {
            "call": place.call,
            "module": place.module,
            "where": ", ".join(one for one in where if one and one != "rank None"),
            "source": place.source,
        }
        lines += [f"  {name:<8}{text}" for name, text in facts.items() if text]
        origin = answer.comparison.origin
        lines += [f"          {line}" for line in (origin.evidence[-2:] if origin is not None else ())]
    for change in result.changes:
        lines += _change_lines(change)
    more = result.all_changes - len(result.changes)
    if more > 0:
        lines.append(f"  changed {'1 more place' if more == 1 else f'{more} more places'} since the baseline")
    lines.append(_how(result))
    if result.seconds is not None:
        cost = f"Cost: {result.seconds:.1f} CPU-s"
        bare = result.bare_seconds
        lines.append(f"{cost}, {result.seconds / bare:.2f} times the bare command" if bare else cost)
    return lines


def _change_lines(change: Change) -> list[str]:
    by = f" ({change.commit})" if change.commit else ""
    lines = [f"  changed {change.file}:{change.line}{by}"]
    lines += [f"          - {change.removed}"] if change.removed else []
    return [*lines, f"          + {change.added}"] if change.added else lines


def _how(result: CheckResult) -> str:
    how = "bit by bit" if result.bitwise else "within rounding"
    why = f" (the baseline has {', '.join(result.unlike)})" if result.unlike else ""
    if not result.bitwise and not result.unlike and not result.baseline.exact:
        once = result.baseline.exact is None
        why = " (saved from one run)" if once else " (repeated runs of the baseline are rounded differently)"
    return f"Checked {how} against {result.baseline.text}{why}"


def github_line(result: CheckResult) -> Optional[str]:
    """A workflow command that GitHub shows at the line of the origin; None if the check passed."""
    if result.answer.passed:
        return None
    file, line = _position(result)
    place = f"file={_escape(file, True)},line={line}," if file else ""
    text = "\n".join(answer_lines(result))
    return f"::error {place}title=msprobe check {result.baseline.name}::{_escape(text)}"


def _position(result: CheckResult) -> tuple[str, int]:
    source = result.answer.place.source if result.answer.place is not None else None
    found = _SOURCE.match(source or "")
    if found is None:
        return "", 0
    path = Path(found[1])
    here = Path.cwd()
    return (str(path.relative_to(here)) if path.is_relative_to(here) else str(path)), int(found[2])


def _escape(text: str, is_property: bool = False) -> str:
    """GitHub's escapes: a name in a dump cannot start a command of its own."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_property else text


def write_junit(path: Path, name: str, result: Optional[CheckResult], error: str = "") -> None:
    """One test case. `error` says why there is no result."""
    failed = result is not None and not result.answer.passed
    suite = ElementTree.Element(
        "testsuite", name="msprobe check", tests="1", failures=str(int(failed)), errors=str(int(result is None))
    )
    seconds = f"{result.seconds:.3f}" if result is not None and result.seconds is not None else "0"
    case = ElementTree.SubElement(suite, "testcase", classname="msprobe.check", name=name, time=seconds)
    if result is None:
        ElementTree.SubElement(case, "error", message=_xml([error]))
    elif failed:
        lines = answer_lines(result)
        ElementTree.SubElement(case, "failure", message=_xml(lines[:1])).text = _xml(lines)
    layout.write_file(path, [ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True), b"\n"])


def _xml(lines: Sequence[str]) -> str:
    """Text without the control characters that XML cannot have."""
    return "\n".join(map(printable, lines))
