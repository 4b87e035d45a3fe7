"""`msprobe view`: shows a dump, two dumps, results or a running job in the browser.

`material` opens the paths of the command line with the readers of the other packages; `columns` packs the rows into
compact columns; `routes` answers the page's requests; `server` checks who sends them; `export` writes page and data to
one file. The page itself is in `page/`: plain ES modules, no framework, no build step.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, Optional, Union


class _Callable(ModuleType):
    """`msprobe.view("target", "golden")` in a notebook: the command is a package too, so the package can be called."""

    def __call__(
        self,
        target: Union[str, os.PathLike[str]],
        golden: Optional[Union[str, os.PathLike[str]]] = None,
        height: Optional[int] = None,
    ) -> Any:
        from msprobe.view.notebook import HEIGHT, show

        return show(target, golden, HEIGHT if height is None else height)


sys.modules[__name__].__class__ = _Callable
