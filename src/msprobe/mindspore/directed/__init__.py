"""A MindSpore run that msprobe directs: it records every call, and repeats a chosen one."""
