"""vLLM, the engine that several trainers generate with."""

FOLLOWS = ("vllm.v1.worker.worker_base", "vllm.v1.engine.output_processor", "uvicorn.server")
