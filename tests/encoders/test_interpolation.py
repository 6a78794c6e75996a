"""Weights between two models: fp64 by hand, and both ends bit for bit."""

import pytest
import torch

from dystress_text.encoders.interpolation import interpolate


def state(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(4, 3, generator=generator).to(dtype),
        "steps": torch.tensor(seed),
        "mask": torch.tensor([True, seed > 1]),
        "huge": torch.tensor([3e38 if dtype == torch.float32 else 6e4, -1e-45, 0.0]).to(dtype),
    }


def same_bytes(x, y):
    return x.keys() == y.keys() and all(
        x[n].dtype == y[n].dtype and x[n].numpy().tobytes() == y[n].numpy().tobytes() for n in x
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_lie_between_and_the_ends_are_the_models(dtype):
    base, tuned = state(1, dtype), state(2, dtype)
    assert same_bytes(interpolate(base, tuned, 0), base)
    assert same_bytes(interpolate(base, tuned, 1), tuned)
    assert interpolate(base, tuned, 1)["weight"].data_ptr() != tuned["weight"].data_ptr()
    for alpha in (0.25, 0.9):
        found = interpolate(base, tuned, alpha)
        for name in ("weight", "huge"):
            exact = (1 - alpha) * base[name].double() + alpha * tuned[name].double()
            assert found[name].dtype == dtype
            torch.testing.assert_close(found[name].double(), exact.to(dtype).double(), rtol=2e-3, atol=1e-6)
        assert int(found["steps"]) == 2
        assert found["mask"].tolist() == [True, True]


def test_what_cannot_be_mixed_is_refused():
    base, tuned = state(1), state(2)
    for other, said in (
        ({"weight": tuned["weight"]}, "only one"),
        (tuned | {"weight": torch.zeros(3, 4)}, "two shapes"),
        (tuned | {"steps": torch.tensor(2.0)}, "two shapes"),
    ):
        with pytest.raises(ValueError, match=said):
            interpolate(base, other, 0.5)
    with pytest.raises(ValueError, match="alpha"):
        interpolate(base, tuned, 1.5)
