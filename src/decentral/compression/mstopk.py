"""MSTopk: the largest entries by a threshold that is searched for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.compression.sparse import SparseRatio
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.compression.address import Address


@dataclass
class MSTopK(SparseRatio):
    """About the k largest entries, by bisection for a threshold (Shi et al., "MSTopk", MLSys 2021), k as `topk`.

        a = |e|,  mu = mean(a),  u = max(a);   l, r = 0, 1;   t1 unset, t2 = 0
        `samplings` times:  rho = (l + r) / 2,  t = mu + rho (u - mu),  z = #(a >= t)
            z <= k:  r = rho, and t1 = t if z is larger than before;   else:  l = rho, and t2 = t
        I = {a >= t1}, and of {t2 <= a < t1} as many as are missing, one after the other from a random place

    The place is addressed by (seed, worker, step). After 25 samplings these are the k largest but for ties and rows
    whose largest entry is very far from their mean. Bytes: k (4 + index_bytes) for float32 rows, as `topk`.

    The counts z are exact, but are not passes over the row: what lies clearly below the threshold is left out before
    the search, as in `topk`.

    Departures from the authors' code, which are mistakes there: it sends k - 1 entries where the run begins one place
    too late, the whole row for k = 0, and fails where no sampling has z <= k (equal entries, zeros). Here the run fits,
    k is at least 1, and t1 = u where it is unset, or, if more than k entries equal u, all come from {a >= t2}. A row
    whose largest entry or mean is infinite or no number is sent by `topk`, so that the entry arrives. Indices ascend.
    """

    name: str = "mstopk"
    samplings: int = setting(25, at_least=1)

    def places(self, e: Tensor, at: Address) -> Tensor:
        """See the formula."""
        from decentral.compression.arithmetic.multisampling import moments, sampled
        from decentral.compression.arithmetic.selection import largest
        from decentral.randomness import numpy_generator

        k = self.count(len(e), at.step)
        mean, most = moments(e, self.scratch)
        if k == len(e) or not (math.isfinite(mean) and math.isfinite(most)):
            return largest(e, k, self.scratch)
        generator = numpy_generator(self.seed, "mstopk", *at)
        return sampled(e, k, (mean, most), self.samplings, generator, self.scratch)
