"""Making a Graph-mode Dump: settings, the framework's configuration, and the worker beside the training."""
