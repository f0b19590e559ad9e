"""Prints how far the gradients of sharded batches are from those of one device; for four devices."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from trainact.jax import second_moment, tract_weight
from trainact.jax.nnx import TrActConv, TrActLinear
from trainact.jax.overlapping_patches import prefers_columns
from trainact.jax.patches import describe_patches


def main() -> None:
    assert jax.device_count() == 4
    random = np.random.default_rng(0)
    images = jnp.asarray(random.standard_normal((8, 8, 160, 3)) + 0.5, jnp.float32)
    targets = jnp.asarray(random.standard_normal((8, 4, 80, 4)), jnp.float32)
    weight = jnp.asarray(random.standard_normal((7, 7, 3, 4)), jnp.float32)
    padding = [(3, 3), (3, 3)]
    patches = describe_patches(images.shape, (7, 7), (2, 2), padding)
    assert prefers_columns(images, patches)  # the method of large images

    def loss(weight, images, targets, axis_name=None):
        moment = second_moment(images, (7, 7), (2, 2), padding, axis_name=axis_name)
        z = lax.conv_general_dilated(
            images,
            tract_weight(weight, moment),
            (2, 2),
            padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return jnp.square(z - targets).mean()

    expected = jax.grad(loss)(weight, images, targets)

    mesh = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Auto,))
    sharded = NamedSharding(mesh, PartitionSpec("batch"))
    parts = (jax.device_put(images, sharded), jax.device_put(targets, sharded))
    compiled = jax.jit(jax.grad(loss))
    report("jit", compiled(weight, *parts), expected)

    def gradient_of_mean(weight, images, targets):
        def mean(weight):
            return lax.pmean(loss(weight, images, targets, "batch"), "batch")

        return jax.grad(mean)(weight)

    def mean_of_gradients(weight, images, targets):
        return lax.pmean(jax.grad(loss)(weight, images, targets, "batch"), "batch")

    ways = {"shard_map": (gradient_of_mean, True), "unchecked": (mean_of_gradients, False)}
    for name, (function, check_vma) in ways.items():
        mapped = jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec("batch"), PartitionSpec("batch")),
            out_specs=PartitionSpec(),
            check_vma=check_vma,
        )
        report(name, jax.jit(mapped)(weight, *parts), expected)

    layer = TrActConv(3, 4, (7, 7), 2, padding=3, use_bias=False, rngs=nnx.Rngs(0))
    layer.kernel[...] = weight
    grads = nnx.jit(nnx.grad(lambda one, x, y: jnp.square(one(x) - y).mean()))(layer, *parts)
    report("nnx", grads["kernel"][...], expected)

    explicit = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Explicit,))
    for center in (False, True):
        dense = TrActLinear(24, 4, center=center, relative=center, rngs=nnx.Rngs(0))
        rows = images.reshape(1280, 24)
        step = nnx.jit(nnx.grad(lambda one, x: jnp.square(one(x)).mean()))
        alone = step(dense, rows)
        with jax.set_mesh(explicit):
            shared = jax.device_put(rows, NamedSharding(explicit, PartitionSpec("batch")))
            grads = step(nnx.clone(dense), shared)
        name = "explicit-centered" if center else "explicit"
        report(name, *(np.asarray(one["kernel"][...]) for one in (grads, alone)))

    step = nnx.jit(nnx.grad(lambda one, x, y: jnp.square(one(x) - y).mean()))
    with jax.set_mesh(explicit):
        layer = TrActConv(3, 4, (7, 7), 2, padding=3, use_bias=False, rngs=nnx.Rngs(0))
        layer.kernel[...] = jax.device_put(weight, PartitionSpec())
        grads = step(layer, *jax.device_put((images, targets), PartitionSpec("batch")))
    report("explicit-conv", np.asarray(grads["kernel"][...]), np.asarray(expected))

    rows = images.reshape(1280, 24)
    dense_weight, dense_bias = jnp.ones((24, 4)), jnp.ones(4)

    def dense_loss(weight, bias, x, center, sharding=None):
        if center:
            covariance = second_moment(x, center=True)
            weight, bias = tract_weight(weight, covariance, bias=bias, center=True)
        else:
            weight = tract_weight(weight, second_moment(x))
        return jnp.square(jnp.matmul(x, weight, out_sharding=sharding) + bias).mean()

    both = jax.make_mesh((2, 2), ("batch", "other"), axis_types=(AxisType.Explicit,) * 2)
    for center in (False, True):
        expected, _ = jax.grad(dense_loss, (0, 1))(dense_weight, dense_bias, rows, center)
        for spec in (PartitionSpec("batch", None), PartitionSpec(None, "batch")):
            with jax.set_mesh(explicit):
                parts_of_dense = jax.device_put(
                    (dense_weight, dense_bias, rows),
                    (spec, PartitionSpec(), PartitionSpec("batch", None)),
                )
                step = jax.jit(jax.grad(dense_loss, (0, 1)), static_argnums=(3, 4))
                grad, _ = step(*parts_of_dense, center, PartitionSpec("batch", None))
            assert grad.sharding.spec == spec
            report(f"{spec}-{center}".replace(" ", ""), np.asarray(grad), expected)
    with jax.set_mesh(both):
        measured = jax.jit(
            jax.shard_map(
                lambda x: second_moment(x, axis_name="batch"),
                in_specs=PartitionSpec("batch"),
                out_specs=PartitionSpec(),
                axis_names={"batch"},
            )
        )(jax.device_put(rows, PartitionSpec("batch")))
    report("one-axis", np.asarray(measured), second_moment(rows))

    def apply(weight, images):
        return loss(weight, images, jnp.zeros((2, 4, 80, 4)), "batch")

    inference = jax.shard_map(
        lambda weight, images: apply(weight, images)[None],
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("batch")),
        out_specs=PartitionSpec("batch"),
    )
    text = jax.jit(inference).lower(weight, parts[0]).compile().as_text()
    print("inference", text.count("all-reduce"), text.count("cholesky") + text.count("potrf"))


def report(name: str, actual: jax.Array, expected: jax.Array) -> None:
    difference = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    print(name, float(difference))


if __name__ == "__main__":
    main()
