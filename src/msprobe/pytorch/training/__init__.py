"""What the training loop does between the records: backward passes, clipping, optimizers, loss scaling."""
