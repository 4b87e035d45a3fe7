"""The pre-check without a framework: plan, generate, run, measure and judge."""
