"""The sync: brings a node's finished files into the run folder while the job runs."""
