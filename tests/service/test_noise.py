"""Nothing of a batch shows in the pool of noise before it is committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from streaming_pca.privacy.noise_pool import Draws, NoisePool
from streaming_pca.privacy.randomness import noise_door
from streaming_pca.service.metrics import Metrics
from streaming_pca.service.noise import WorkerNoise


def draw(size: int = 2000) -> None:
    noise_door(public_size=True).discrete_gaussian(size, 1e9)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def noise() -> Iterator[WorkerNoise]:
    made = WorkerNoise(1)
    yield made
    made.close()


def pool_of(noise: WorkerNoise) -> NoisePool:
    assert noise._pool is not None
    return noise._pool


def test_what_is_left_shows_nothing_of_a_batch_until_it_is_committed(noise: WorkerNoise) -> None:
    pool = pool_of(noise)
    with noise.uncommitted():
        with noise.in_use():
            draw()
        until(lambda: pool.depth == 4000)
        assert noise.depth() == 0
    assert noise.depth() == 4000
    with noise.uncommitted():
        with noise.in_use() as draws:
            draw()
        assert draws is not None
        assert (draws.ahead, draws.waited) == (2000, 0)
        # Another stream's batch ends first.
        with noise.uncommitted():
            assert noise.depth() == 4000
        assert noise.depth() == 4000


def test_of_a_batch_that_is_not_committed_nothing_is_ever_shown(noise: WorkerNoise) -> None:
    pool = pool_of(noise)

    def fail() -> None:
        with noise.uncommitted(), noise.in_use():
            draw()
            until(lambda: pool.depth == 4000)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert noise.depth() == 0
    assert not pool._stocks


def test_a_worker_without_a_pool_draws_directly() -> None:
    noise, direct = WorkerNoise(0), noise_door()
    with noise.uncommitted(), noise.in_use() as draws:
        assert draws is None
        assert noise_door(public_size=True) is direct
    assert noise.depth() == 0
    noise.close()


def test_depth_and_draws_are_metrics(noise: WorkerNoise) -> None:
    metrics = Metrics()
    metrics.noise_pool.set_function(noise.depth)
    stream = metrics.of("s")
    draws = Draws(pool_of(noise))

    def shown() -> set[str]:
        return {
            line for line in metrics.text().decode().splitlines() if line.startswith("streaming_pca_noise")
        }

    assert 'streaming_pca_noise_values_total{drawn="waited",stream="s"} 0.0' in shown()
    draws.ahead, draws.waited = 30, 4
    stream.drew(draws)
    with noise.uncommitted(), noise.in_use():
        draw()
    until(lambda: noise.depth() == 4000)
    assert shown() >= {
        "streaming_pca_noise_pool_values 4000.0",
        'streaming_pca_noise_values_total{drawn="ahead",stream="s"} 30.0',
        'streaming_pca_noise_values_total{drawn="waited",stream="s"} 4.0',
    }
