// Command numbers measures every number that this project promises, each against
// a hand-written floor in the same run, and says whether it holds.
//
// It prints the raw rate of the disk first, because all durable figures follow it,
// then one line a figure: name, callers, measured, bar, ok or short. Ratios are
// medians over rounds; variants are run in rotating order within a round.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/goidem/idem/internal/testdb"
)

// areas are what can be measured.
func areas() map[string]func(*report) error {
	return map[string]func(*report) error{
		"bench":    measureBench,
		"bolt":     measureBolt,
		"cli":      measureCLI,
		"expiry":   measureExpiry,
		"postgres": measurePostgres,
		"redis":    measureRedis,
	}
}

func main() {
	area := flag.String("area", "", "what to measure")
	rounds := flag.Int("rounds", 5, "rounds per figure; the median is reported")
	cell := flag.Duration("cell", defaultCell, "length of one measurement")
	dir := flag.String("dir", "", "folder on the disk to measure (default: a temporary one)")
	only := flag.String("only", "", "parts of the area, separated by commas (default: all)")
	quick := flag.Bool("quick", false, "small sizes: shows that the command works, proves nothing")
	flag.Parse()
	run, ok := areas()[*area]
	if !ok {
		known := slices.Sorted(maps.Keys(areas()))
		fmt.Fprintf(os.Stderr, "numbers: there is nothing to measure for area %q; this tree has: %s\n", *area, strings.Join(known, ", "))
		os.Exit(2)
	}
	// Main removes the servers that an area starts, and exits.
	testdb.Main(program(func() int {
		short, err := measure(*dir, run, &report{rounds: *rounds, cell: *cell, quick: *quick, only: *only})
		if err != nil {
			fmt.Fprintln(os.Stderr, "numbers:", err)
			return 1
		}
		if short > 0 {
			fmt.Printf("%d figures are short of their bar\n", short)
		}
		return 0
	}))
}

// program is what runs while servers may be started.
type program func() int

// Run implements what testdb.Main wants.
func (p program) Run() int { return p() }

func measure(dir string, run func(*report) error, r *report) (short int, err error) {
	r.dir, err = os.MkdirTemp(dir, "idem-numbers-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(r.dir)
	r.out = tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	if err := r.disk(); err != nil {
		return 0, err
	}
	fmt.Fprintln(r.out, "name\tcallers\tmeasured\tbar\t")
	r.out.Flush()
	err = run(r)
	r.out.Flush()
	return r.short, err
}
