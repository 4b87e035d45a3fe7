"""Writes a file that reproduces a wrong part of a region: its nodes, its inputs, and the three results."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy
import torch

from msprobe.dump.layout import write_file
from msprobe.pytorch.compiled.check.locate import Located
from msprobe.pytorch.compiled.check.runs import widen
from msprobe.pytorch.compiled.switch import inner_backend, is_named, name_backend

_INLINE = 64  # a larger input is a separate file
_PLAIN = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")

_TEXT = '''"""{title}

Written by msprobe. Run it with `python {name}`: it compiles these nodes alone and compares the compiled result with
the eager one and with fp64. Exit code 1: the compiled result is wrong.
"""

import sys
from pathlib import Path

import numpy
import torch
{imports}

class Part(torch.nn.Module):
{code}

class PartInFp64(torch.nn.Module):
{wide}

HERE = Path(__file__).resolve().parent
DTYPES = {{"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}}


def load(name, dtype, requires_grad):
    value = torch.from_numpy(numpy.load(HERE / name, allow_pickle=False))
    return value.to(getattr(torch, dtype)).requires_grad_(requires_grad)


def make(values, shape, dtype, requires_grad):
    return torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape).requires_grad_(requires_grad)


def inputs():
    return [
{inputs}
    ]


{earlier}{gradients}def widened(values):
    def wide(value):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.detach().double().requires_grad_(value.requires_grad)
        return value

    return [wide(value) for value in values]


def results(function, values, incoming=None):
    torch.manual_seed(0)
    out = [value for value in function(*values) if isinstance(value, torch.Tensor)]
    named = {{f"output {{place}}": value for place, value in enumerate(out)}}
    leaves = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
    if incoming is None:
        generator = torch.Generator().manual_seed(1)
        incoming = [torch.randn(value.shape, generator=generator, dtype=torch.float32) for value in out]
    ends = [(end, grad.to(end.dtype)) for end, grad in zip(out, incoming) if end.requires_grad and grad is not None]
    if leaves and ends:
        grads = torch.autograd.grad([end for end, _ in ends], leaves, [grad for _, grad in ends], allow_unused=True)
        named.update((f"gradient {{place}}", grad) for place, grad in enumerate(grads) if grad is not None)
    return {{name: value.detach() for name, value in named.items()}}


def error(value, exact):
    """Relative to the size of the exact value, as root of the mean square."""
    return float((value.double() - exact).square().mean().sqrt()) / max(float(exact.square().mean().sqrt()), 1e-300)


def worst_error(value, exact):
    return float((value.double() - exact).abs().max()) / max(float(exact.abs().max()), 1e-300)


def main():
    compiled = torch.compile(Part(), backend={backend}, dynamic={dynamic}{options})
{before}    found = results(compiled, inputs(){given})
    eager = results(Part(), inputs(){given})
    torch.set_default_dtype(torch.float64)
    exact = results(PartInFp64(), widened(inputs()){given})
    wrong = False
    for name, value in eager.items():
        if found[name].shape != value.shape or found[name].dtype != value.dtype:
            bad = True
            print(f"{{name}}: compiled is {{found[name].dtype}} {{tuple(found[name].shape)}}")
            print(f"{{name}}: eager is {{value.dtype}} {{tuple(value.shape)}}")
        elif not value.is_floating_point():
            bad = not torch.equal(value, found[name])
            print(f"{{name}}: {{'differs from' if bad else 'equals'}} eager")
        else:
            rounding = {roundings} * torch.finfo(value.dtype).eps
            compiled_error, eager_error = (error(each[name], exact[name]) for each in (found, eager))
            worst, eager_worst = (worst_error(each[name], exact[name]) for each in (found, eager))
            bad = not compiled_error <= max(4 * eager_error, rounding)
            bad = bad or not worst <= max(16 * eager_worst, 4 * rounding)
            print(f"{{name}}: compiled is off by {{compiled_error:.3g}}, eager by {{eager_error:.3g}}")
            print(f"{{name}}: at the worst place compiled is off by {{worst:.3g}}, eager by {{eager_worst:.3g}}")
        wrong = wrong or bad
    print("The compiled result is wrong." if wrong else "The compiled result is right.")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
'''


def write_reproducer(located: Located, directory: Path, name: str, title: str, backend: Any, dynamic: bool) -> Path:
    """Writes NAME.py, and NAME_*.npy for large inputs."""
    wide = widen(located.graph)
    earlier = ""
    if located.call.earlier:
        texts = _inputs(located.call.earlier[0], directory, f"{name}_earlier")
        earlier = 'def earlier_inputs():\n    """Other shapes, for which the code is compiled."""\n'
        earlier += f"    return [\n{texts}\n    ]\n\n\n"
    gradients = ""
    if located.call.incoming is not None:
        texts = _inputs(located.call.incoming, directory, f"{name}_gradient")
        gradients = 'def gradients():\n    """Of the results, in the run of the script."""\n'
        gradients += f"    return [\n{texts}\n    ]\n\n\n"
    backend_text, options, imports = _backend(backend)
    code, needs = _code(located.graph)
    wide_code, wide_needs = _code(wide)
    worst = torch.float32
    for value in located.call.inputs:
        if isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16):
            worst = value.dtype
    text = _TEXT.format(
        title=title,
        name=f"{name}.py",
        imports="\n".join(sorted({*imports, *needs, *wide_needs})),
        code=code,
        wide=wide_code,
        inputs=_inputs(located.call.inputs, directory, name),
        earlier=earlier,
        gradients=gradients,
        given=", gradients()" if gradients else "",
        before="    results(compiled, earlier_inputs())\n" if earlier else "",
        backend=backend_text,
        options=options,
        dynamic=dynamic,
        roundings=2 if worst != torch.float32 else 16,
    )
    path = directory / f"{name}.py"
    write_file(path, [text.encode()])
    return path


def _code(graph: torch.fx.GraphModule) -> tuple[str, list[str]]:
    generated = graph.graph.python_code("self")
    needs = []
    for name, value in generated.globals.items():
        if name in ("inf", "nan"):
            needs.append(f"from math import {name}")
        elif name == "NoneType":
            needs.append("NoneType = type(None)")
        elif isinstance(value, type) and value.__module__ == "torch":
            needs.append(f"from torch import {value.__name__} as {name}")
        elif name == "operator":
            needs.append("import operator")
    lines = [re.sub(r"\s+#.*$", "", line) for line in generated.src.strip().splitlines()]
    return "\n".join(f"    {line}" for line in lines if line.strip()) + "\n", needs


def _backend(backend: Any) -> tuple[str, str, list[str]]:
    name = name_backend(backend)
    if is_named(backend):
        options = dict(getattr(backend, "config", None) or {})
        return repr(name), f", options={options!r}" if options else "", []
    return name, "", [f"from {inner_backend(backend).__module__} import {name}"]


def _inputs(values: Any, directory: Path, name: str) -> str:
    lines = []
    for place, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            lines.append(f"        {value!r},")
            continue
        dtype = str(value.dtype).removeprefix("torch.")
        plain = value.detach().cpu()
        plain = plain if dtype in _PLAIN else plain.double()
        if value.numel() <= _INLINE and bool(torch.isfinite(plain.double()).all()):
            flat = plain.reshape(-1).tolist()
            lines.append(f"        make({flat}, {tuple(value.shape)}, {dtype!r}, {value.requires_grad}),")
        else:
            file = f"{name}_{place}.npy"
            _save(directory / file, plain.contiguous().numpy())
            lines.append(f"        load({file!r}, {dtype!r}, {value.requires_grad}),")
    return "\n".join(lines)


def _save(path: Path, array: Any) -> None:
    buffer = io.BytesIO()
    numpy.save(buffer, array, allow_pickle=False)
    write_file(path, [buffer.getvalue()])
