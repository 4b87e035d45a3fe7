"""The path of a call, without a framework: enter, select, record, leave, watch gradients."""
