"""Runs one MindSpore call: on the device under test, on the golden side, and with inputs changed by rounding.

The golden side is the same API on the CPU with every float one step wider, dtype arguments included. golden.py says
what happens if the CPU has no such kernel. The backward runs if the dump has gradients for it.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Sequence
from typing import Any, Callable, Optional

import mindspore
import numpy as np
from mindspore import Tensor, ops
from mindspore._c_expression import TensorPy

from msprobe.check.core import arguments, generate
from msprobe.check.core.arguments import NamedValue
from msprobe.check.core.framework import FAILURES, Load, Results
from msprobe.check.core.generate import NotMade
from msprobe.check.mindspore.formulas import FORMULAS
from msprobe.check.mindspore.golden import DIRECTIONS, UNWRITTEN, KernelPrecision
from msprobe.check.mindspore.resolve import ResolvedApi
from msprobe.dump.record_keys import INPUT, OUTPUT
from msprobe.frameworks.mindspore.tensors import copy_values
from msprobe.stats import dtypes

Array = np.ndarray[Any, Any]
Raise = Callable[[str], str]  # of names of dtypes
RAISED = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "complex64": "complex128"}
_GRADIENTS = ops.GradOperation(get_all=True, sens_param=True)
BY_FORMULA = "golden computed with other operators: MindSpore's CPU has no kernel in higher precision"
_LATE_ERRORS = 16  # at most one for each kernel of a call
NO_WIDER = "golden in the recorded dtypes: MindSpore's CPU has no kernel in higher precision"


class MindSporeCall:
    """A call from a record, with its tensors in memory. Raises NotMade if that is not possible."""

    def __init__(
        self,
        found: ResolvedApi,
        title: str,
        name: str,
        forward: dict[str, Any],
        backward: Optional[dict[str, Any]],
        load: Load,
        precision: KernelPrecision,
    ) -> None:
        self.api = found.name
        self.first_only = False
        self._found, self._name, self._precision = found, name, precision
        self._arguments = arguments.read(forward)
        # The kernel depends on arguments too: gelu with `approximate` uses another one.
        self._kind = f"{title} {self._arguments.args} {self._arguments.kwargs} {forward.get('attributes')}"
        items = self._arguments.tensors
        self.tensors = [_array(item, f"{name}.input.{n}", load) for n, item in enumerate(items)]
        self._is_numpy = [item["type"] == "numpy.ndarray" for item in items]
        self.incoming: list[Any] = []
        self._wants: list[bool] = []
        if backward is not None:
            self._wants = self._wanted(backward)
            given = arguments.flat_records(backward.get(INPUT), nulls=True)
            if any(self._wants):
                self.incoming = [
                    None if item is None else _array(item, f"{name}.grad.{n}", load) for n, item in enumerate(given)
                ]
        self._shared = arguments.shared_gradients(backward, items)
        self._golden_of: Optional[Callable[[Sequence[Array], Sequence[Any]], Results]] = None

    def run(self, device: str) -> Results:
        """Runs on the one device of this process."""
        return self._run(self._found.func, self.tensors, self.incoming, lambda name: name)

    def golden(self) -> Results:
        results = self._golden(self.tensors, self.incoming)
        for number in UNWRITTEN.get(self.api, ()):
            results.outputs[number] = None
        return results

    def moved(self, number: int, epsilon: float, within: bool) -> Results:
        assert self._golden_of is not None
        random = np.random.Generator(np.random.PCG64(zlib.crc32(f"{self._name}.{number}".encode())))
        tensors = [_move(one, epsilon, random, within) for one in self.tensors]
        incoming = [None if one is None else _move(one, epsilon, random, False) for one in self.incoming]
        return self._golden_of(tensors, incoming)

    # The golden side: the first way that works and is wide enough.

    def _golden(self, tensors: Sequence[Array], incoming: Sequence[Any]) -> Results:
        narrow: tuple[str, ...] = DIRECTIONS
        try:
            results = self._run_wide(tensors, incoming)
            narrow = self._precision.find_narrow(self._kind, results, self._run_nudged)
        except FAILURES:
            if not any(_wider_dtype(_name(one)) != _name(one) for one in self.tensors):
                raise
        if not narrow:
            self._golden_of = self._run_wide
            return results
        if self.api in FORMULAS:
            with contextlib.suppress(*FAILURES):
                results = self._run_formula(tensors, incoming)
                if not results.no_gradients:
                    self._golden_of = self._run_formula
                    return results
        self._golden_of = self._run_plain if "forward" in narrow else self._run_half_wide
        return self._golden_of(tensors, incoming)

    def _run_wide(self, tensors: Sequence[Array], incoming: Sequence[Any]) -> Results:
        wide = [None if one is None else _widen(one) for one in incoming]
        return self._run(self._found.func, [_widen(one) for one in tensors], wide, _wider_dtype)

    def _run_formula(self, tensors: Sequence[Array], incoming: Sequence[Any]) -> Results:
        wide = [None if one is None else _widen(one) for one in incoming]
        attributes = getattr(self._found.func, "init_attrs", {})
        formula = functools.partial(FORMULAS[self.api], attributes)
        results = self._run(formula, [_widen(one) for one in tensors], wide, _wider_dtype)
        count = len(self._run(self._found.func, self.tensors, [], lambda name: name).outputs)
        return results._replace(outputs=results.outputs + [None] * (count - len(results.outputs)), made=BY_FORMULA)

    def _run_plain(self, tensors: Sequence[Array], incoming: Sequence[Any]) -> Results:
        floats = any(_wider_dtype(_name(one)) != _name(one) for one in self.tensors)
        own = [one.astype(mine.dtype) for one, mine in zip(tensors, self.tensors)]
        results = self._run(self._found.func, own, self.incoming, lambda name: name)
        return results._replace(made=NO_WIDER, weak=DIRECTIONS) if floats else results

    def _run_half_wide(self, tensors: Sequence[Array], incoming: Sequence[Any]) -> Results:
        """Outputs in raised precision, gradients in the recorded dtypes."""
        plain = self._run_plain(tensors, incoming)
        wide = self._run_wide(tensors, incoming)
        made = f"{NO_WIDER} for its backward"
        return wide._replace(gradients=plain.gradients, no_gradients=plain.no_gradients, made=made, weak=("backward",))

    def _run_nudged(self) -> Results:
        """Runs with inputs that fill the mantissa of a float64, each a little nearer to zero so that it stays in the
        domain."""
        random = np.random.Generator(np.random.PCG64(1))
        incoming = [None if one is None else _shrink(one, random) for one in self.incoming]
        return self._run_wide([_shrink(one, random) for one in self.tensors], incoming)

    # One run.

    def _run(
        self, func: Callable[..., Any], tensors: Sequence[Array], incoming: Sequence[Any], dtype_of: Raise
    ) -> Results:
        try:
            try:
                return self._once(func, tensors, incoming, dtype_of, tuple)
            except TypeError:  # a dump does not distinguish lists and tuples; MindSpore sometimes does
                settle()
                return self._once(func, tensors, incoming, dtype_of, list)
        except FAILURES:
            settle()
            raise

    def _once(
        self,
        func: Callable[..., Any],
        tensors: Sequence[Array],
        incoming: Sequence[Any],
        dtype_of: Raise,
        sequence: Callable[[Any], Any],
    ) -> Results:
        if self._found.random:
            mindspore.set_seed(zlib.crc32(self._name.encode()) & 0x7FFFFFFF)
        places = [one if plain else _tensor(one) for one, plain in zip(tensors, self._is_numpy)]
        for number, first in self._shared.items():
            places[number] = places[first]
        backward = any(one is not None for one in incoming)

        def called(filled: list[Any]) -> Any:
            args, kwargs = (
                _sequences(arguments.fill(part, filled, lambda value: _resolve_name(value, dtype_of)), sequence)
                for part in (self._arguments.args, self._arguments.kwargs)
            )
            answer = func(*args, **kwargs)
            if answer is None and filled:  # __setitem__ returns nothing
                answer = filled[0]
            return answer

        outputs = flat(called(places))
        arrays = [as_array(one) for one in outputs]
        gradients: list[Any] = []
        trouble = ""
        if backward:
            came = [n for n, one in enumerate(arrays[: len(incoming)]) if _fits(incoming[n], one)]
            sens = tuple(_tensor(incoming[n].astype(arrays[n].dtype)) for n in came)
            try:
                gradients = self._gradients(called, places, came, sens) if came else []
            except FAILURES as error:
                trouble = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:200]
                settle()
        return Results(arrays, gradients, self._found.random, trouble)

    def _gradients(
        self, called: Callable[[list[Any]], Any], places: list[Any], came: list[int], sens: Any
    ) -> list[Any]:
        """Gradients of the tensor arguments, in order, from the gradients of the outputs numbered in `came`."""
        tensors = [number for number, plain in enumerate(self._is_numpy) if not plain]
        leaves = [n for n in tensors if self._wants[n] and n not in self._shared]

        def forward(*given: Any) -> Any:
            filled = list(places)
            for number, one in zip(leaves, given):
                filled[number] = one
            for number, first in self._shared.items():
                filled[number] = filled[first]
            outputs = flat(called(filled))
            return tuple(outputs[n] for n in came)

        made = dict(zip(leaves, _GRADIENTS(forward)(*(places[n] for n in leaves), sens)))
        return [as_array(made[n]) if n in made else None for n in tensors]

    def _wanted(self, backward: dict[str, Any]) -> list[bool]:
        """The arguments that had gradients in the training run; all floats if the dump does not say."""
        floats = [_row(one).kind in (dtypes.FLOAT, dtypes.COMPLEX) for one in self.tensors]
        recorded = backward.get(OUTPUT)
        if not isinstance(recorded, list):
            return floats
        places = iter(recorded)
        had = [plain or next(places, None) is not None for plain in self._is_numpy]
        return [one and given and not plain for one, given, plain in zip(floats, had, self._is_numpy)]


def _fits(incoming: Any, output: Array) -> bool:
    return incoming is not None and incoming.shape == output.shape


def settle() -> None:
    """After a failure: waits for the kernels that still run and drops their errors.

    MindSpore raises the error of a kernel at a later call if it runs asynchronously. Without this, the next way to
    compute the golden side fails at random with the error of the previous way.
    """
    for _ in range(_LATE_ERRORS):
        try:
            mindspore.runtime.synchronize()
            return
        except FAILURES:
            continue


def flat(value: Any) -> list[Any]:
    return arguments.flatten(value, (TensorPy, np.ndarray), np.asarray)


def as_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    try:
        return copy_values(value)[0]
    except KeyError:
        raise NotMade(f"an output of type {value.dtype} cannot be measured") from None


def _array(item: dict[str, Any], seed: str, load: Load) -> Array:
    array = load(item)
    if array is not None:
        loaded: Array = array
        return loaded
    row = generate.row_of(item)
    if row.numpy_dtype is None or row.mindspore is None:
        raise NotMade(f"MindSpore has no tensors of type {row.name}")
    with np.errstate(all="ignore"):
        made: Array = generate.make(item, seed).astype(row.numpy_dtype)
    return made


def _tensor(array: Array) -> Any:
    return Tensor(np.ascontiguousarray(array) if array.ndim else array)


def _sequences(value: Any, sequence: Callable[[Any], Any]) -> Any:
    """The outermost list is the arguments themselves."""

    def inner(one: Any) -> Any:
        if isinstance(one, list):
            return sequence([inner(part) for part in one])
        return {key: inner(part) for key, part in one.items()} if isinstance(one, dict) else one

    if isinstance(value, list):
        return [inner(one) for one in value]
    return {key: inner(one) for key, one in value.items()}


def _row(array: Array) -> dtypes.Dtype:
    row = dtypes.of_numpy(array.dtype)
    if row is None or row.mindspore is None:
        raise NotMade(f"MindSpore has no tensors of type {array.dtype}")
    return row


def _name(array: Array) -> str:
    return _row(array).name


def _wider_dtype(name: str) -> str:
    return RAISED.get(name, name)


def _widen(array: Array) -> Array:
    wide = dtypes.BY_NAME[_wider_dtype(_name(array))].numpy_dtype
    made: Array = array.astype(wide)
    return made


def _move(array: Array, epsilon: float, random: Any, within: bool) -> Array:
    wide = _widen(array)
    if wide.dtype.kind != "f" or not wide.size:
        return wide
    with np.errstate(all="ignore"):
        shifted = wide * random.uniform(1 - epsilon, 1 + epsilon, wide.shape).astype(wide.dtype)
        low, high = wide.min(), wide.max()
        made: Array = np.clip(shifted, low, high) if within and not np.isnan(low) else shifted
    return np.asarray(made)


def _shrink(array: Array, random: Any) -> Array:
    wide = _widen(array)
    return np.asarray(wide * (1 - random.uniform(2.0**-30, 2.0**-28, wide.shape))) if wide.dtype.kind == "f" else wide


def _resolve_name(value: NamedValue, dtype_of: Raise) -> Any:
    row = dtypes.BY_NAME.get(value.name.lower())
    found = getattr(mindspore, dtype_of(row.name), None) if row is not None and row.mindspore is not None else None
    if value.kind != "mindspore.dtype" or found is None:
        raise NotMade(f"{value.name[:40]!r} is not a type that this version of MindSpore has")
    return found
