"""From images to features: backbones, extraction and pre-training."""
