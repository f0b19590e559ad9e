"""Systems are solved in blocks on a CPU as they are at once; a failed factorization gives NaN."""

import pytest

pytest.importorskip("jaxlib", reason="trainact.jax needs jax")

import jax
import jax.numpy as jnp
import numpy as np

from jax_cases import assert_near
from trainact.jax import cholesky, second_moment, tract_weight
from trainact.jax.cholesky import (
    BLOCK,
    MOST_ROWS,
    MOST_SYSTEMS,
    solve,
    solve_at_once,
    solve_in_blocks,
)

SIZES = (1, 2, 27, 100, BLOCK, BLOCK + 1, 2 * BLOCK, 300)
RANDOM = np.random.default_rng(0)


def make_system(num_rows: int, groups: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return the second moment of random walks plus 0.1 I, and three right-hand sides."""
    walks = np.cumsum(RANDOM.standard_normal((groups, 2 * num_rows + 1, num_rows)), -1)
    matrix = walks.swapaxes(1, 2) @ walks / walks.shape[1] + 0.1 * np.eye(num_rows)
    return matrix, RANDOM.standard_normal((groups, num_rows, 3))


@pytest.mark.parametrize("num_rows", SIZES)
def test_both_ways_solve_the_system(num_rows):
    matrix, right = make_system(num_rows)
    with jax.enable_x64(True):
        for way in (solve, solve_at_once, solve_in_blocks):
            assert_near(
                way(jnp.asarray(matrix), jnp.asarray(right)), np.linalg.solve(matrix, right), 1e-9
            )


@pytest.mark.parametrize("num_rows", [1, 3, 4, 9, 18])
def test_systems_of_many_small_blocks_are_solved_where_jax_promotes_nothing(monkeypatch, num_rows):
    monkeypatch.setattr(cholesky, "BLOCK", 4)
    matrix, right = make_system(num_rows)
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        found = jax.vmap(solve_in_blocks)(jnp.asarray(matrix[:, None]), jnp.asarray(right[:, None]))
    assert_near(found[:, 0], np.linalg.solve(matrix, right), 1e-9)


@pytest.mark.parametrize("num_rows", [27, 300])
def test_blocks_lose_no_digits_of_float32(num_rows):
    matrix, right = (one.astype(np.float32) for one in make_system(num_rows))
    expected = np.linalg.solve(matrix.astype(np.float64), right)
    in_blocks, at_once = (
        np.abs(way(jnp.asarray(matrix), jnp.asarray(right)) - expected).max()
        for way in (solve_in_blocks, solve_at_once)
    )
    assert in_blocks < 4 * at_once


def test_only_the_lower_triangle_is_used():
    matrix, right = make_system(BLOCK + 3)
    with jax.enable_x64(True):
        for way in (solve_at_once, solve_in_blocks):
            found = way(jnp.asarray(np.tril(matrix)), jnp.asarray(right))
            assert_near(found, np.linalg.solve(matrix, right), 1e-9)


@pytest.mark.parametrize("bad", [0, BLOCK + 2])
def test_only_the_group_that_fails_becomes_nan(bad):
    matrix, right = make_system(BLOCK + 3)
    matrix[1, bad, bad] = -1
    for way in (solve_at_once, solve_in_blocks):
        found = way(jnp.asarray(matrix, jnp.float32), jnp.asarray(right, jnp.float32))
        assert np.isfinite(found[0]).all()
        assert np.isnan(found[1]).all()


def test_on_a_cpu_lapack_gets_small_matrices_only():
    matrix, right = make_system(3 * BLOCK, 1)
    compiled = jax.jit(solve).lower(jnp.asarray(matrix), jnp.asarray(right)).compile().as_text()
    calls = [line for line in compiled.splitlines() if "custom-call(" in line and "lapack" in line]
    assert calls
    assert all(f"f32[1,{BLOCK},{BLOCK}]" in line for line in calls)
    assert not [line for line in compiled.splitlines() if "trsm" in line or "triangular" in line]


@pytest.mark.parametrize(
    ("groups", "num_rows", "in_blocks"),
    [(1, MOST_ROWS, True), (1, MOST_ROWS + 1, False), (MOST_SYSTEMS + 1, 300, False)],
)
def test_large_and_many_systems_are_solved_at_once(groups, num_rows, in_blocks):
    matrix = jax.ShapeDtypeStruct((groups, num_rows, num_rows), jnp.float32)
    right = jax.ShapeDtypeStruct((groups, num_rows, 8), jnp.float32)
    compiled = jax.jit(solve).lower(matrix, right).compile()
    assert (f"[{groups},{num_rows},{num_rows}]" in _find_factorization(compiled)) != in_blocks
    memory = compiled.memory_analysis().temp_size_in_bytes
    assert memory < 3 * 4 * groups * num_rows**2


def _find_factorization(compiled) -> str:
    return next(line for line in compiled.as_text().splitlines() if "potrf" in line)


def test_all_products_have_the_highest_precision():
    x, weight = jnp.ones((400, 300)), jnp.ones((300, 4))

    def loss(weight):
        return jnp.sum(tract_weight(weight, second_moment(x, center=True), center="batchnorm"))

    text = str(jax.make_jaxpr(jax.grad(loss))(weight))
    assert text.count("dot_general") == text.count("precision=(Precision.HIGHEST")
    assert "dot_general" in text
