"""Says what to do when the package of the same name has lost its __init__.py.

mindstudio-probe installs into the same directory. Uninstalling it also deletes the files that both have, and this
module is then what `import msprobe` finds: a package with an __init__.py comes before a module, a directory without one
after it.
"""

raise ImportError(
    "msprobe is incomplete: mindstudio-probe, which installs into the same directory, was uninstalled and took files "
    "of msprobe with it. To repair it: pip install --force-reinstall --no-deps msprobe-precision"
)
