"""What stands out in a job, by rules that know nothing of files or processes."""
