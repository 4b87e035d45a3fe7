"""The name of a test's baseline."""

from __future__ import annotations

import hashlib
import re

_LONGEST = 80


def baseline_name(file: str, name: str) -> str:
    """`test_model.block`: a directory name for any test name; two names never share one."""
    plain = f"{file}.{name}"
    safe = re.sub(r"\.{2,}", "_", re.sub(r"[^A-Za-z0-9_.-]+", "_", plain)).lstrip(".-")
    if safe == plain and len(safe) <= _LONGEST:
        return safe
    digest = hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{safe[:_LONGEST] or 'test'}-{digest}"
