"""msprobe: find where a moved model's numbers started to differ.

Importing this package imports neither PyTorch nor MindSpore: use `msprobe.pytorch` or
`msprobe.mindspore` for that.
"""

__version__ = "0.1.0"
