"""MindSpore's Graph-mode Dump and Ascend's asynchronous dump files, read without either installed."""
