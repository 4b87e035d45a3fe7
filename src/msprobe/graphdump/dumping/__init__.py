"""Makes a Graph-mode Dump: settings, the configuration for MindSpore, and the worker process."""
