package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cli is the built program over a store with many records.
type cli struct {
	r     *report
	exe   string
	store string
	keys  int
}

// measureCLI measures whole processes, from their start to their end.
func measureCLI(r *report) error {
	c := &cli{r: r, exe: filepath.Join(r.dir, "idem"), store: filepath.Join(r.dir, "cli.db")}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("finding the module: %w", err)
	}
	build := exec.Command("go", "build", "-o", c.exe, "./cmd/idem")
	build.Dir, build.Stderr = strings.TrimSpace(string(root)), os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("building cmd/idem: %w", err)
	}
	if err := c.fill(); err != nil {
		return err
	}
	if err := c.single(); err != nil {
		return err
	}
	return c.batch()
}

// fill makes a store with 10,000 records that commands were run for.
func (c *cli) fill() error {
	file, store, err := c.r.openBolt(filepath.Base(c.store))
	if err != nil {
		return err
	}
	if err := fill(c.r.size(10_000), executeNew(store)); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	_, err = c.took(c.run("kept", "true"))
	return err
}

func (c *cli) run(key, program string) *exec.Cmd {
	return exec.Command(c.exe, "run", "--store", c.store, "--op", "numbers", "--key", key, "--", program)
}

// took runs a process with its output thrown away and returns how long it took.
func (c *cli) took(cmd *exec.Cmd) (time.Duration, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	begun := time.Now()
	err := cmd.Run()
	took := time.Since(begun)
	if err != nil {
		return took, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[1:], " "), err, stderr.String())
	}
	return took, nil
}

// single compares one run, and one replay, with a process that does nothing and
// four raw syncs, in turns.
func (c *cli) single() error {
	raw, err := os.Create(filepath.Join(c.r.dir, "raw-cli"))
	if err != nil {
		return err
	}
	defer raw.Close()
	page := make([]byte, 4096)
	syncs := func() (time.Duration, error) {
		begun := time.Now()
		for i := range 4 {
			if _, err := raw.WriteAt(page, int64(i)*4096); err != nil {
				return 0, err
			}
			if err := syscall.Fdatasync(int(raw.Fd())); err != nil {
				return 0, err
			}
		}
		return time.Since(begun), nil
	}
	if _, err := syncs(); err != nil { // the file gets its blocks
		return err
	}
	var version, synced, ran, replayed, bare []float64
	for range max(c.r.rounds*c.r.size(10), c.r.rounds) {
		c.keys++
		for _, m := range []struct {
			into *[]float64
			do   func() (time.Duration, error)
		}{
			{&version, func() (time.Duration, error) { return c.took(exec.Command(c.exe, "version")) }},
			{&synced, syncs},
			{&ran, func() (time.Duration, error) { return c.took(c.run("new-"+strconv.Itoa(c.keys), "true")) }},
			{&replayed, func() (time.Duration, error) { return c.took(c.run("kept", "true")) }},
			{&bare, func() (time.Duration, error) { return c.took(exec.Command("true")) }},
		} {
			d, err := m.do()
			if err != nil {
				return err
			}
			*m.into = append(*m.into, d.Seconds()*1000)
		}
	}
	c.r.info("cli: idem version", "1", median(version), " ms")
	c.r.info("cli: true by itself", "1", median(bare), " ms")
	c.r.info("cli: four raw syncs", "1", median(synced), " ms")
	c.r.info("cli: idem run true", "1", median(ran), " ms")
	c.r.info("cli: idem run, replay", "1", median(replayed), " ms")
	c.r.atMost("cli: idem run true / (version + 4 raw syncs)", "1", median(ran)/(median(version)+median(synced)), 3, "x")
	c.r.atMost("cli: replay / version", "1", median(replayed)/median(version), 2, "x")
	return nil
}

// batch compares idem each with xargs over the same records in slices, in turns, so
// that both meet the same weather; then everything is passed over once more.
func (c *cli) batch() error {
	const slices = 10
	per, jobs := c.r.size(1000), runtime.GOMAXPROCS(0)
	var ratios, each, xargs []float64
	var all strings.Builder
	run := func(input string, args ...string) (float64, error) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin, cmd.Stdout = strings.NewReader(input), io.Discard
		d, err := c.took(cmd)
		return float64(strings.Count(input, "\n")) / d.Seconds(), err
	}
	ours := []string{c.exe, "each", "--store", c.store, "--op", "batch", "--key", "{{.line}}", "--jobs", strconv.Itoa(jobs), "--progress", "none", "--", "true", "{{.line}}"}
	theirs := []string{"xargs", "-P", strconv.Itoa(jobs), "-n", "1", "true"}
	for s := range slices {
		var input strings.Builder
		for i := range per {
			fmt.Fprintf(&input, "record-%d\n", s*per+i)
		}
		all.WriteString(input.String())
		rates := map[bool]float64{}
		for _, mine := range []bool{s%2 == 0, s%2 != 0} {
			args := theirs
			if mine {
				args = ours
			}
			rate, err := run(input.String(), args...)
			if err != nil {
				return err
			}
			rates[mine] = rate
		}
		each, xargs, ratios = append(each, rates[true]), append(xargs, rates[false]), append(ratios, rates[true]/rates[false])
	}
	var passed []float64
	for range c.r.rounds {
		rate, err := run(all.String(), ours...)
		if err != nil {
			return err
		}
		passed = append(passed, rate)
	}
	callers := strconv.Itoa(jobs)
	c.r.info("cli: idem each, new records", callers, median(each), "/s")
	c.r.info("cli: xargs -P", callers, median(xargs), "/s")
	c.r.info("cli: idem each, records done before", callers, median(passed), "/s")
	c.r.atLeast("cli: idem each / xargs -P, 10,000 new records", callers, median(ratios), 0.8, "x")
	c.r.atLeast("cli: done before / new", callers, median(passed)/median(each), 20, "x")
	return nil
}
