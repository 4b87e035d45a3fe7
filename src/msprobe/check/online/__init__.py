"""The accuracy check during a training run: sender, receiver and the frames between them."""
