"""Sets in four dimensions and points around them, for the tests of sets made of sets."""

from __future__ import annotations

import numpy as np
import torch

from casal.constraints import Affine, Ball, Box, Polytope, Sphere

RNG = np.random.default_rng(0)
SIZE = 4
POINTS = torch.as_tensor(2.0 * RNG.normal(size=(20, SIZE)))
ONES = torch.ones(1, SIZE, dtype=torch.float64)
TILT = torch.tensor([[1.0, -1.0, 0.5, 0.0]], dtype=torch.float64)
WALLS = torch.as_tensor(RNG.normal(size=(6, SIZE)))
TALL = torch.as_tensor(RNG.normal(size=(6, SIZE)))
WIDE = torch.as_tensor(RNG.normal(size=(3, SIZE)))
TURN = torch.linalg.qr(torch.as_tensor(np.random.default_rng(1).normal(size=(SIZE, SIZE)))).Q

SUM, SKEW = Affine(ONES, 0.5), Affine(TILT, 0.2)
SPHERE, BALL, BOX, WALLED = Sphere(2.0), Ball(1.5), Box(-0.5, 1.0), Polytope(WALLS, torch.ones(6))
