"""Interfaces of trainers, implemented with our runtime: NeMo RL's hooks, RLinf's profiler classes."""
