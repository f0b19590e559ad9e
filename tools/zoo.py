"""Write docs/zoo.md: the first layers of three model zoos, with TrAct's estimated cost.

``python -m tools.zoo`` examines every model. timm names the first layer of most of its models; that
name is hidden from the search and compared with the result.
"""

import argparse
import importlib.metadata
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainact.example_inputs import read_timm_config
from trainact.first_layer import find_first_layers
from trainact.lab.cost.defaults import BATCH
from trainact.lab.cost.multiply_adds import estimate_cost
from trainact.lab.models.zoos import build_meta_model, list_names

__all__ = ["DIFFERENCES", "Row", "examine", "list_references", "main", "write_head", "write_page"]

TIMM_SMALLEST = (
    *("beit_base_patch16_224", "halonet_h1", "test_byobnet", "cait_xxs24_224", "coat_tiny"),
    *("convit_tiny", "convmixer_768_32", "test_convnext", "cpubone_nano", "crossvit_tiny_240"),
    *("csatv2", "cs3darknet_focus_s", "davit_tiny", "deepseek_vit_412m", "deit_tiny_patch16_224"),
    *("densenet121", "dla46x_c", "dpn48b", "edgenext_xx_small", "efficientformer_l1"),
    *("efficientformerv2_s0", "test_efficientnet", "efficientvim_m1", "efficientvit_b0"),
    *("efficientvit_m0", "vit_tiny_patch16_dinov3_qkvb", "fasternet_t0", "fastvit_t8"),
    *("focalnet_tiny_srf", "gcvit_xxtiny", "gemma4_vit_167m", "ghostnet_050", "hardcorenas_b"),
    *("hgnetv2_b0", "hiera_tiny_224", "sam2_hiera_tiny", "hrnet_w18_small", "iformer_t"),
    *("inception_next_atto", "inception_resnet_v2", "inception_v3", "inception_v4"),
    *("lcnetv2_small", "levit_128s", "lowformer_b0", "test_mambaout", "maxvit_pico_rw_256"),
    *("poolformerv2_s12", "gmlp_ti16_224", "mobilenetv3_small_050", "mobilenetv5_base"),
    *("mobilevit_xxs", "mvitv2_tiny", "naflexvit_base_patch16_parfac_gap", "nasnetalarge"),
    *("nest_tiny", "nextvit_small", "test_nfnet", "pit_ti_224", "pnasnet5large", "pvt_v2_b0"),
    *("qwen3_vit_88m", "rdnet_tiny", "regnetx_002", "repghostnet_050", "repvit_m1", "res2next50"),
    *("resnest14d", "test_resnet", "resnetv2_18", "rexnet_100", "selecsls42", "legacy_seresnet18"),
    *("sequencer2d_s", "shvit_s1", "skresnet18", "starnet_s050", "swiftformer_xs"),
    *("swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "swinv2_cr_tiny_224"),
    *("tiny_vit_5m_224", "tnt_s_legacy_patch16_224", "tresnet_m", "twins_svt_small", "vgg11"),
    *("visformer_tiny", "test_vit", "vit_tiny_r_s16_p8_224", "vit_srelpos_small_patch16_224"),
    *("samvit_base_patch16_224", "vitamin_small_224", "volo_d1_224", "ese_vovnet19b_slim_dw"),
    *("legacy_xception", "xception41p", "xcit_nano_12_p8_224"),
)
"""The smallest model of each architecture family of timm 1.0.30."""

TRANSFORMERS = (
    *("vit", "deit", "dinov2", "dinov2_with_registers", "swin", "swinv2", "convnext", "convnextv2"),
    *("beit", "clip", "clip_vision_model", "siglip", "siglip_vision_model", "sam"),
    *("sam_vision_model", "mobilevit", "mobilevitv2", "resnet", "regnet", "bit", "vit_mae"),
    *("efficientnet", "segformer", "detr", "yolos", "videomae", "vivit", "timesformer"),
    *("ViTForImageClassification", "SwinForImageClassification"),
)

DIFFERENCES = {
    "csatv2": "timm names none. A fixed cosine transform is followed by three parallel "
    "convolutions, for luma and the two chromas; the search returns all three."
}
"""Why the search and timm's ``first_conv`` differ, by model."""


class Row(NamedTuple):
    """One model of the table."""

    source: str
    model: str
    found: tuple[str, ...]
    num_inputs: tuple[int, ...]
    rows_per_image: tuple[int, ...]
    cost: str
    timm_names: tuple[str, ...] | None
    """timm's ``first_conv``; None for other sources."""

    @property
    def agrees(self) -> bool:
        """Whether the search agrees with timm; True for other sources."""
        return self.timm_names is None or set(self.timm_names) == set(self.found)

    def __str__(self) -> str:
        cells = (
            self.model,
            ", ".join(f"`{name}`" for name in self.found),
            ", ".join(map(str, dict.fromkeys(self.num_inputs))),
            ", ".join(map(str, dict.fromkeys(self.rows_per_image))),
            self.cost,
        )
        return f"| {' | '.join(cells)} |"


def list_references() -> Iterator[str]:
    """Yield the models of the page, as ``build_meta_model`` takes them."""
    for source in ("timm", "torchvision", "hf"):
        names: Sequence[str] = {"timm": TIMM_SMALLEST, "hf": TRANSFORMERS}.get(source, ())
        yield from (f"{source}:{name}" for name in names or list_names(source))


def examine(reference: str) -> Row:
    """Build a model on the meta device, find its first layers by tracing, estimate the cost."""
    source, name, model = build_meta_model(reference)
    timm_names = None
    if source == "timm":
        config = read_timm_config(model)
        stated = config.get("first_conv") or ()
        timm_names = (stated,) if isinstance(stated, str) else tuple(stated)
        vars(model).update(pretrained_cfg={**config, "first_conv": None}, default_cfg=None)
    example = _make_example(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = find_first_layers(model, example)
    cost = estimate_cost(model, found, example_input=example)
    return Row(
        source,
        name,
        tuple(found),
        tuple(layer.num_inputs for layer in cost.layers),
        tuple(layer.rows_per_image for layer in cost.layers),
        str(cost),
        timm_names,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Examine all models and write the page; return 1 if timm differs for an unknown reason."""
    parser = argparse.ArgumentParser("python -m tools.zoo", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/zoo.md"))
    arguments = parser.parse_args(argv)
    rows = []
    for reference in list_references():
        rows.append(examine(reference))
        print(reference, *rows[-1].found, rows[-1].cost, flush=True)
    arguments.output.write_text(write_page(rows))
    unexplained = [row.model for row in rows if not row.agrees and row.model not in DIFFERENCES]
    if unexplained:
        print(f"timm differs for an unknown reason: {', '.join(unexplained)}", file=sys.stderr)
    return int(bool(unexplained))


def write_page(rows: Sequence[Row]) -> str:
    """Return the text of docs/zoo.md."""
    by_source = {s: [row for row in rows if row.source == s] for s in ("timm", "torchvision", "hf")}
    timm_rows = by_source["timm"]
    agreeing = sum(row.agrees for row in timm_rows)
    parts = [write_head()]
    for source, package in _PACKAGES.items():
        parts.append(f"\n## {package} ({len(by_source[source])} models)\n\n")
        if source == "timm":
            parts.append(
                "The smallest model of every architecture family. The search does not see timm's "
                f"`first_conv`\nand agrees with it on {agreeing} of {len(timm_rows)}. "
                "Differences:\n\n"
            )
            for row in timm_rows:
                if not row.agrees:
                    parts.append(f"- `{row.model}`: {DIFFERENCES.get(row.model, 'unexplained')}\n")
            parts.append("\n")
        parts.append("| model | first layer | n | rows per image | cost |\n|---|---|---|---|---|\n")
        parts += [f"{row}\n" for row in by_source[source]]
    return "".join(parts)


def write_head() -> str:
    """Return the page's introduction, with the versions installed here."""
    packages = ("torch", *_PACKAGES.values())
    versions = (f"{name} {importlib.metadata.version(name).split('+')[0]}" for name in packages)
    return _HEAD.format(batch=BATCH, versions=", ".join(versions))


def _make_example(name: str) -> Any:
    """Return an input for models that do not take one image."""
    if name.startswith("raft_"):
        image = torch.empty(1, 3, 224, 224, device="meta")
        return image, image
    return None


_PACKAGES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}

_HEAD = """\
# First layers of the model zoos

Written by `make zoo` (`python -m tools.zoo`) with {versions};
`make test` checks a sample. Models are built on the meta device, without weights.

- *first layer*: the result of `find_first_layers`, by tracing; all of them if there are several.
- *n*: inputs per output of that layer; *rows per image*: its output positions.
- *cost*: estimated multiply-adds that TrAct adds to a step of {batch} images, relative to the
  model's forward and backward (three forwards). With b rows, m outputs and g groups, TrAct needs
  b·g·n(n+1)/2 for the second moment (less than b·g·n² where patches overlap), g·n³/3 to factorize
  it and n²·m to solve; see `trainact.lab.cost.multiply_adds`. The estimate counts arithmetic, not
  memory traffic or wall-clock time. "<" marks an upper bound: part of the forward depends on
  values, as in detectors that select boxes, and was not counted.
"""


if __name__ == "__main__":
    sys.exit(main())
