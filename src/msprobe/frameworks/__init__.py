"""What msprobe knows about a framework without hooks: its list of APIs, and how to read its tensors."""
