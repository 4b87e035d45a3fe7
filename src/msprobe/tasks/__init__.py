"""What is done at one call beyond recording it: overflow_check and free_benchmark, without a framework.

A frontend brings the eyes and hands (`look`, `copy`, run again); the rules, the counting and the words are here.
"""
