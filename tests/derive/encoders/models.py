"""Small checkpoints with random weights: few layers, but the widths of the real ones.

torch and the model libraries are imported inside the functions, so that only the test processes
that use a model pay for them.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from shardwright import recipes
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

# As in the repositories of facebook/dinov2-* and google/siglip2-*, the latter for smaller pictures.
DINOV2_PREPROCESSING: dict[str, Any] = {
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_processor_type": "BitImageProcessor",
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": 256},
}
SIGLIP_PREPROCESSING: dict[str, Any] = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "SiglipImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 64, "width": 64},
}

_WORDS = ("a red kite two cats asleep on warm stone wall an old harbour rain glass paper boat moon "
          "picture of the with and in light blue green photograph painting tokyo über")  # fmt: skip


def _seed(number: int) -> None:
    import torch

    torch.set_num_threads(1)  # the models are tiny, and the cores are shared with other tests
    torch.manual_seed(number)


def make_dino(folder: Path, width: int = 1024) -> Path:
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    _seed(1)
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
    width: int = 8,
) -> Path:
    from diffusers import AutoencoderKL

    _seed(2)
    AutoencoderKL(
        block_out_channels=(width,) * blocks,
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


# The configurations of small autoencoders of other classes.
_BLOCKS = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
}
AUTOENCODERS: dict[str, dict[str, Any]] = {
    "AutoencoderDC": {
        "latent_channels": 32,
        "attention_head_dim": 4,
        "encoder_block_types": ("ResBlock",) * 5 + ("EfficientViTBlock",),
        "decoder_block_types": ("ResBlock",) * 6,
        "encoder_block_out_channels": (4, 4, 4, 8, 8, 32),
        "decoder_block_out_channels": (4, 4, 4, 8, 8, 32),
        "encoder_layers_per_block": (0, 1, 1, 1, 1, 1),
        "decoder_layers_per_block": (0, 1, 1, 1, 1, 1),
        "encoder_qkv_multiscales": ((), (), (), (), (), (5,)),
        "decoder_qkv_multiscales": ((),) * 6,
        "scaling_factor": 0.41407,
    },
    "AutoencoderTiny": {
        "encoder_block_out_channels": (8,) * 4,
        "decoder_block_out_channels": (8,) * 4,
        "num_encoder_blocks": (1,) * 4,
        "num_decoder_blocks": (1,) * 4,
    },
    "AsymmetricAutoencoderKL": {
        **_BLOCKS,
        "down_block_out_channels": (8,) * 4,
        "up_block_out_channels": (8,) * 4,
        "norm_num_groups": 4,
    },
    "AutoencoderKLFlux2": {
        "block_out_channels": (8,) * 4,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "sample_size": 1024,
    },
    "AutoencoderKLHunyuanImage": {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 64,
        "block_out_channels": (32, 32, 32, 64, 64, 128),
        "layers_per_block": 1,
        "spatial_compression_ratio": 32,
        "sample_size": 384,
        "scaling_factor": 0.75289,
    },
    "AutoencoderKLKVAE": {"channels": 32, "num_enc_blocks": 1, "num_dec_blocks": 1},
    "AutoencoderKLQwenImage": {"base_dim": 8, "num_res_blocks": 1},
    "AutoencoderKLWan": {
        "base_dim": 8,
        "decoder_base_dim": 8,
        "z_dim": 48,
        "num_res_blocks": 1,
        "is_residual": True,
        "in_channels": 12,
        "out_channels": 12,
        "patch_size": 2,
        "scale_factor_spatial": 16,
        "latents_mean": [0.5] * 48,
        "latents_std": [2.0] * 48,
    },
}


def make_autoencoder(folder: Path, kind: str, **changes: Any) -> Path:  # noqa: ANN401 - JSON
    """Make an autoencoder of one of the other classes of diffusers."""
    import diffusers

    _seed(4)
    getattr(diffusers, kind)(**(AUTOENCODERS[kind] | changes)).save_pretrained(folder)
    return folder


def make_t5(
    folder: Path, width: int = 1024, full: bool = False, tokenizer: Path | None = None
) -> Path:
    """Make an encoder, or a full T5 as the hub has them; its tokenizer may lie elsewhere."""
    from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration

    _seed(3)
    config = T5Config(
        vocab_size=512, d_model=width, d_ff=64, d_kv=16, num_heads=2, num_layers=1, dropout_rate=0.1
    )
    (T5ForConditionalGeneration if full else T5EncoderModel)(config).save_pretrained(folder)
    make_tokenizer(tokenizer or folder)
    return folder


def make_tokenizer(folder: Path) -> None:
    from transformers import T5Tokenizer

    letters = sorted(set("▁abcdefghijklmnopqrstuvwxyz.,'-0123456789ü"))
    words = sorted(set(_WORDS.split()))
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab += [(letter, -8.0) for letter in letters]
    vocab += [(f"▁{word}", -4.0) for word in words if f"▁{word}" not in letters]
    T5Tokenizer(vocab=vocab).save_pretrained(folder)


def make_vision(folder: Path, kind: str, width: int = 32) -> Path:
    """Make a DINOv2 (without or with registers), a DINOv3, or a SigLIP2 as the hub has them."""
    import transformers

    _seed(5)
    small = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 4}
    preprocessing = DINO_PREPROCESSING
    if kind == "SiglipModel":
        vision = {**small, "intermediate_size": 64, "image_size": 64}
        text = {**small, "intermediate_size": 64, "vocab_size": 99}
        config = transformers.SiglipConfig(vision_config=vision, text_config=text)
        preprocessing = SIGLIP_PREPROCESSING
    elif kind == "DINOv3ViTModel":
        config = transformers.DINOv3ViTConfig(**small, intermediate_size=64, num_register_tokens=4)
    else:
        config = getattr(transformers, kind.replace("Model", "Config"))(
            **small, mlp_ratio=2, image_size=518, patch_size=14, initializer_range=0.1
        )
        preprocessing = DINOV2_PREPROCESSING
    getattr(transformers, kind)(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return folder


def make_clip(folder: Path, width: int = 32, projected: int | None = None, layers: int = 3) -> Path:
    """Make CLIP's text model, with a projection or without; its tokenizer comes apart."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    _seed(6)
    config = CLIPTextConfig(
        vocab_size=len(clip_vocabulary()[0]),
        hidden_size=width,
        intermediate_size=64,
        projection_dim=projected or width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        initializer_range=0.1,
        initializer_factor=3.0,
        eos_token_id=2,  # as in the pipelines, which then look for the largest id
    )
    kind = CLIPTextModelWithProjection if projected else CLIPTextModel
    kind(config).save_pretrained(folder)
    return folder


def clip_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Give a small vocabulary and its merges, in the order of CLIP's: "!" is the first."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    merges = []
    for word in sorted(w for w in set(_WORDS.split()) if w.isascii()):
        joined = word[0] if len(word) > 1 else ""
        for letter in [*word[1:-1], f"{word[-1]}</w>"] if joined else ():
            merges.append((joined, letter))
            joined += letter
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    unique = list(dict.fromkeys(tokens))
    return {token: number for number, token in enumerate(unique)}, list(dict.fromkeys(merges))


def make_clip_tokenizer(folder: Path, pad: str = "<|endoftext|>") -> Path:
    """Make a tokenizer as pipelines have it: without tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, merges = clip_vocabulary()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": pad}
    config = {**special, "model_max_length": 77, "tokenizer_class": "CLIPTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    return folder


def make_decoder(folder: Path, kind: str = "Qwen2", width: int = 32) -> Path:
    """Make a text model with the head that the hub's have, and its tokenizer."""
    import transformers

    _seed(7)
    size = make_byte_tokenizer(folder)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.1,
        pad_token_id=None,
    )
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    return folder


def make_byte_tokenizer(folder: Path) -> int:
    """Make a tokenizer without a first or last token, as Qwen's; give its size."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    letters = {c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": special[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab_size()


# Shipped recipes with small models


def make_small_recipe(name: str, folder: Path) -> Path:
    """Write ``NAME.toml``: a shipped recipe, with small models in the place of the real ones.

    They lie in ``folder`` as on the hub: a pipeline (``vae``, ``text_encoder``, ``tokenizer``, …),
    or for prx one folder each. Only the widths of the text models differ from the real ones.
    """
    if name == "prx":
        models = {
            "dinov3": make_dino(folder / "dinov3"),
            "vae": make_vae(folder / "vae"),
            "t5": make_t5(folder / "t5"),
        }
        return _write_recipe(name, folder, {n: (path, None) for n, path in models.items()})
    pipeline = folder / f"tiny-{name}"
    make_vae(pipeline / "vae", channels=4 if name == "sdxl" else 16, quantized=name == "sdxl")
    make_clip(pipeline / "text_encoder", 32, projected=32 if name == "sd3" else None)
    make_clip_tokenizer(pipeline / "tokenizer")
    widths: dict[str, int | None] = {"vae": None, "clip_l": 32, "clip_l_pooled": 32}
    if name != "flux":
        make_clip(pipeline / "text_encoder_2", 48, projected=48)
        make_clip_tokenizer(pipeline / "tokenizer_2", pad="!")
        widths |= {"clip_g": 48, "clip_g_pooled": 48}
    if name != "sdxl":
        number = {"flux": 2, "sd3": 3}[name]
        make_t5(pipeline / f"text_encoder_{number}", 96, tokenizer=pipeline / f"tokenizer_{number}")
        widths["t5"] = 96
    names = recipes.find(name).recipe.by_name
    chosen = {component: (pipeline, widths[component]) for component in names}
    return _write_recipe(name, folder, chosen)


def _write_recipe(name: str, folder: Path, models: dict[str, tuple[Path, int | None]]) -> Path:
    shipped = recipes.find(name).tables
    lines = [f'extends = "{name}"']
    for component, (model, width) in models.items():
        *axes, last = shipped[f"component.{component}"]["shape"]
        lines += [f"[component.{component}]", f"model = {json.dumps(str(model))}"]
        lines += [f"shape = {json.dumps([*axes, width or last])}"]
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def with_model(component: Component, model: Path | str, **settings: Any) -> Component:  # noqa: ANN401
    """Give the component with another model, and perhaps other settings."""
    changed = {**component.settings, "model": str(model), **settings}
    return dataclasses.replace(component, settings=changed)


def edit_json(path: Path, **changes: Any) -> None:  # noqa: ANN401 - JSON
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
