"""Normalisation of patches around their embedding, which the paper compares TrAct with."""

from torch import Tensor, nn

from trainact.errors import TrActValueError

__all__ = ["PATCH_NORMS", "DualPatchNorm", "PatchNorm", "embed_patches"]

PATCH_NORMS = ("none", "patch", "dual")


class PatchNorm(nn.Module):
    """Embed patches that were each brought to mean 0 and standard deviation 1.

    Args:
        embed: the embedding.
        eps: added to the variance, so that a patch of one colour stays finite.
    """

    def __init__(self, embed: nn.Linear, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed.in_features, eps=eps, elementwise_affine=False)
        self.embed = embed

    def forward(self, patches: Tensor) -> Tensor:
        """Return tokens [..., width] of patches [..., C·size²]."""
        return self.embed(self.norm(patches))


class DualPatchNorm(nn.Module):
    """Layer normalisation, with scale and shift, before and after the embedding of patches.

    Manoj Kumar, Mostafa Dehghani, Neil Houlsby, Dual PatchNorm, 2023.

    Args:
        embed: the embedding.
    """

    def __init__(self, embed: nn.Linear) -> None:
        super().__init__()
        self.before = nn.LayerNorm(embed.in_features)
        self.embed = embed
        self.after = nn.LayerNorm(embed.out_features)

    def forward(self, patches: Tensor) -> Tensor:
        """Return tokens [..., width] of patches [..., C·size²]."""
        return self.after(self.embed(self.before(patches)))


def embed_patches(inputs: int, width: int, patch_norm: str) -> nn.Module:
    """Return the embedding of patches with ``inputs`` values each, normalised as asked.

    Raises:
        TrActValueError: ``patch_norm`` is none of PATCH_NORMS.
    """
    embed = nn.Linear(inputs, width)
    if patch_norm == "none":
        return embed
    if patch_norm == "patch":
        return PatchNorm(embed)
    if patch_norm == "dual":
        return DualPatchNorm(embed)
    raise TrActValueError(f"patch_norm takes {', '.join(PATCH_NORMS)}; got {patch_norm!r}.")
