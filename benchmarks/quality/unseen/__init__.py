"""Cases that were written, with their answers, before msprobe was ever run on them. Importing this fills `cases`.

No limit or rule of msprobe was tuned on the first run of these cases (docs/quality.md).
"""
