"""MindSpore without hooks: which calls are APIs."""
