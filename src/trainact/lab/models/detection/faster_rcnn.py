"""Faster R-CNN with a VGG-16 backbone, all of whose layers are trained.

Ren, He, Girshick, Sun: Faster R-CNN: Towards Real-Time Object Detection with Region Proposal
Networks, 2015. The region proposals and the box head, which is the two hidden linear layers of
VGG-16, share the feature map of the last convolution.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainact.errors import TrActTypeError, TrActValueError
from trainact.lab.data.images import DataError, Standard
from trainact.lab.models.detection.operators import use_plain_operators
from trainact.lab.models.pretrained import LoadedWeights, hash_file, open_weights
from trainact.lab.schema import build_table
from trainact.lab.torchvision_import import import_torchvision

__all__ = [
    *("DETECTOR", "VGG_FILE", "FasterRcnnFields", "VggBackbone", "VggHead", "VggWeights"),
    *("check_vgg_weights", "describe_vgg_weights", "make_faster_rcnn"),
]

DETECTOR = "lab:faster-rcnn-vgg16"
"""Its name in recipes."""
VGG_FILE = "vgg16-397923af.pth"
"""Torchvision's file of VGG-16 weights; its name has the first digits of its SHA-256."""
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of the five stages of VGG-16."""
WIDTH = 64
STRIDE = 16
RATIOS = (0.5, 1.0, 2.0)
POOL = 7


@dataclass(frozen=True)
class FasterRcnnFields:
    """The arguments of the model in a recipe; the defaults are those of the published detector.

    ``weights`` is a file of torchvision's ``vgg16``, or ``none`` for random initial weights.
    """

    weights: str = ""
    width: int = WIDTH  # channels of the first stage; the other stages scale with it
    hidden: int = 4096  # width of the two linear layers
    dropout: float = 0.5
    longest: int = 1000  # largest length of the long side, in pixels
    anchors: tuple[int, ...] = (128, 256, 512)  # sides in pixels, each with three aspect ratios
    anchors_per_image: int = 256  # sampled for the loss of the region proposals
    regions_per_image: int = 128  # sampled for the loss of the box head
    train_proposals: tuple[int, ...] = (12000, 2000)  # before and after suppression
    test_proposals: tuple[int, ...] = (6000, 300)
    proposal_overlap: float = 0.7  # IoU above which proposals are suppressed
    detection_overlap: float = 0.3  # IoU above which detections are suppressed
    least_score: float = 0.05  # of a detection
    detections: int = 100  # largest number per image


class VggBackbone(nn.Sequential):
    """The thirteen convolutions of VGG-16 without the last max-pool; the stride is 16.

    The indices of its layers are those of torchvision's ``vgg16().features``.
    """

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        channels = 3
        for stage, (wide, depth) in enumerate(STAGES):
            if stage:
                self.append(nn.MaxPool2d(2))
            for _ in range(depth):
                out = wide * width // WIDTH
                conv = nn.Conv2d(channels, out, 3, padding=1)
                nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
                self.extend([conv, nn.ReLU(inplace=True)])
                channels = out
        self.out_channels = channels


class VggHead(nn.Sequential):
    """The first two linear layers of VGG-16's classifier, for regions [K, C, 7, 7]."""

    def __init__(self, channels: int, hidden: int, dropout: float) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(channels * POOL**2, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
        )


def make_faster_rcnn(
    num_classes: int, image_size: int, standard: Standard, arguments: dict[str, Any]
) -> nn.Module:
    """Return torchvision's ``FasterRCNN`` with a VGG-16, for images in [0, 1].

    In training mode it takes images and targets and returns losses, in evaluation mode it takes
    images and returns detections. Label 0 is the background, which ``num_classes`` excludes.
    ``image_size`` are the pixels that the short side is scaled to, ``arguments`` those of
    `FasterRcnnFields`.

    Raises:
        TrActValueError: an argument is unknown or out of range.
        DataError: the file of weights cannot be used.
    """
    fields = _check(build_table(FasterRcnnFields, arguments, "model.arguments"))
    import_torchvision()
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FasterRCNN, FastRCNNPredictor
    from torchvision.ops import MultiScaleRoIAlign

    class FasterRcnn(FasterRCNN):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            with use_plain_operators():
                return super().forward(*args, **kwargs)

    backbone = VggBackbone(fields.width)
    head = VggHead(backbone.out_channels, fields.hidden, fields.dropout)
    if fields.weights != "none":
        _load_vgg(backbone, head, Path(fields.weights).expanduser())
    predictor = FastRCNNPredictor(fields.hidden, num_classes + 1)
    for layer, deviation in ((predictor.cls_score, 0.01), (predictor.bbox_pred, 0.001)):
        nn.init.normal_(layer.weight, std=deviation)
        nn.init.zeros_(layer.bias)
    model: nn.Module = FasterRcnn(
        backbone,
        min_size=image_size,
        max_size=fields.longest,
        image_mean=list(standard.mean),
        image_std=list(standard.std),
        size_divisible=STRIDE,
        rpn_anchor_generator=AnchorGenerator((fields.anchors,), (RATIOS,)),
        rpn_pre_nms_top_n_train=fields.train_proposals[0],
        rpn_post_nms_top_n_train=fields.train_proposals[1],
        rpn_pre_nms_top_n_test=fields.test_proposals[0],
        rpn_post_nms_top_n_test=fields.test_proposals[1],
        rpn_nms_thresh=fields.proposal_overlap,
        rpn_batch_size_per_image=fields.anchors_per_image,
        box_roi_pool=MultiScaleRoIAlign(["0"], output_size=POOL, sampling_ratio=2),
        box_head=head,
        box_predictor=predictor,
        box_score_thresh=fields.least_score,
        box_nms_thresh=fields.detection_overlap,
        box_detections_per_img=fields.detections,
        box_batch_size_per_image=fields.regions_per_image,
    )
    return model


def describe_vgg_weights(name: str) -> LoadedWeights | None:
    """Return which file a detector starts from and what the file lacks; None for ``none``."""
    if name == "none":
        return None
    path = Path(name).expanduser()
    missing = () if _has_head(_read_vgg(path)) else ("box_head",)
    return LoadedWeights(str(path), hash_file(path), (), (), missing, ())


class VggWeights(NamedTuple):
    """What a file of VGG-16 weights holds, besides the convolutions."""

    has_head: bool  # the two hidden linear layers
    sha256: str

    @property
    def is_original(self) -> bool:
        """Return whether it is torchvision's own file, byte by byte."""
        return self.sha256.startswith(VGG_FILE.rpartition("-")[2].removesuffix(".pth"))


def check_vgg_weights(path: Path) -> VggWeights:
    """Check that a file holds the weights of torchvision's ``vgg16``, with their shapes.

    Raises:
        DataError: the file is missing or damaged, or a weight is missing or of another shape.
    """
    with torch.device("meta"):  # only shapes are compared
        backbone = VggBackbone()
        head = VggHead(backbone.out_channels, FasterRcnnFields.hidden, FasterRcnnFields.dropout)
    _load_vgg(backbone, head, path)
    return VggWeights(_has_head(_read_vgg(path)), hash_file(path))


def _load_vgg(backbone: nn.Sequential, head: nn.Sequential, path: Path) -> None:
    """Load the convolutions, and the linear layers if the file has them."""
    tensors = _read_vgg(path)
    for index, layer in enumerate(backbone):
        if isinstance(layer, nn.Conv2d):
            _load_layer(layer, tensors, f"features.{index}", path)
    if _has_head(tensors):
        _load_layer(head[1], tensors, "classifier.0", path)
        _load_layer(head[4], tensors, "classifier.3", path)


def _read_vgg(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise DataError(f"there is no file of weights {path}.")
    tensors = open_weights(path)
    if not isinstance(tensors, dict) or not all(isinstance(v, Tensor) for v in tensors.values()):
        raise DataError(f"{path} does not hold named tensors, as a state_dict does.")
    return tensors


def _has_head(tensors: dict[str, Tensor]) -> bool:
    return any(key.startswith("classifier.") for key in tensors)


def _load_layer(layer: nn.Module, tensors: dict[str, Tensor], prefix: str, path: Path) -> None:
    for name, parameter in layer.named_parameters():
        key = f"{prefix}.{name}"
        if key not in tensors:
            raise DataError(f"{path} lacks {key}, which torchvision's vgg16 has.")
        if tensors[key].shape != parameter.shape:
            raise DataError(
                f"{key} of {path} has the shape {tuple(tensors[key].shape)}, the network's "
                f"{tuple(parameter.shape)}: is it of a network of another width?"
            )
        with torch.no_grad():
            parameter.copy_(tensors[key])


def _check(fields: FasterRcnnFields) -> FasterRcnnFields:
    if not fields.weights:
        raise TrActValueError(
            "model.arguments.weights is empty: give a file of torchvision's vgg16 weights, trained "
            "on ImageNet, or 'none' for random initial weights."
        )
    for name in ("train_proposals", "test_proposals"):
        if len(getattr(fields, name)) != 2:
            raise TrActTypeError(
                f"model.arguments.{name} takes two numbers: proposals before and after suppression."
            )
    for name, value in vars(fields).items():
        values = value if isinstance(value, tuple) else (value,)
        if all(isinstance(v, int) for v in values) and min(values, default=0) < 1:
            raise TrActValueError(f"model.arguments.{name} must be positive; got {value}.")
    for name in ("dropout", "proposal_overlap", "detection_overlap", "least_score"):
        if not 0 <= getattr(fields, name) < 1:
            raise TrActValueError(
                f"model.arguments.{name} is in [0, 1); got {getattr(fields, name)}."
            )
    return fields
