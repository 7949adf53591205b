package bolt

import (
	"path/filepath"

	"github.com/goidem/idem/backend"
)

// inspect finds out what the store gives. Every commit is synced before it is
// acknowledged, so what can fall short is what is below the file.
func inspect(path string, perCall bool) backend.Guarantees {
	g := backend.Guarantees{
		ProcessCrash: backend.Survives,
		MachineCrash: backend.Survives,
		Failover:     backend.Survives,
		Atomic:       !perCall,
		Shared:       perCall,
		Findings: []backend.Finding{{
			Setting: "sync", Value: "every commit",
			Text: "data and header pages are synced before a commit is acknowledged",
		}},
	}
	if perCall {
		g.Findings = append(g.Findings, backend.Finding{
			Setting: "mode", Value: "per call",
			Text: "several processes share the file; every reservation is durable; no transactions",
		})
	} else {
		g.Findings = append(g.Findings, backend.Finding{
			Setting: "mode", Value: "exclusive",
			Text: "one process owns the file; a reservation under Rerun lives and dies with it",
		})
	}
	name, kind := fileSystem(filepath.Dir(path))
	f := backend.Finding{Setting: "file system", Value: name}
	switch kind {
	case fsMemory:
		g.MachineCrash = backend.Lost
		f.Want, f.Text = "a file system on a disk", "the file lives in memory and is gone when the machine stops"
	case fsRemote:
		g.MachineCrash = backend.Unchecked
		f.Want, f.Text = "a local file system", "whether locks and syncs reach the server's disk depends on the server and on the mount"
	case fsUnknown:
		f.Text = "not known to this code; taken for a local disk that keeps what it has synced"
	default:
		f.Text = "a local disk that keeps what it has synced"
	}
	g.Findings = append(g.Findings, f)
	return g
}

// kinds of file systems.
const (
	fsUnknown = iota
	fsDisk
	fsMemory
	fsRemote
)
