"""`msprobe mcp`: a Model Context Protocol server over stdio, so that a coding agent can ask what a person can ask.

`tools` answers and knows nothing of the protocol; `replies` keeps answers small and marks text of dumps as data;
`server` connects them to the official SDK (extra `mcp`).
"""
