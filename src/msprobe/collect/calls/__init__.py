"""The path of a call, as far as it does not depend on a framework: enter, select, record, leave, watch gradients."""
