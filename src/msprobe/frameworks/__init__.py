"""What msprobe knows of a framework without hooking it: its list of APIs, and how to read its tensors."""
