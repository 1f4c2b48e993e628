"""vLLM, the engine that several trainers generate with."""

FOLLOWS = (
    "vllm.v1.worker.worker_base",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.engine.output_processor",
    "vllm.v1.executor.ray_utils",
    "uvicorn.server",
)
