package throwaway

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const dirPrefix = "idem-servers-"

// ownedDir is the folder of all servers of a process. Its lock says that the process lives. A file
// with a process number would not: numbers are used again, and containers that share a temporary
// folder do not share them.
type ownedDir struct {
	path string
	lock *os.File
}

func newOwnedDir(parent string) (*ownedDir, error) {
	path, err := os.MkdirTemp(parent, dirPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(path)
	if err == nil {
		err = os.Chmod(path, 0o711) // PostgreSQL runs as another user when this process is root
	}
	if err != nil {
		os.Remove(path)
		return nil, err
	}
	return &ownedDir{path, lock}, nil
}

func (d *ownedDir) remove() {
	os.RemoveAll(d.path)
	d.lock.Close()
}

// removeStale removes what killed processes left in parent: files, and servers on systems where those
// survive their process.
func removeStale(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*"))
	for _, path := range dirs {
		info, err := os.Lstat(path)
		// Between making a folder and locking it, a living process has no lock.
		if err != nil || !info.IsDir() || !olderThan(info.ModTime(), 10*time.Second) {
			continue
		}
		lock, err := lockDir(path)
		if err != nil {
			continue // its process lives, or it belongs to another user
		}
		endServers(path)
		os.RemoveAll(path)
		lock.Close()
	}
}

// pidFile, in the folder of each server, holds its process number.
const pidFile = "pid"

// endServers kills the servers in a folder. The number in a pid file may by now be that of another
// process: only one that names the folder in its command is meant.
func endServers(path string) {
	files, _ := filepath.Glob(filepath.Join(path, "*", pidFile))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || pid <= 1 {
			continue
		}
		command, err := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
		if err == nil && strings.Contains(string(command), filepath.Dir(file)) {
			family := descendants(pid)
			killPID(pid)
			for _, child := range family {
				killPID(child)
			}
		}
	}
}
