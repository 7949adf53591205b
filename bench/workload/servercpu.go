package workload

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// ticks is the unit of /proc/PID/stat on every Linux that Go runs on.
const ticks = 100

// serverCPU returns the seconds that processes and their descendants have computed, those
// included that have ended and were waited for; -1 where that cannot be known.
func serverCPU(pids []int) float64 {
	if len(pids) == 0 {
		return -1
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return -1
	}
	type process struct{ own, waited, parent int }
	all := make(map[int]process)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The command's name, in parentheses, may contain anything.
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(f) < 15 {
			continue
		}
		at := func(i int) int { n, _ := strconv.Atoi(f[i]); return n }
		all[pid] = process{own: at(11) + at(12), waited: at(13) + at(14), parent: at(1)}
	}
	// Of a child that ended its parent's waited time tells; of its living
	// descendants their own.
	sum, seen := 0, make(map[int]bool)
	for queue := slices.Clone(pids); len(queue) > 0; queue = queue[1:] {
		p, ok := all[queue[0]]
		if !ok || seen[queue[0]] {
			continue
		}
		seen[queue[0]] = true
		sum += p.own + p.waited
		for pid, child := range all {
			if child.parent == queue[0] {
				queue = append(queue, pid)
			}
		}
	}
	if len(seen) == 0 {
		return -1
	}
	return float64(sum) / ticks
}
