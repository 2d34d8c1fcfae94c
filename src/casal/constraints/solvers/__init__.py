"""Mathematics behind projections and draws that knows no set: polyhedra, splittings, Newton steps, Gaussian laws."""
