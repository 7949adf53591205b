package combine

import (
	"syscall"
	"time"
)

// sleepExactly sleeps in the kernel: the timers of the Go runtime are a millisecond coarse
// when all goroutines sleep.
func sleepExactly(d time.Duration) {
	ts := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&ts, nil)
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
