"""The fourth set of cases: models and loops that no other set has. See docs/quality.md."""
