"""Masked pre-training of an encoder: pools of images, recipe, training, evaluation, card."""
