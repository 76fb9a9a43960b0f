"""The worked example, to the digit."""

import numpy as np
import torch
import torch.nn.functional as F

from view.toy import X, steps

OFF = [[0.355, 0.215, 0.215, 0.215], [0.143, 0.387, 0.235, 0.235], [0.143, 0.235, 0.387, 0.235],
       [0.143, 0.235, 0.235, 0.387]]  # fmt: skip
ON = [[1, 0, 0, 0], [0.269, 0.731, 0, 0], [0.186, 0.307, 0.506, 0], [0.143, 0.235, 0.235, 0.387]]


def test_the_digits():
    assert steps(mask=False).weights.round(3).tolist() == OFF
    assert steps(mask=True).weights.round(3).tolist() == ON
    for mask in (False, True):
        assert steps(mask).context[-1].round(3).tolist() == [0.143, 0.622, 0.622, 0.470]
        assert np.isneginf(steps(mask).scores).sum() == (6 if mask else 0)


def test_torch_says_the_same():
    x = torch.from_numpy(X)[None]
    for mask in (False, True):
        assert np.allclose(F.scaled_dot_product_attention(x, x, x, is_causal=mask)[0], steps(mask).context)
