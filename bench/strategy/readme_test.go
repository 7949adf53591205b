package strategy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The page says of each floor what it does and what is held against it: which of the two
// needs less cannot be seen from a ratio.
func TestReadmeTellsFloors(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| floor | what each call does | of | which do |\n")
	if !found {
		t.Fatal("README.md has no table of floors")
	}
	against := make(map[string]string) // floor by strategy
	does := make(map[string]string)
	floor := ""
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 {
			break
		}
		if name := strings.Trim(cells[1], " `"); name != "" && !strings.HasPrefix(name, "-") {
			floor = name
			does[floor] = strings.TrimSpace(cells[2])
		}
		for name := range strings.SplitSeq(cells[3], ",") {
			against[strings.Trim(name, " `")] = floor
		}
	}
	for _, s := range All() {
		info := s.Info()
		if info.Floor != against[info.Name] {
			t.Errorf("%s is held against %q, and README.md says %q", info.Name, info.Floor, against[info.Name])
		}
		if info.Floor != "" && does[info.Floor] == "" {
			t.Errorf("README.md does not say what %s does", info.Floor)
		}
	}
}
