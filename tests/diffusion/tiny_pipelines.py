"""Tiny pipelines of diffusers with random weights, made on the spot; their tokenizers are trained on a few words."""

from functools import lru_cache

import diffusers
import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

CORPUS = ["a photo of a cat", "two dogs", "seven red balloons", "a painting"] * 4
SIDE = 16
"""Pixels on a side of what they draw, unless asked for more."""


@lru_cache(maxsize=1)
def clip_tokenizer():
    made = CLIPTokenizer().train_new_from_iterator(CORPUS, 300, show_progress=False)
    made.model_max_length = 12
    return made


@lru_cache(maxsize=1)
def t5_tokenizer():
    made = T5Tokenizer().train_new_from_iterator(CORPUS, 60, show_progress=False)
    made.model_max_length = 12
    return made


def clip(width, projected=True):
    tokenizer = clip_tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=12, projection_dim=width, eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config)


def t5(width):
    config = T5Config(
        vocab_size=len(t5_tokenizer()), d_model=width, d_kv=8, d_ff=2 * width, num_layers=1, num_heads=2, dropout_rate=0.0
    )
    return T5EncoderModel(config)


def vae(channels, **fields):
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 16), down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=channels, norm_num_groups=4, layers_per_block=1, sample_size=SIDE, **fields,
    )  # fmt: skip


BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def unet(width, **fields):
    return diffusers.UNet2DConditionModel(
        sample_size=SIDE // 2, in_channels=4, out_channels=4, block_out_channels=(8, 16), layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=width, attention_head_dim=4, norm_num_groups=4, **fields,
    )  # fmt: skip


def sd(**scheduler):
    of = {"steps_offset": 1, "set_alpha_to_one": False, "clip_sample": False, **BETAS, **scheduler}
    return diffusers.StableDiffusionPipeline(
        vae=vae(4, scaling_factor=0.18215), text_encoder=clip(16, projected=False), tokenizer=clip_tokenizer(), unet=unet(16),
        scheduler=diffusers.DDIMScheduler(**of), safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def sdxl():
    added = {"addition_embed_type": "text_time", "addition_time_embed_dim": 4,
             "projection_class_embeddings_input_dim": 16 + 6 * 4}  # fmt: skip
    scheduler = diffusers.DDIMScheduler(steps_offset=1, set_alpha_to_one=False, clip_sample=False, **BETAS)
    return diffusers.StableDiffusionXLPipeline(
        vae=vae(4, scaling_factor=0.13025), text_encoder=clip(16, projected=False), text_encoder_2=clip(16),
        tokenizer=clip_tokenizer(), tokenizer_2=clip_tokenizer(), unet=unet(32, **added), scheduler=scheduler,
        add_watermarker=False,
    )  # fmt: skip


def sd3(third=True):
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=SIDE // 2, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=32, caption_projection_dim=16, pooled_projection_dim=32, out_channels=4, pos_embed_max_size=16,
    )  # fmt: skip
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer, scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae(4, scaling_factor=1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=clip(16), tokenizer=clip_tokenizer(), text_encoder_2=clip(16), tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5(32) if third else None, tokenizer_3=t5_tokenizer() if third else None,
    )  # fmt: skip


def flux(guided=True):
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=16, guidance_embeds=guided, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    return diffusers.FluxPipeline(
        transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=vae(4, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=clip(16, projected=False), tokenizer=clip_tokenizer(), text_encoder_2=t5(32),
        tokenizer_2=t5_tokenizer(),
    )  # fmt: skip


MADE = {"sd": sd, "sdxl": sdxl, "sd3": sd3, "flux": flux}


@torch.no_grad()
def saved(kind, folder, **options):
    """The folder of a pipeline of a kind, whose every part is used: layers that diffusers starts at zero are random too."""
    torch.manual_seed(0)
    pipeline = MADE[kind](**options)
    network = pipeline.unet if hasattr(pipeline, "unet") else pipeline.transformer
    for parameter in network.parameters():
        if not parameter.any():
            parameter.normal_(0, 0.05)
    pipeline.save_pretrained(folder)
    return str(folder)
