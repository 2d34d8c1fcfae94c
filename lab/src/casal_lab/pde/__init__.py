"""Fields reconstructed from sparse observations under a constraint that every sample must satisfy.

What the experiments on partial differential equations share. A diffusion model lives in a latent of few modes; the
decoder is an orthonormal series, up to one scale per field. A field is seen at a few points, and something is known of
it exactly: its mass, its enstrophy, an equation. Two models have the same latent: the Gaussian of the training data,
whose answer is known (``kriging``), and a network.

- ``prior``: the data, their latents, their Gaussian, and what the latent leaves out;
- ``task``: where fields are seen, what is known of them, the cases to reconstruct, and kriging, the exact answers for a
  Gaussian;
- ``models``: the Gaussian and the network as diffusion models;
- ``methods``: what is compared;
- ``compare``: runs, scores and tables;
- ``study``: every task with every model, the paper's table, the verdicts, the whole run of an experiment;
- ``figures``: the pictures;
- ``poisson``, ``navier_stokes``, ``darcy``: an experiment each.
"""
