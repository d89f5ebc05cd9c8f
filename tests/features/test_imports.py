import subprocess
import sys

OPTIONAL = ["transformers", "onnxruntime", "onnx", "rich", "sklearn", "torchvision", "timm"]


def test_features_need_no_optional_package() -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL}))"
    code = f"{blocked}; import fedhip.features, fedhip.cli.extract, fedhip.cli.pretrain"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603
