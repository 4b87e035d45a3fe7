from typing import Any, Callable, Literal, Optional, Union

def scan(address: int, code: int, count: int, /) -> tuple[int, int]: ...
def ratio(first: int, code: int, second: int, other: int, count: int, floor: float, /) -> tuple[float, int, int]: ...
def look(exchange: Any, tensor: Any, /) -> Optional[Union[Literal[0], tuple[int, int, int, int]]]: ...

NOT_RUN: object

def run(
    watch: tuple[
        Any, frozenset[type], frozenset[type], dict[int, tuple[Any, int]], int, Callable[..., None], Callable[..., None]
    ],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    writes: bool,
    api: object,
    number: int,
    /,
) -> Any: ...
