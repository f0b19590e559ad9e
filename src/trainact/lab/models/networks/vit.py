"""The paper's vision transformer for CIFAR, and the patch normalisations it is compared with.

Dosovitskiy et al.: An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale,
2021.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact.errors import TrActValueError

__all__ = ["PATCH_NORMS", "CifarViT", "DualPatchNorm", "PatchNorm", "embed_patches"]

PATCH_NORMS = ("none", "patch", "dual")


class CifarViT(nn.Module):
    """A ViT on 8 x 8 patches of 4 x 4 pixels: 7 layers, 12 heads, width 384; 6,268,810 parameters.

    Attention scores are divided by the square root of the full width, and GELU follows both layers
    of the MLP, as in the network of the paper's experiments.

    Args:
        image_size: pixels per side, a multiple of ``patches``.
        patches: patches per side.
        width: of the tokens and of the hidden layer of the MLP.
        depth: number of blocks.
        heads: a divisor of ``width``.
        patch_norm: normalisation around the embedding: "none", "patch" (PatchNorm) or "dual"
            (DualPatchNorm).
    """

    def __init__(
        self,
        num_classes: int = 10,
        *,
        in_channels: int = 3,
        image_size: int = 32,
        patches: int = 8,
        width: int = 384,
        depth: int = 7,
        heads: int = 12,
        patch_norm: str = "none",
    ) -> None:
        super().__init__()
        if image_size % patches:
            raise TrActValueError(
                f"an image of {image_size} pixels cannot be divided into {patches} x {patches} "
                "patches; use a multiple as image size, or set model.arguments.patches."
            )
        if width % heads:
            raise TrActValueError(f"heads must divide the width; got {heads} and {width}.")
        self.patch_size = image_size // patches
        self.embed = embed_patches(in_channels * self.patch_size**2, width, patch_norm)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, patches**2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes] of images [N, C, H, W]."""
        tokens = self.embed(self.cut_patches(images))
        first = self.class_token.expand(len(images), -1, -1)
        tokens = torch.cat([first, tokens], dim=1) + self.positions
        return self.head(self.norm(self.blocks(tokens)[:, 0]))

    def cut_patches(self, images: Tensor) -> Tensor:
        """Return the patches [N, patches², C·size²] of images [N, C, H, W]."""
        size = self.patch_size
        cut = images.unfold(2, size, size).unfold(3, size, size)
        return cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


class Block(nn.Module):
    """Pre-norm self-attention and MLP with residual connections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU()
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens of the same shape [N, L, width]."""
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class Attention(nn.Module):
    """Multi-head self-attention with separate projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, width**-0.5
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens of the same shape [N, L, width]."""
        projected = (layer(tokens) for layer in (self.query, self.key, self.value))
        q, k, v = (p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in projected)
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.output(mixed.transpose(1, 2).flatten(2))


class PatchNorm(nn.Sequential):
    """Normalise each patch to mean 0 and standard deviation 1, then embed it.

    ``eps`` is added to the variance, so that a patch of constant colour stays finite.
    """

    def __init__(self, embed: nn.Linear, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed.in_features, eps=eps, elementwise_affine=False)
        self.embed = embed


class DualPatchNorm(nn.Sequential):
    """Layer normalisation with scale and shift before and after the embedding of patches.

    Kumar, Dehghani, Houlsby: Dual PatchNorm, 2023.
    """

    def __init__(self, embed: nn.Linear) -> None:
        super().__init__()
        self.before = nn.LayerNorm(embed.in_features)
        self.embed = embed
        self.after = nn.LayerNorm(embed.out_features)


def embed_patches(inputs: int, width: int, patch_norm: str) -> nn.Module:
    """Return the embedding of patches of ``inputs`` values, with the given normalisation.

    Raises:
        TrActValueError: ``patch_norm`` is not in PATCH_NORMS.
    """
    if patch_norm not in PATCH_NORMS:
        names = ", ".join(PATCH_NORMS)
        raise TrActValueError(f"patch_norm must be one of {names}; got {patch_norm!r}.")
    embed = nn.Linear(inputs, width)
    if patch_norm == "none":
        return embed
    return PatchNorm(embed) if patch_norm == "patch" else DualPatchNorm(embed)
