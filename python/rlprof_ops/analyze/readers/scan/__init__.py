"""The compiled scanner of torch traces: an optional part, whose results are those of the reader in Python."""
