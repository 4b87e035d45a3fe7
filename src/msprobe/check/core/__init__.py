"""The part of the accuracy check that needs no framework: plan, generate, run, measure and judge."""
