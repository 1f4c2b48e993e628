"""The process around the training code: who it is, how it starts and ends, what it starts in turn."""
