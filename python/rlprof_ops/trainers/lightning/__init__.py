"""Lightning, under both of its names."""

FOLLOWS = tuple(
    f"{root}.{module}"
    for root in ("lightning.pytorch", "pytorch_lightning")
    for module in (
        "core.module",
        "core.optimizer",
        "loops.evaluation_loop",
        "loops.optimization.automatic",
        "loops.optimization.manual",
        "loops.training_epoch_loop",
        "trainer.call",
    )
) + tuple(
    f"{root}.strategies.launchers.subprocess_script" for root in ("lightning.fabric", "lightning_fabric")
)
