package strategy

// Dials is how many connections r has opened.
func Dials(r Runner) int64 { return r.(*runner).wire.dials.Load() }
