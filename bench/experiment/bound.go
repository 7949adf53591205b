package experiment

import "gonum.org/v1/gonum/stat/distuv"

// upper95 bounds from above, with 95% confidence, how likely something is that was
// seen so many times in n: the one-sided limit of Clopper and Pearson. For nothing
// seen it is about 3/n.
func upper95(seen, n int) float64 {
	if n <= 0 || seen >= n {
		return 1
	}
	return distuv.Beta{Alpha: float64(seen) + 1, Beta: float64(n - seen)}.Quantile(0.95)
}
