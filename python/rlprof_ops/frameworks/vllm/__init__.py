"""vLLM, as the engine inside trainers: its adapter marks what its workers run."""
