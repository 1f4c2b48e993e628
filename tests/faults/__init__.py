"""Every way a job can end, on the sandbox: what had ended is home, the rest is explained, nothing is left
behind.
"""
