"""A pair of tensor files is measured once, whatever number of names it has."""

from __future__ import annotations

import os

import numpy as np

from msprobe.compare import execute
from msprobe.compare.measure.rows import measure_files


def _files(root, names, first):
    """`names` as names of one file."""
    root.mkdir(exist_ok=True)
    np.save(root / names[0], first)
    for name in names[1:]:
        os.link(root / names[0], root / name)
    return [root / name for name in names]


def _counting(taken):
    def mapper(work, things):
        taken.extend(things)
        return map(work, things)

    return mapper


def test_links_are_measured_once_and_every_row_gets_the_result(tmp_path):
    values = np.arange(100, dtype=np.float32)
    ours = _files(tmp_path / "a", ["x.npy", "y.npy", "z.npy"], values)
    theirs = _files(tmp_path / "b", ["x.npy", "y.npy"], values * 1.5)
    other = _files(tmp_path / "c", ["z.npy"], values * 2)
    waiting = [(f"row {i}", files) for i, files in enumerate(zip(ours, [*theirs, *other]))]
    taken: list[object] = []
    found = dict(execute._measure_distinct(waiting, _counting(taken)))
    assert taken == [waiting[0][1], waiting[2][1]]
    assert found == {row: measure_files(files) for row, files in waiting}
    assert found["row 0"] != found["row 2"]


def test_a_copy_is_measured_by_itself(tmp_path):
    values = np.ones(8, np.float32)
    pairs = [
        (*_files(tmp_path / "a", [f"{i}.npy"], values), *_files(tmp_path / "b", [f"{i}.npy"], values)) for i in "xy"
    ]
    taken: list[object] = []
    list(execute._measure_distinct(list(zip("12", pairs)), _counting(taken)))
    assert taken == pairs


def test_a_pair_that_cannot_be_read_says_which_file_it_is(tmp_path):
    ours = _files(tmp_path / "a", ["x.npy", "y.npy"], np.ones(4))
    theirs = _files(tmp_path / "b", ["x.npy", "y.npy"], np.ones(4))
    theirs[0].write_bytes(b"damaged")
    gone = tmp_path / "b" / "none.npy"
    found = dict(
        execute._measure_distinct(
            [("x", (ours[0], theirs[0])), ("y", (ours[1], theirs[1])), ("none", (ours[0], gone))], _counting([])
        )
    )
    for name, path in (("x", theirs[0]), ("y", theirs[1]), ("none", gone)):
        assert found[name][0] is None
        assert str(path) in str(found[name][1])


def test_symbolic_links_are_not_taken_for_one_file(tmp_path):
    """A link may lead out of the dump: the reader decides about each name."""
    real = _files(tmp_path / "a", ["x.npy"], np.ones(4))[0]
    link = tmp_path / "a" / "link.npy"
    link.symlink_to(real)
    assert execute._identity(link) == link
    assert execute._identity(real) != execute._identity(link)
