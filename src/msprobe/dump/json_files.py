"""Makes dump.json, stack.json, source.json, construct.json and debug.json from a journal by copying its text.

The writer uses this when a step ends, and `msprobe recover` after a crash: both give the same bytes. Each file appears
complete or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from msprobe.dump import layout, native
from msprobe.dump.journal import Scan
from msprobe.dump.phases import Phase, runs

TOGETHER = 256
HEAD_KEYS = ("task", "level", "framework", "dump_data_dir")
OPTIONAL_KEYS = ("flow",)


def write_results(directory: Path, found: Scan) -> None:
    """Makes the json files of one rank directory. dump.json (or debug.json) comes last: it means "finished"."""
    head = found.head
    if head.get("level") == "debug":
        layout.write_file(directory / layout.DEBUG, _with_head(head, _debugs(found)))
        return
    if head.get("extra_info", True):
        construct = [] if head.get("level") == "L1" else _construct(found)
        layout.write_file(directory / layout.STACK, join_members(_stacks(found), ""))
        layout.write_file(directory / layout.CONSTRUCT, join_members(construct, ""))
    if found.sources:
        layout.write_file(directory / layout.SOURCE, join_members(sources(found), ""))
    if found.training:
        layout.write_file(directory / layout.TRAINING, join_members((b'"events": ' + events(found),), ""))
    phases = list(runs(entry.phase for entry in found.records.values()))
    flow = [b'"phases": ' + _phases(phases)] if phases else []
    flow += [b'"made": ' + made_values(found)] if found.made else []
    if flow:
        layout.write_file(directory / layout.FLOW, join_members(flow, ""))
    if found.debugs:
        layout.write_file(directory / layout.DEBUG, _with_head(head, _debugs(found)))
    layout.write_file(directory / layout.DUMP, _with_head(head, _records(found)))


def _records(found: Scan) -> Iterable[bytes]:
    if native.journal is None:
        return (b"%b: %b" % (name, found.body(entry)) for name, entry in found.records.items())
    member, data = native.journal.member, found.data
    return (member(data, name, entry.bodies, entry.unfinished) for name, entry in found.records.items())


def _debugs(found: Scan) -> Iterable[bytes]:
    return (name + b": " + found.text(span) for name, span in found.debugs.items())


def events(found: Scan) -> bytes:
    """What the training loop did, as JSON: a list of objects, each with the record that ended last before it."""
    members = (b'{"after": %b, %b' % (after, found.text(span)[1:]) for after, span in found.training)
    return b"[\n  %b\n ]" % b",\n  ".join(members)


def made_values(found: Scan) -> bytes:
    """Where values come from that no recorded call produced, as JSON: a list of objects."""
    return b"[\n  %b\n ]" % b",\n  ".join(map(found.text, found.made))


def sources(found: Scan) -> Iterable[bytes]:
    """The recorded lines of each source file, as JSON members."""
    for file, spans in found.sources.items():
        yield b"%b: {%b}" % (file, b", ".join(found.text(span)[1:-1] for span in spans))


def _phases(phases: Sequence[tuple[int, Phase]]) -> bytes:
    """Where the phase changes, as JSON: the index of the first record, its phase and micro-batch."""
    return json.dumps([[index, *phase] for index, phase in phases]).encode()


def _construct(found: Scan) -> Iterable[bytes]:
    """Every record and every call without a record (at L2: APIs and modules), each with its parent."""
    parents = {**found.places, **{name: entry.parent for name, entry in found.records.items()}}
    return (name + b": " + parent for name, parent in parents.items())


def _stacks(found: Scan) -> Iterable[bytes]:
    """Names grouped by stack, in the order in which each stack was first used."""
    names: dict[int, list[bytes]] = {}
    for name, entry in found.records.items():
        if entry.stack is not None:
            names.setdefault(entry.stack, []).append(name)
    for position, (number, listed) in enumerate(names.items()):
        frames = found.text(found.stacks[number]) if number in found.stacks else b"[]"
        yield b'"%d": [[%s], %s]' % (position, b", ".join(listed), frames)


def join_members(members: Iterable[bytes], margin: str) -> Iterator[bytes]:
    """Joins members to a JSON object, one member per line."""
    before, between = f"{{\n{margin} ".encode(), f",\n{margin} ".encode()
    rest = iter(members)
    while some := list(islice(rest, TOGETHER)):
        yield before
        yield between.join(some)
        before = between
    yield f"\n{margin}}}".encode() if before is between else b"{}"


def _with_head(head: dict[str, Any], members: Iterable[bytes]) -> Iterator[bytes]:
    yield b"{\n"
    for key in (*HEAD_KEYS, *(key for key in OPTIONAL_KEYS if key in head)):
        yield f" {json.dumps(key)}: {json.dumps(head.get(key))},\n".encode()
    yield b' "data": '
    yield from join_members(members, " ")
    yield b"\n}"
