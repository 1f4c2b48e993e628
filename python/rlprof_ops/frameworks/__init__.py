"""A profile request in a trainer's own words: NeMo RL, verl, RLinf."""
