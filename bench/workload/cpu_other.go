//go:build !unix

package workload

func ownCPU() float64 { return -1 }
