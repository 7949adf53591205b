package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goidem/idem/bench/result"
)

// TestDocsAreInStep holds the pages of the repository against the run that is committed:
//
//	IDEM_UPDATE_DOCS=1 go test ./bench/report -run TestDocsAreInStep
func TestDocsAreInStep(t *testing.T) {
	t.Parallel()
	docs := filepath.Join("..", "..", "docs")
	r, err := result.ReadFile(filepath.Join(docs, "bench", JSONFile))
	if err != nil {
		t.Fatal(err)
	}
	if r.Partial {
		t.Errorf("the committed run is partial: %s", r.Reason)
	}
	page, err := HTML(r)
	if err != nil {
		t.Fatal(err)
	}
	choosing := filepath.Join(docs, "choosing.md")
	old, err := os.ReadFile(choosing)
	if err != nil {
		t.Fatal(err)
	}
	anew, err := Choosing(string(old), r)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(docs, "bench", HTMLFile):     string(page),
		filepath.Join(docs, "bench", MarkdownFile): Markdown(r),
		choosing: anew,
	} {
		if os.Getenv("IDEM_UPDATE_DOCS") != "" {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Error(err)
			}
			continue
		}
		if have, err := os.ReadFile(path); err != nil || string(have) != want {
			t.Errorf("%s is not made from docs/bench/%s (%v); make it anew: IDEM_UPDATE_DOCS=1 go test ./bench/report -run TestDocsAreInStep", path, JSONFile, err)
		}
	}
}

func TestChoosingNeedsItsMarkers(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"", "# no markers", choosingBegin, choosingEnd + choosingBegin} {
		if _, err := Choosing(page, synthetic()); err == nil {
			t.Errorf("%q was accepted", page)
		}
	}
	once, err := Choosing("head\n"+choosingBegin+choosingEnd+"\ntail", synthetic())
	if err != nil {
		t.Fatal(err)
	}
	twice, err := Choosing(once, synthetic())
	if err != nil || twice != once || !strings.HasPrefix(once, "head\n") || !strings.HasSuffix(once, "\ntail") {
		t.Errorf("made anew it differs (%v), or what is around it has changed", err)
	}
}
