"""The vision transformers of DeiT III, built from timm's modules.

Touvron, Cord, Jégou: DeiT III: Revenge of the ViT, 2022.
timm's own ``deit3`` networks increase the drop path from block to block and initialise layer scale
and the standard deviation of the class token with 1e-6. The authors' code has the same drop path in
every block, 1e-4 and 0.02.
"""

from typing import Any

from torch import nn

from trainact.lab.torchvision_import import import_torchvision

__all__ = ["deit3_base", "deit3_small"]


def deit3_small(
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    image_size: int = 224,
    width: int = 384,
    depth: int = 12,
    heads: int = 6,
    patch_size: int = 16,
    drop_path: float = 0.0,
    layer_scale: float = 1e-4,
) -> nn.Module:
    """Return ViT-S, with 21,639,268 parameters at 100 classes and 32 x 32 pixels.

    Only patches have position embeddings. ``drop_path`` is the probability that a residual branch
    is dropped for an image, equal in all blocks, ``layer_scale`` the initial factor of a branch.
    ``width`` is that of the tokens; the hidden layers of the MLPs are four times as wide.
    """
    import_torchvision()
    from timm.layers import DropPath
    from timm.models.vision_transformer import VisionTransformer

    network: Any = VisionTransformer(
        img_size=image_size,
        patch_size=patch_size,
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        no_embed_class=True,
        init_values=layer_scale,
    )
    nn.init.trunc_normal_(network.cls_token, std=0.02)
    if drop_path:
        for block in network.blocks:
            block.drop_path1, block.drop_path2 = DropPath(drop_path), DropPath(drop_path)
    return network


def deit3_base(
    num_classes: int = 1000,
    *,
    in_channels: int = 3,
    image_size: int = 224,
    drop_path: float = 0.0,
    layer_scale: float = 1e-4,
) -> nn.Module:
    """Return ViT-B, with 85,745,764 parameters at 100 classes and 32 x 32 pixels.

    Patches have 16 x 16 pixels; for the other arguments see `deit3_small`.
    """
    return deit3_small(
        num_classes,
        in_channels=in_channels,
        image_size=image_size,
        width=768,
        heads=12,
        drop_path=drop_path,
        layer_scale=layer_scale,
    )
