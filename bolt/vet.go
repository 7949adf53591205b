package bolt

import "os"

func vet(f *os.File, thorough bool) error { return nil }
