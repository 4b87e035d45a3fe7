"""Arguments that a call only writes, and memory that was never written, are marked: two runs of one program differ
in them."""

from __future__ import annotations

import pytest
import torch
from collecting import collecting

DESTINATION, UNWRITTEN = "destination", "uninitialised"


def marks(item):
    return {key for key in (DESTINATION, UNWRITTEN) if isinstance(item, dict) and item.get(key)}


def marked(tmp_path, act, name, level="L1"):
    """The marks of the arguments of one call."""
    with collecting(tmp_path, level=level) as dump:
        act()
    record = dump[name]
    found = {str(number): marks(item) for number, item in enumerate(record["input_args"])}
    found.update({key: marks(item) for key, item in record["input_kwargs"].items()})
    return {key: value for key, value in found.items() if value}


def into(method, *args):
    return lambda: getattr(torch.ones(4), method)(*args)


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (into("copy_", torch.zeros(4)), "Tensor.copy_.0.forward"),
        (into("fill_", 2.0), "Tensor.fill_.0.forward"),
        (into("zero_"), "Tensor.zero_.0.forward"),
        (into("normal_"), "Tensor.normal_.0.forward"),
        (into("uniform_"), "Tensor.uniform_.0.forward"),
        (into("exponential_"), "Tensor.exponential_.0.forward"),
        (into("bernoulli_"), "Tensor.bernoulli_.0.forward"),
        (into("__setitem__", slice(None), 1.0), "Tensor.__setitem__.0.forward"),
        (into("__setitem__", ..., 1.0), "Tensor.__setitem__.0.forward"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_target_of_a_full_write_is_a_destination(tmp_path, act, name):
    assert marked(tmp_path, act, name) == {"0": {DESTINATION}}


def test_out_is_a_destination(tmp_path):
    found = marked(tmp_path, lambda: torch.add(torch.ones(2), 1, out=torch.ones(2)), "Torch.add.0.forward")
    assert found == {"out": {DESTINATION}}


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (into("add_", 1.0), "Tensor.add_.0.forward"),
        (into("__setitem__", 0, 1.0), "Tensor.__setitem__.0.forward"),
        (into("__setitem__", slice(0, 2), 1.0), "Tensor.__setitem__.0.forward"),
        (into("index_fill_", 0, torch.tensor([0]), 1.0), "Tensor.index_fill_.0.forward"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_read_or_kept_is_an_input(tmp_path, act, name):
    assert marked(tmp_path, act, name) == {}


INDEX = torch.tensor([2, 0, 3, 1])
PARTIAL = {
    "__setitem__": lambda x: x.__setitem__(INDEX, torch.arange(4.0)),
    "index_copy_": lambda x: x.index_copy_(0, INDEX, torch.arange(4.0)),
    "index_fill_": lambda x: x.index_fill_(0, INDEX, 1.0),
    "scatter_": lambda x: x.scatter_(0, INDEX, torch.arange(4.0)),
    "index_put_": lambda x: x.index_put_((INDEX,), torch.arange(4.0)),
    "masked_fill_": lambda x: x.masked_fill_(torch.ones(4, dtype=torch.bool), 1.0),
    "masked_scatter_": lambda x: x.masked_scatter_(torch.ones(4, dtype=torch.bool), torch.arange(4.0)),
}
MAKERS = {
    "empty": lambda: torch.empty(4),
    "empty_like": lambda: torch.empty_like(torch.ones(4)),
    "new_empty": lambda: torch.ones(1).new_empty(4),
    "empty_strided": lambda: torch.empty_strided((4,), (1,)),
}


@pytest.mark.parametrize("write", PARTIAL)
def test_unwritten_memory_is_marked_until_every_element_is_written(tmp_path, write):
    def act():
        made = torch.empty(4)
        PARTIAL[write](made)
        torch.relu(made)

    with collecting(tmp_path, level="L1") as dump:
        act()
    assert marks(dump[f"Tensor.{write}.0.forward"]["input_args"][0]) == {UNWRITTEN}
    assert marks(dump["Torch.relu.0.forward"]["input_args"][0]) == set()


@pytest.mark.parametrize("maker", MAKERS)
def test_all_that_make_memory_are_followed(tmp_path, maker):
    with collecting(tmp_path, level="L1") as dump:
        made = MAKERS[maker]()
        made[0] = 1.0
        torch.relu(made)
        made[1:] = 1.0
        torch.relu(made)
    assert marks(dump["Torch.relu.0.forward"]["input_args"][0]) == {UNWRITTEN}
    assert marks(dump["Torch.relu.1.forward"]["input_args"][0]) == set()


def test_the_two_halves_of_a_buffer_make_it_whole(tmp_path):
    with collecting(tmp_path, level="L1") as dump:
        made = torch.ones(1).new_empty(8, 32)
        made[:, :16].copy_(torch.ones(8, 16))
        torch.relu(made)
        torch.relu(made[:, :16])
        made[:, 16:].copy_(torch.ones(8, 16))
        torch.relu(made)
    found = [marks(dump[f"Torch.relu.{number}.forward"]["input_args"][0]) for number in range(3)]
    assert found == [{UNWRITTEN}, set(), set()]
    assert marks(dump["Tensor.copy_.0.forward"]["input_args"][0]) == {DESTINATION, UNWRITTEN}


def test_new_memory_in_the_place_of_old_memory_is_not_confused_with_it(tmp_path):
    with collecting(tmp_path, level="L1") as dump:
        for _ in range(200):
            del_me = torch.empty(1024)
            del del_me
            torch.relu(torch.ones(1024) + 1)
    assert not any(marks(item) for record in dump.data.values() for item in record["input_args"])


def test_memory_that_may_be_written_unseen_counts_as_written(tmp_path):
    with collecting(tmp_path, level="L1") as dump:
        made = torch.empty(4)
        made.numpy()[:] = 1
        torch.relu(made)
    assert marks(dump["Torch.relu.0.forward"]["input_args"][0]) == set()


def test_a_module_that_is_built_inside_a_step(tmp_path):
    with collecting(tmp_path, level="L1") as dump:
        torch.nn.Linear(4, 4)
    filled = [record for name, record in dump.data.items() if name.startswith("Tensor.uniform_")]
    assert filled
    assert all(marks(record["input_args"][0]) == {DESTINATION, UNWRITTEN} for record in filled)


def test_no_memory_is_kept(tmp_path):
    import weakref

    with collecting(tmp_path, level="L1"):
        made = torch.empty(4)
        made[0] = 1.0
        gone = weakref.ref(made)
        storage = torch.multiprocessing.reductions.StorageWeakRef(made.untyped_storage())
        del made
        assert gone() is None
        assert storage.expired()
