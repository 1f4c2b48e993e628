"""What only a machine with a GPU can tell: `make test-gpu` runs it there and prints what was found."""
