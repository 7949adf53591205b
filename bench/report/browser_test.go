package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser returns the path of a browser that can run without a screen. A machine without
// one skips the test, unless IDEM_TEST_REQUIRE asks for chromium.
func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable",
		"/Applications/Chromium.app/Contents/MacOS/Chromium", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	for want := range strings.SplitSeq(os.Getenv("IDEM_TEST_REQUIRE"), ",") {
		if want = strings.TrimSpace(want); want == "chromium" || want == "all" {
			t.Fatal("Chromium is not installed, and IDEM_TEST_REQUIRE asks for chromium: make test installs it")
		}
	}
	t.Skip("Chromium is not installed: make test installs it")
	return ""
}

// browse opens a page and returns its DOM after its scripts, and what the browser logged.
func browse(t *testing.T, program, path string, args ...string) (dom, log string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions", "--enable-logging=stderr", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(),
		"--allow-file-access-from-files"}, args...)
	cmd := exec.CommandContext(ctx, program, append(args, "file://"+path)...)
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Errorf("the browser: %v\n%s", err, errs.String())
	}
	return out.String(), errs.String()
}

// look is what the page's own drawing says, at one width.
type look struct {
	Width    int      `json:"width"`
	Plots    int      `json:"plots"` // that are shown
	Empty    []string `json:"empty"` // of these without a size
	Overlaps []string `json:"overlaps"`
	Outside  []string `json:"outside"`
	Scrolls  bool     `json:"scrolls"` // sideways
	Red      int      `json:"red"`     // labels of naive strategies that are red
	Lanes    int      `json:"lanes"`
}

// measure runs in the browser, in the page that holds the report in frames of several
// widths. It measures what was really drawn, with the fonts that there are.
const measure = `
function look(frame) {
  const d = frame.contentDocument, w = frame.contentWindow;
  const r = {width: d.documentElement.clientWidth, plots: 0, empty: [], overlaps: [], outside: [], red: 0, lanes: 0};
  r.scrolls = d.documentElement.scrollWidth > r.width;
  for (const svg of d.querySelectorAll('svg')) {
    if (w.getComputedStyle(svg).display === 'none') continue;
    r.plots++;
    const title = svg.querySelector('title').textContent, box = svg.getBoundingClientRect();
    if (box.width < 50 || box.height < 50) r.empty.push(title);
    const texts = [...svg.querySelectorAll('text')].map(t => ({t: t.textContent, b: t.getBoundingClientRect()}));
    texts.forEach((a, i) => {
      if (a.b.left < box.left - 1 || a.b.right > box.right + 1 || a.b.top < box.top - 1 || a.b.bottom > box.bottom + 1) r.outside.push(title + ': ' + a.t);
      for (const b of texts.slice(0, i)) {
        const x = Math.min(a.b.right, b.b.right) - Math.max(a.b.left, b.b.left);
        const y = Math.min(a.b.bottom, b.b.bottom) - Math.max(a.b.top, b.b.top);
        // The boxes of two lines may touch: letters do not fill them.
        if (x > 0.5 && y > 0.25 * Math.min(a.b.height, b.b.height)) r.overlaps.push(title + ': ' + a.t + ' / ' + b.t);
      }
    });
    for (const g of svg.querySelectorAll('.lane')) {
      r.lanes++;
      const label = g.querySelector('.label');
      const [red, green, blue] = w.getComputedStyle(label).fill.match(/\d+/g).map(Number);
      if (g.classList.contains('f-naive') && red > 150 && red > 2 * green && red > 2 * blue) r.red++;
    }
  }
  return r;
}
window.onload = () => {
  const found = [...document.querySelectorAll('iframe')].map(look);
  const pre = document.createElement('pre');
  pre.id = 'found';
  pre.textContent = JSON.stringify(found);
  document.body.append(pre);
};
`

// TestPageInBrowser opens the page in a real browser, at the widths of a desk and of a
// telephone: nothing is logged, every plot has a size, no text meets another or is cut
// off, and what is naive is red.
func TestPageInBrowser(t *testing.T) {
	t.Parallel()
	program := browser(t)
	widths := []int{1280, 800, 390, 320}
	dir := t.TempDir()
	var frames strings.Builder
	pages := []string{"synthetic", "huge"}
	for i, r := range pages {
		data := synthetic()
		if i == 1 {
			data = huge()
		}
		if err := WriteDir(filepath.Join(dir, r), data); err != nil {
			t.Fatal(err)
		}
		for _, w := range widths {
			fmt.Fprintf(&frames, "<iframe src='%s/%s' style='width:%dpx;height:3000px;border:0'></iframe>", r, HTMLFile, w)
		}
	}
	frame := filepath.Join(dir, "frame.html")
	if err := os.WriteFile(frame, []byte("<!DOCTYPE html><title>check</title><body>"+frames.String()+"<script>"+measure+"</script>"), 0o644); err != nil {
		t.Fatal(err)
	}

	var wg sync.WaitGroup
	var dom, log, picture string
	png := filepath.Join(dir, "page.png")
	wg.Go(func() { dom, log = browse(t, program, frame, "--dump-dom", "--window-size=1400,2000") })
	wg.Go(func() {
		_, picture = browse(t, program, filepath.Join(dir, "synthetic", HTMLFile), "--screenshot="+png, "--window-size=1100,1600")
	})
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, lines := range []string{log, picture} {
		for line := range strings.Lines(lines) {
			if strings.Contains(line, "CONSOLE") {
				t.Errorf("the browser says: %s", line)
			}
		}
	}
	if info, err := os.Stat(png); err != nil || info.Size() < 20_000 {
		t.Errorf("the picture of the page: %v, of %d bytes; want one with something on it", err, size64(info))
	}
	if to := os.Getenv("IDEM_BENCH_PICTURE"); to != "" {
		text, err := os.ReadFile(png)
		if err = errors.Join(err, os.WriteFile(to, text, 0o644)); err != nil {
			t.Error(err)
		}
	}

	m := regexp.MustCompile(`(?s)<pre id="found">(.*?)</pre>`).FindStringSubmatch(dom)
	if m == nil {
		t.Fatalf("the page's scripts did not end:\n%.2000s", dom)
	}
	var found []look
	if err := json.Unmarshal([]byte(html.UnescapeString(m[1])), &found); err != nil || len(found) != len(pages)*len(widths) {
		t.Fatalf("%v: %s", err, m[1])
	}
	for i, l := range found {
		where := fmt.Sprintf("%s at %d pixels", pages[i/len(widths)], widths[i%len(widths)])
		if l.Width != widths[i%len(widths)] {
			t.Errorf("%s: it is %d wide: the check itself is wrong", where, l.Width)
		}
		// Guarantees, latency, and a panel for each of four places.
		if l.Plots != 6 || l.Lanes < 30 {
			t.Errorf("%s: %d plots with %d strategies in all", where, l.Plots, l.Lanes)
		}
		if l.Red < 8 {
			t.Errorf("%s: only %d labels of naive strategies are red", where, l.Red)
		}
		if l.Scrolls {
			t.Errorf("%s: the page scrolls sideways", where)
		}
		for what, all := range map[string][]string{"plots without a size": l.Empty, "texts that meet": l.Overlaps, "texts that are cut off": l.Outside} {
			if len(all) > 0 {
				t.Errorf("%s: %s: %q", where, what, slices.Compact(all))
			}
		}
	}
}

func size64(info os.FileInfo) int64 {
	if info == nil {
		return 0
	}
	return info.Size()
}
