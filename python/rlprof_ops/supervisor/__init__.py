"""The supervisor of each node: Ray, the driver, the sync, and the ordered end of a job."""
