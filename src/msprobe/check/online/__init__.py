"""The pre-check beside a training run: sender, receiver and the frames between them."""
