"""Every sentence is in the table, in English and in Chinese, with the same arguments; no entry is unused."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import msprobe
from msprobe.messages import PLACE, TABLE, Message, beside, read_message, sentences, translations

SOURCES = Path(msprobe.__file__).parent
_CHINESE = re.compile("[\u4e00-\u9fff]")


def names_in(template: str) -> set[str]:
    return {found[0] for found in PLACE.findall(template)}


def strings() -> Iterator[str]:
    """Every text in the sources."""
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def given_ids() -> Iterator[tuple[str, set[str], str]]:
    """(id, names of the arguments, place) of each message that is made with a constant id and named arguments."""
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "Message" or not node.args:
                continue
            choices = [node.args[0]]
            if isinstance(node.args[0], ast.IfExp):
                choices = [node.args[0].body, node.args[0].orelse]
            for one in choices:
                if isinstance(one, ast.Constant) and all(keyword.arg for keyword in node.keywords):
                    given = {str(keyword.arg) for keyword in node.keywords}
                    yield str(one.value), given, f"{path.name}:{node.lineno}"


def test_both_languages_take_the_same_arguments() -> None:
    for id, (english, chinese) in sentences().items():
        assert names_in(chinese) <= names_in(english), id
        # Chinese has no plural: a number that only chooses a word may be left out
        needed = {name for name, one, many, _ in PLACE.findall(english) if not one and not many}
        assert names_in(chinese) >= needed, id


def test_no_id_is_given_twice() -> None:
    pairs = json.loads(TABLE.read_text(encoding="utf-8"), object_pairs_hook=list)
    assert len(pairs) == len(sentences())


def test_every_chinese_text_is_chinese() -> None:
    left = [id for id, (_, chinese) in sentences().items() if not _CHINESE.search(chinese)]
    plain = {id for id in left if not re.search("[A-Za-z]{2}", PLACE.sub("", sentences()[id][0]))}
    assert sorted(set(left) - plain) == []


def test_every_id_in_the_code_is_in_the_table_with_its_arguments() -> None:
    found = list(given_ids())
    assert len(found) > 50
    for id, given, place in found:
        assert id in sentences(), f"{place}: {id}"
        assert given == names_in(sentences()[id][0]), f"{place}: {id}"


def test_every_id_of_the_table_is_used() -> None:
    known = set(strings())
    assert [id for id in sentences() if id not in known] == []


def test_a_message_is_its_english_text() -> None:
    message = Message("values.elements", different=3, elements=12)
    assert message == "3 of 12 elements differ"
    assert message.chinese == "12 个元素中有 3 个不同"
    assert message.as_json() == {"id": "values.elements", "arguments": {"different": 3, "elements": 12}}


def test_an_argument_may_be_a_message() -> None:
    message = Message("values.nan", side=Message("side.golden"))
    assert message == "NaN in the golden run only"
    assert message.chinese == "只有标杆中有 NaN"
    side = {"id": "side.golden", "arguments": {}, "text": "golden run"}
    assert message.as_json() == {"id": "values.nan", "arguments": {"side": side}}


def test_a_list_is_joined_and_a_number_chooses_the_word() -> None:
    assert Message("excuse.settled", names=["a", "b"]) == "what follows from it agrees: a and b"
    assert Message("excuse.settled", names=["a", "b"]).chinese == "由它得到的值一致：a、b"
    assert Message("ranks", number=1, listed="3") == "rank 3"
    assert Message("ranks", number=2, listed="3, 4") == "ranks 3, 4"


def test_braces_of_a_name_are_not_filled() -> None:
    message = Message("error", text="{id} {text} {0} %s")
    assert message == message.chinese == "{id} {text} {0} %s"


def test_an_unknown_id_and_a_missing_argument_are_errors() -> None:
    with pytest.raises(KeyError):
        Message("no.such.id")
    with pytest.raises(KeyError):
        Message("values.nan", other="x")


def test_a_message_survives_copies_and_other_processes() -> None:
    message = Message("values.nan", side=Message("side.target"))
    for copied in (copy.deepcopy(message), copy.copy(message), pickle.loads(pickle.dumps(message))):
        assert copied == message
        assert copied.as_json() == message.as_json()


def test_messages_stand_beside_their_sentences() -> None:
    message = Message("found.nan")
    record = {"sentence": message, "notes": [message, "text of a library"], "empty": "", "name": "x"}
    said = {"id": "found.nan", "arguments": {}}
    assert beside(record, "sentence") == {"message": said}
    assert beside(record, "name", "empty", "absent") == {}
    assert beside(record, "sentence", "notes") == {"message": said, "messages": {"notes": [said, None]}}


def test_a_message_is_read_from_a_file_only_if_it_is_one() -> None:
    for message in (
        Message("values.nan", side=Message("side.golden")),
        Message("excuse.settled", names=["a", Message("named", name="b", said="c")]),
        Message("ranks", number=2, listed="0, 1"),
    ):
        written = json.loads(json.dumps(message.as_json()))
        read = read_message(written, 100)
        assert read == message
        assert read is not None
        assert read.as_json() == message.as_json()
    nested: dict[str, object] = {"id": "error", "arguments": {"text": "x"}}
    for _ in range(50):
        nested = {"id": "error", "arguments": {"text": nested}}
    for bad in (
        None,
        "error",
        {"id": "no.such.id", "arguments": {}},
        {"id": ["error"], "arguments": {"text": "x"}},
        {"id": "error", "arguments": {}},
        {"id": "error", "arguments": {"text": None}},
        {"id": "error", "arguments": {"text": "x" * 101}},
        {"id": "error", "arguments": {"text": 1.5}},
        {"id": "error", "arguments": {"text": 10**400}},
        {"id": "error", "arguments": ["text"]},
        {"id": "excuse.settled", "arguments": {"names": "a"}},
        {"id": "excuse.settled", "arguments": {"names": ["a"] * 1000}},
        nested,
    ):
        assert read_message(bad, 100) is None, str(bad)[:100]


def test_translations_are_by_english_text() -> None:
    assert translations([Message("found.nan"), "a name"]) == {"has NaN": "含 NaN"}
