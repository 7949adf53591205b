//go:build !linux

package combine

import "time"

func sleepExactly(d time.Duration) { time.Sleep(d) }

// cpuTime is only measured on Linux.
func cpuTime() time.Duration { return 0 }
