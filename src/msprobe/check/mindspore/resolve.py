"""From the title of a MindSpore record to a callable: only names in the support list, whatever a dump says.

The table is the one that collection uses. A title is looked up as a whole and never split to reach into a module. The
function that is there now is called: if a user's import in the workers replaces it, the check runs the replacement.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from msprobe.check.core.framework import NotCallable
from msprobe.check.mindspore import primitives as primitives
from msprobe.frameworks.mindspore.api_table import ListedFunction, load_table

_RANDOM = """bernoulli bernoulli_ choice_with_mask dropout dropout1d dropout2d dropout3d exponential_
fractional_max_pool2d fractional_max_pool3d gamma gumbel_softmax laplace log_normal log_uniform_candidate_sampler
multinomial multinomial_with_replacement normal normal_ poisson rand rand_like randint randint_like randn randn_like
random_ random_categorical random_gamma random_poisson randperm rrelu shuffle standard_laplace standard_normal uniform
uniform_ uniform_candidate_sampler"""


class ResolvedApi(NamedTuple):
    """`name` is the API without its module: `norm` for `mint.linalg.norm`, `Conv2D` for a Primitive."""

    name: str
    func: Callable[..., Any]
    random: bool


class Callables:
    def __init__(self) -> None:
        self.known: dict[str, ListedFunction] = {}
        self._ambiguous: set[str] = set()
        self._random = frozenset(_RANDOM.split())
        for listed in load_table():
            title = listed.api.title
            first = self.known.setdefault(title, listed)
            # `mint.norm` and `mint.linalg.norm` are both `Mint.norm`.
            if first.function is not listed.function and first.api.name != listed.api.name:
                self._ambiguous.add(title)

    def find(self, title: str, attributes: Any = None) -> ResolvedApi:
        """The callable for a title. A Primitive has the attributes in its record. Raises NotCallable or NotMade."""
        primitive = primitives.class_of(title)
        if primitive is not None:
            made = primitives.make(primitive, attributes)
            return ResolvedApi(primitive, made, primitive in primitives.RANDOM)
        listed = self.known.get(title)
        if listed is None and title.startswith("Jit."):
            raise NotCallable("a compiled region (mindspore.jit, an optimizer) cannot be run alone")
        if listed is None:
            raise NotCallable(f"{title} is not in the support list, or this installation has no such API")
        if listed.api.collective:
            raise NotCallable("a collective cannot be run alone")
        if title in self._ambiguous:
            raise NotCallable("two APIs are recorded under this name")
        return ResolvedApi(title.rpartition(".")[2], getattr(listed.holder, listed.name), listed.name in self._random)
