"""Images for the report: of the worst classes, those that clients' models get wrong."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from fedhip.data import Dataset
from fedhip.simulation.outcome import Outcome

#: Images shown of each of the worst classes, and their size in pixels.
EXAMPLES, THUMBNAIL = 2, 64


def worst_examples(
    outcome: Outcome, worst_classes: Sequence[int], images: Dataset, test_rows: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    """Test images of these classes that the personalized models get wrong."""
    room = dict.fromkeys(worst_classes, EXAMPLES)
    examples = []
    for result in outcome.clients:
        for place, predicted in result.mistakes:
            row = test_rows[result.client][place]
            true = int(images.labels[row])
            if room.get(true, 0) > 0:
                room[true] -= 1
                image = _data_url(images, row)
                examples.append({"client": result.client, "true": true, "predicted": predicted, "image": image})
    return examples


def _data_url(images: Dataset, row: int) -> str:
    buffer = io.BytesIO()
    Image.fromarray(images.read([row], THUMBNAIL)[0]).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
