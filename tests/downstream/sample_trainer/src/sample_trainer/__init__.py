"""A linear model, trained on batches that are split over the ranks."""

from sample_trainer.training import average_gradients, clip_by_global_norm, train

__all__ = ["average_gradients", "clip_by_global_norm", "train"]
