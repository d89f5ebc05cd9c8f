"""From images to features: backbones, extraction with a cache, and masked pre-training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhip.utils.late import late

if TYPE_CHECKING:
    from fedhip.features.backbones import Backbone, BackboneInfo, list_backbones, load_backbone
    from fedhip.features.devices import resolve_device
    from fedhip.features.encoder.checkpoints import load_encoder, save_encoder
    from fedhip.features.encoder.pooling import Pooling
    from fedhip.features.encoder.vit import ViT, ViTConfig
    from fedhip.features.extraction import cache_folder, extract
    from fedhip.features.precision import choose_dtype
    from fedhip.features.pretraining.evaluation import LabelledSet, evaluate_encoder, ridge_accuracy
    from fedhip.features.pretraining.pools import Pool, load_pool
    from fedhip.features.pretraining.recipe import Recipe
    from fedhip.features.pretraining.training import PretrainingOutcome, TrainingStatus, pretrain
else:
    __getattr__ = late(
        __name__,
        backbones="Backbone BackboneInfo list_backbones load_backbone",
        devices="resolve_device",
        extraction="cache_folder extract",
        precision="choose_dtype",
        **{
            "encoder.checkpoints": "load_encoder save_encoder",
            "encoder.pooling": "Pooling",
            "encoder.vit": "ViT ViTConfig",
            "pretraining.evaluation": "LabelledSet evaluate_encoder ridge_accuracy",
            "pretraining.pools": "Pool load_pool",
            "pretraining.recipe": "Recipe",
            "pretraining.training": "PretrainingOutcome TrainingStatus pretrain",
        },
    )


__all__ = [
    "Backbone",
    "BackboneInfo",
    "LabelledSet",
    "Pool",
    "Pooling",
    "PretrainingOutcome",
    "Recipe",
    "TrainingStatus",
    "ViT",
    "ViTConfig",
    "cache_folder",
    "choose_dtype",
    "evaluate_encoder",
    "extract",
    "list_backbones",
    "load_backbone",
    "load_encoder",
    "load_pool",
    "pretrain",
    "resolve_device",
    "ridge_accuracy",
    "save_encoder",
]
