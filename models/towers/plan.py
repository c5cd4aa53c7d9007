"""The description of a tower: what it is made of, and the sizes of what goes in and comes out.

Axis letters: P patches, B bytes of a patch, T tokens, D hidden size of the language model.
"""

from dataclasses import dataclass

from jaxllm.models.norm_plan import NormPlan


@dataclass(frozen=True)
class PixelPlan:
    """How bytes become numbers: times `rescale`, less `mean`, divided by `std`, one of each for every channel."""

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    rescale: float = 1 / 255


@dataclass(frozen=True, kw_only=True)
class VisionPlan:
    """A vision transformer (arXiv 2010.11929) as CLIP and SigLIP have it: learned positions, norms before each block.

    The positions are those of a square of `side` patches each way.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    side: int
    activation: str = "gelu_pytorch_tanh"
    norm: NormPlan = NormPlan(kind="layer", eps=1e-6, bias=True)
    channels: int = 3

    @property
    def patch_bytes(self) -> int:
        """Bytes of a patch: height, width and channels."""
        return self.patch_size**2 * self.channels


@dataclass(frozen=True, kw_only=True)
class TowerPlan:
    """A tower for images: a vision transformer, and a projection to rows of the language model.

    A square of `merge` patches each way becomes one row. Patches come square by square, each square row by row, and the
    squares likewise. An image is one crop or several, each of which is seen alone.
    """

    vision: VisionPlan
    merge: int
    token_id: int
    """The token that stands where a row of an image goes."""
    pixels: PixelPlan = PixelPlan()

    @property
    def patches_per_row(self) -> int:
        """Patches that become one row."""
        return self.merge**2

    @property
    def most_patches(self) -> int:
        """Patches of the largest crop."""
        return self.vision.side**2

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of crops, in patches, that are computed by a program each, the smallest first."""
        return (self.most_patches,)

    def rows_of(self, num_patches: int) -> int:
        """Rows that so many patches become."""
        return num_patches // self.patches_per_row
