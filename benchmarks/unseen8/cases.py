"""Reads the cases of a set: a program of `programs/` and the edits of `edits/` that make the target out of it.

An edit file has blocks that begin with `rewrite NAME`, `part NAME`, `clean NAME` or `fault NAME`. A rewrite is
harmless, and is a clean pair by itself; a part is a rewrite that no clean pair uses alone. In a block:

    with: a, b       rewrites that the target has too
    golden: a        rewrites that the golden run has
    kind, place, cause, effect, world, rounding: TEXT
    s: old => new    replaces a text that occurs exactly once
    <<< … === … >>>  the same, for several lines
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

HERE = Path(__file__).parent
WORDS = ("rewrite", "part", "clean", "fault")


@dataclass
class Block:
    word: str
    name: str
    edits: list[tuple[str, str]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    def names(self, key: str) -> list[str]:
        return [name.strip() for name in self.settings.get(key, "").split(",") if name.strip()]


@dataclass(frozen=True)
class Case:
    name: str
    program: str
    fault: bool
    settings: dict[str, str]
    beside: tuple[str, ...]
    target: str
    golden: str
    task: str
    lines: tuple[str, ...]


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    lines = iter(text.splitlines())
    for line in lines:
        word, _, rest = line.partition(" ")
        if not line.strip() or line.startswith("#"):
            continue
        if word in WORDS:
            found.append(Block(word, rest.strip()))
        elif line == "<<<":
            old, new = [], []
            for line in lines:
                if line == "===":
                    break
                old.append(line)
            for line in lines:
                if line == ">>>":
                    break
                new.append(line)
            found[-1].edits.append(("\n".join(old) + "\n", "".join(part + "\n" for part in new)))
        elif line.startswith("s: "):
            old_text, new_text = re.split(r" => ?", line[3:], maxsplit=1)
            found[-1].edits.append((old_text, new_text))
        else:
            key, sign, value = line.partition(": ")
            if not sign:
                raise ValueError(f"not understood: {line!r}")
            found[-1].settings[key] = value
    return found


def edit(source: str, edits: list[tuple[str, str]], label: str) -> str:
    for old, new in edits:
        if source.count(old) != 1:
            raise ValueError(f"{label}: {old!r} occurs {source.count(old)} times")
        source = source.replace(old, new)
    return source


def lines_of(before: str, after: str) -> tuple[str, ...]:
    """The lines of `after` that an edit changed, with their numbers, and those of `before` that it removed."""
    old, new = before.splitlines(), after.splitlines()
    found = []
    for word, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if word == "delete":
            found += [f"missing after {new_start}: {line.strip()}" for line in old[start:end]]
        elif word != "equal":
            found += [f"{number + 1}: {new[number].strip()}" for number in range(new_start, new_end)]
    return tuple(found)


def cases_of(program: str, folder: Path = HERE) -> list[Case]:
    source = (folder / "programs" / f"{program}.py").read_text()
    all_blocks = blocks((folder / "edits" / f"{program}.txt").read_text())
    rewrites = {block.name: block for block in all_blocks if block.word in ("rewrite", "part")}
    result = []
    for number, block in enumerate(block for block in all_blocks if block.word != "part"):
        label = f"{program}-{block.name}"

        def with_rewrites(names: list[str], label: str = label) -> str:
            text = source
            for name in names:
                text = with_needed(text, name, label)
            return text

        def with_needed(text: str, name: str, label: str) -> str:
            for other in rewrites[name].names("with"):
                text = with_needed(text, other, label)
            return edit(text, rewrites[name].edits, f"{label}, {name}")

        before = with_rewrites(block.names("with"))
        target = edit(before, block.edits, label)
        golden = block.names("golden")
        fault = block.word == "fault"
        beside = [name for name in block.names("with") if not fault or name not in golden]
        result.append(
            Case(
                name=label,
                program=program,
                fault=fault,
                settings=block.settings,
                beside=(*beside, *(f"golden: {name}" for name in golden if name not in block.names("with"))),
                target=target,
                golden=with_rewrites(golden),
                task="tensor" if number % 3 == 1 else "statistics",
                lines=lines_of(before, target),
            )
        )
    return result


def all_cases(folder: Path = HERE) -> list[Case]:
    return [case for path in sorted((folder / "edits").glob("*.txt")) for case in cases_of(path.stem, folder)]
