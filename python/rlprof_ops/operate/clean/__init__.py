"""A job's steps and figures for other tools, by what they already read: nothing of it unless asked."""
