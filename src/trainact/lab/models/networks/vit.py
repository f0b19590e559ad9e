"""The paper's vision transformer for CIFAR."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainact.errors import TrActValueError
from trainact.lab.models.networks.patch_norm import embed_patches

__all__ = ["CifarViT"]


class CifarViT(nn.Module):
    """A ViT on 8 x 8 patches of 4 x 4 pixels: 7 layers, 12 heads, width 384; 6,268,810 parameters.

    Attention scores are divided by the square root of the whole width, and GELU follows both layers
    of the MLP, as in the network that the paper's experiments used.

    Args:
        num_classes: outputs.
        in_channels: channels of the image.
        image_size: pixels of a side, a multiple of ``patches``.
        patches: patches along a side.
        width: of tokens and of the hidden layer of the MLP.
        depth: blocks.
        heads: a divisor of ``width``.
        patch_norm: what is done around the embedding: "none", "patch" (PatchNorm) or "dual"
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
                f"an image of {image_size} pixels cannot be cut into {patches} x {patches} "
                "patches; take a size that is a multiple, or set model.arguments.patches."
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
    """Self-attention and an MLP, each on normalised tokens and added to them."""

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
