"""What the user can do, in the words of each framework."""

from __future__ import annotations

from typing import NamedTuple


class Remedy(NamedTuple):
    """One sentence for each kind of cause."""

    name: str
    seed: str
    numpy: str
    own_generator: str
    deterministic: str
    untried: str
    choice: str
    threads: str


_TORCH = Remedy(
    name="torch",
    seed="call torch.manual_seed(0) at the start of the script, with a fixed number",
    numpy="call numpy.random.seed(0) at the start of the script",
    own_generator="draw what is not part of training, such as evaluation, from a torch.Generator of its own",
    deterministic="call torch.use_deterministic_algorithms(True): then it gives one result",
    untried="replace it: neither one thread nor deterministic algorithms help",
    choice="turn autotuning off (torch.backends.cudnn.benchmark = False), and look for state that the call keeps",
    threads="set OMP_NUM_THREADS, or call torch.set_num_threads, with a fixed number",
)
_MINDSPORE = Remedy(
    name="MindSpore",
    seed="call mindspore.set_seed(0) at the start of the script, before any Cell is made, with a fixed number",
    numpy="call mindspore.set_seed(0) at the start of the script: it seeds numpy too, which draws the weights",
    own_generator="draw what is not part of training from a generator of its own, and evaluate with set_train(False)",
    deterministic="call mindspore.set_deterministic(True)",
    untried="try mindspore.set_deterministic(True) at the start of the script; if it does not help, replace the call",
    choice="try mindspore.set_deterministic(True), and look for state that the call keeps",
    threads="give runtime_num_threads of mindspore.set_context a fixed number",
)


def remedy_for(framework: object) -> Remedy:
    return _MINDSPORE if framework == "mindspore" else _TORCH
