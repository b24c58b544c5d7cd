"""Small checkpoints with random weights: few layers, but the widths of the real ones.

torch and the model libraries are imported inside the functions, so that only the test processes
that use a model pay for them.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from shardwright.recipes import Component

# As in the repository of the default checkpoint.
DINO_PREPROCESSING: dict[str, Any] = {
    "crop_size": None,
    "data_format": "channels_first",
    "default_to_square": True,
    "do_center_crop": None,
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_processor_type": "DINOv3ViTImageProcessorFast",
    "image_std": [0.229, 0.224, 0.225],
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 224, "width": 224},
}

_WORDS = ("a red kite two cats asleep on warm stone wall an old harbour rain glass paper boat moon "
          "picture of the with and in light blue green photograph painting tokyo über")  # fmt: skip


def make_dino(folder: Path, width: int = 1024) -> Path:
    import torch
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    torch.manual_seed(1)
    config = DINOv3ViTConfig(
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_register_tokens=4,
        initializer_range=0.1,
    )
    DINOv3ViTModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(DINO_PREPROCESSING))
    return folder


def make_vae(
    folder: Path,
    channels: int = 16,
    blocks: int = 4,
    quantized: bool = False,
    attention: bool = True,
) -> Path:
    import torch
    from diffusers import AutoencoderKL

    torch.manual_seed(2)
    AutoencoderKL(
        block_out_channels=(8,) * blocks,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=1024,
        scaling_factor=0.3611,
        shift_factor=0.1159,
        use_quant_conv=quantized,
        use_post_quant_conv=quantized,
        mid_block_add_attention=attention,
    ).save_pretrained(folder)
    return folder


def make_t5(folder: Path, width: int = 1024, full: bool = False) -> Path:
    """Make an encoder, or a full T5 as the hub has them."""
    import torch
    from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration

    torch.manual_seed(3)
    config = T5Config(
        vocab_size=512, d_model=width, d_ff=64, d_kv=16, num_heads=2, num_layers=1, dropout_rate=0.1
    )
    (T5ForConditionalGeneration if full else T5EncoderModel)(config).save_pretrained(folder)
    make_tokenizer(folder)
    return folder


def make_tokenizer(folder: Path) -> None:
    from transformers import T5Tokenizer

    letters = sorted(set("▁abcdefghijklmnopqrstuvwxyz.,'-0123456789ü"))
    words = sorted(set(_WORDS.split()))
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab += [(letter, -8.0) for letter in letters]
    vocab += [(f"▁{word}", -4.0) for word in words if f"▁{word}" not in letters]
    T5Tokenizer(vocab=vocab).save_pretrained(folder)


def with_model(component: Component, model: Path | str, **settings: Any) -> Component:  # noqa: ANN401
    """Give the component with another model, and perhaps other settings."""
    changed = {**component.settings, "model": str(model), **settings}
    return dataclasses.replace(component, settings=changed)


def edit_json(path: Path, **changes: Any) -> None:  # noqa: ANN401 - JSON
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
