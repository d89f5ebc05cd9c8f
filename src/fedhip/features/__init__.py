"""From images to features: backbones, extraction with a cache, and masked pre-training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhip.utils.late import late

if TYPE_CHECKING:
    from fedhip.features.backbones import Backbone, BackboneInfo, list_backbones, load_backbone
    from fedhip.features.checkpoints import load_encoder, save_encoder
    from fedhip.features.devices import resolve_device
    from fedhip.features.evaluation import LabelledSet, evaluate_encoder, ridge_accuracy
    from fedhip.features.extraction import cache_folder, extract
    from fedhip.features.pooling import Pooling
    from fedhip.features.pools import Pool, load_pool
    from fedhip.features.precision import choose_dtype
    from fedhip.features.pretraining import Outcome, TrainingStatus, pretrain
    from fedhip.features.recipe import Recipe
    from fedhip.features.vit import ViT, ViTConfig
else:
    __getattr__ = late(
        __name__,
        backbones="Backbone BackboneInfo list_backbones load_backbone",
        checkpoints="load_encoder save_encoder",
        devices="resolve_device",
        evaluation="LabelledSet evaluate_encoder ridge_accuracy",
        extraction="cache_folder extract",
        pooling="Pooling",
        pools="Pool load_pool",
        precision="choose_dtype",
        pretraining="Outcome TrainingStatus pretrain",
        recipe="Recipe",
        vit="ViT ViTConfig",
    )


__all__ = [
    "Backbone",
    "BackboneInfo",
    "LabelledSet",
    "Outcome",
    "Pool",
    "Pooling",
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
