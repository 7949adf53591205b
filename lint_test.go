package idem_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// goFile is one Go source file under the house rules.
type goFile struct {
	path string // from the module's root, with slashes
	ast  *ast.File
	fset *token.FileSet
}

// finding is one breach: where, and what.
type finding struct {
	pos  token.Pos
	what string
}

// houseRule is one rule and its reason, which every failure repeats.
type houseRule struct {
	name    string
	why     string
	library bool // applies only to the non-test files of library packages
	check   func(goFile) []finding
}

var houseRules = []houseRule{
	{"clock", "tests set the clock, and leases are judged by the store's time: only a package's clock.go reads the machine's", true, checkClock},
	{"context", "work detached from its caller cannot be cancelled: derive from the caller's context, with context.WithoutCancel where the caller may leave", true, checkContext},
	{"doc", "the comment is the contract that callers program against", true, checkDocs},
	{"state", "package variables are shared by all stores of a process and couple their tests; hold state in a struct, or justify a constant with a comment '// lint:const REASON'", true, checkState},
	{"marker", "an unfinished thought in the code is found by nobody: finish it or file it", false, checkMarkers},
}

// programs are the folders whose packages are no library. So is every package main.
var programs = []string{"bench", "cmd", "examples", "internal/numbers"}

func TestLintHouseRules(t *testing.T) {
	t.Parallel()
	files := parseModule(t)
	for _, rule := range houseRules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			for _, f := range files {
				for _, problem := range rule.apply(f) {
					t.Error(problem)
				}
			}
		})
	}
	t.Run("package doc", func(t *testing.T) {
		t.Parallel()
		for _, dir := range withoutPackageDoc(files) {
			t.Errorf("%s: no file has a package comment: it is what people read first about a package", dir)
		}
	})
}

func TestLintGoMod(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range checkGoMod(string(text)) {
		t.Error(problem)
	}
}

// parseModule parses every Go file of the module, tests included.
func parseModule(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	fset := token.NewFileSet()
	root := os.DirFS(".")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			hidden := name != "." && strings.ContainsAny(d.Name()[:1], "._")
			if hidden || d.Name() == "testdata" || d.Name() == "vendor" {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		src, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		f, err := parseGo(fset, name, string(src))
		files = append(files, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func parseGo(fset *token.FileSet, name, src string) (goFile, error) {
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	return goFile{name, f, fset}, err
}

// library reports whether f is a non-test file of a package that others import.
func (f goFile) library() bool {
	if f.ast.Name.Name == "main" || strings.HasSuffix(f.path, "_test.go") {
		return false
	}
	return !slices.ContainsFunc(programs, func(dir string) bool { return within(path.Dir(f.path), dir) })
}

func (r houseRule) apply(f goFile) []string {
	if r.library && !f.library() {
		return nil
	}
	var problems []string
	for _, found := range r.check(f) {
		problems = append(problems, fmt.Sprintf("%s: %s: %s", f.fset.Position(found.pos), found.what, r.why))
	}
	return problems
}

func checkClock(f goFile) []finding {
	if path.Base(f.path) == "clock.go" {
		return nil
	}
	return uses(f, "time", "Now", "Since", "Until")
}

func checkContext(f goFile) []finding {
	return uses(f, "context", "Background", "TO"+"DO")
}

// uses finds where f names one of the functions of an imported package, called or not.
func uses(f goFile, pkg string, functions ...string) []finding {
	var found []finding
	var local []string
	for _, spec := range f.ast.Imports {
		if importPath, err := strconv.Unquote(spec.Path.Value); err != nil || importPath != pkg {
			continue
		}
		switch {
		case spec.Name == nil:
			local = append(local, path.Base(pkg))
		case spec.Name.Name == ".":
			found = append(found, finding{spec.Pos(), "dot import of " + pkg + ", which hides what is called"})
		default:
			local = append(local, spec.Name.Name)
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if ok && slices.Contains(local, x.Name) && slices.Contains(functions, sel.Sel.Name) {
			found = append(found, finding{sel.Pos(), pkg + "." + sel.Sel.Name})
		}
		return true
	})
	return found
}

func checkDocs(f goFile) []finding {
	var found []finding
	need := func(name *ast.Ident, docs ...*ast.CommentGroup) {
		if !name.IsExported() {
			return
		}
		for _, doc := range docs {
			if strings.TrimSpace(doc.Text()) != "" {
				return
			}
		}
		found = append(found, finding{name.Pos(), name.Name + " is exported and has no doc comment"})
	}
	for _, decl := range f.ast.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || ast.IsExported(receiver(d)) {
				need(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if d.Lparen.IsValid() {
						need(s.Name, s.Doc)
					} else {
						need(s.Name, d.Doc)
					}
				case *ast.ValueSpec:
					for _, name := range s.Names {
						need(name, d.Doc, s.Doc, s.Comment)
					}
				}
			}
		}
	}
	return found
}

// receiver returns the name of a method's receiver type, without its star and type parameters.
func receiver(d *ast.FuncDecl) string {
	expr := d.Recv.List[0].Type
	for {
		switch x := expr.(type) {
		case *ast.StarExpr:
			expr = x.X
		case *ast.ParenExpr:
			expr = x.X
		case *ast.IndexExpr:
			expr = x.X
		case *ast.IndexListExpr:
			expr = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

var (
	sentinelName = regexp.MustCompile(`^(Err|err)[A-Z0-9]`)
	justified    = regexp.MustCompile(`(?m)^//\s*lint:const\s+\S`)
	embedded     = regexp.MustCompile(`(?m)^//go:embed\s`)
	marker       = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
)

func checkState(f goFile) []finding {
	var found []finding
	for _, decl := range f.ast.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.VAR {
			continue
		}
		for _, spec := range d.Specs {
			s := spec.(*ast.ValueSpec)
			if commented(justified, d.Doc, s.Doc, s.Comment) || commented(embedded, d.Doc, s.Doc) {
				continue
			}
			for _, name := range s.Names {
				if name.Name != "_" && !sentinelName.MatchString(name.Name) {
					found = append(found, finding{name.Pos(), "package variable " + name.Name})
				}
			}
		}
	}
	return found
}

func commented(pattern *regexp.Regexp, groups ...*ast.CommentGroup) bool {
	for _, g := range groups {
		if g == nil {
			continue
		}
		for _, c := range g.List {
			if pattern.MatchString(c.Text) {
				return true
			}
		}
	}
	return false
}

// checkMarkers looks into comments and strings, not at identifiers: context has a function of such a
// name, which is another rule's business.
func checkMarkers(f goFile) []finding {
	var found []finding
	look := func(pos token.Pos, text string) {
		if word := marker.FindString(text); word != "" {
			found = append(found, finding{pos, word})
		}
	}
	for _, g := range f.ast.Comments {
		for _, c := range g.List {
			look(c.Pos(), c.Text)
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			look(lit.Pos(), lit.Value)
		}
		return true
	})
	return found
}

// withoutPackageDoc returns the folders of library packages that say nothing about themselves.
func withoutPackageDoc(files []goFile) []string {
	silent := make(map[string]bool)
	for _, f := range files {
		if !f.library() {
			continue
		}
		dir := path.Dir(f.path)
		said, seen := silent[dir]
		silent[dir] = (said || !seen) && strings.TrimSpace(f.ast.Doc.Text()) == ""
	}
	maps.DeleteFunc(silent, func(_ string, s bool) bool { return !s })
	return slices.Sorted(maps.Keys(silent))
}

// checkGoMod reads the file by lines: the only forms that matter are a directive and a module path.
func checkGoMod(text string) []string {
	var problems []string
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "//")
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[0] == "tool" {
			problems = append(problems, fmt.Sprintf("go.mod:%d: tool directive: it would add the tool's requirements to everyone who imports idem; tools belong in .ci/tools.mod", i+1))
		}
		if slices.ContainsFunc(fields, func(s string) bool { return within(s, "github.com/stretchr/testify") }) {
			problems = append(problems, fmt.Sprintf("go.mod:%d: testify: tests use the standard library only, and an assertion library ends up in production binaries sooner or later", i+1))
		}
	}
	return problems
}

// TestLintRulesCanFail gives each rule sources that it must refuse and sources that it must leave
// alone.
func TestLintRulesCanFail(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		rule string
		path string // "" for a library file
		src  string // package clause apart
		want int    // findings
	}{
		{"now", "clock", "", "import \"time\"\nvar a, b, c = time.Now(), time.Since, time.Until", 3},
		{"now under another name", "clock", "", "import clk \"time\"\nfunc f() { clk.Now() }", 1},
		{"dot import", "clock", "", "import . \"time\"\nfunc f() { Now() }", 1},
		{"clock file", "clock", "bolt/clock.go", "import \"time\"\nvar now = time.Now", 0},
		{"file that is merely named like it", "clock", "bolt/wallclock.go", "import \"time\"\nvar now = time.Now", 1},
		{"test file", "clock", "bolt/a_test.go", "import \"time\"\nvar now = time.Now()", 0},
		{"command", "clock", "cmd/idem/a.go", "import \"time\"\nvar now = time.Now()", 0},
		{"other time functions", "clock", "", "import \"time\"\nvar t = time.NewTimer(time.Second)", 0},
		{"a field called Now", "clock", "", "import \"time\"\nfunc f(s struct{ Now time.Time }) time.Time { return s.Now }", 0},

		{"background", "context", "", "import \"context\"\nfunc f() { g(context.Background()); g(context.TO" + "DO()) }", 2},
		{"detached from a caller", "context", "", "import \"context\"\nfunc f(ctx context.Context) { g(context.WithoutCancel(ctx)) }", 0},
		{"background in a bench", "context", "bench/workload.go", "import \"context\"\nvar c = context.Background()", 0},

		{"bare function", "doc", "", "func F() {}", 1},
		{"documented function", "doc", "", "// F does.\nfunc F() {}", 0},
		{"directive is no doc", "doc", "", "//go:noinline\nfunc F() {}", 1},
		{"bare method", "doc", "", "// T is.\ntype T[A, B any] struct{}\nfunc (t *T[A, B]) M() {}", 1},
		{"method of an unexported type", "doc", "", "type t struct{}\nfunc (t) String() string { return \"\" }", 0},
		{"bare type", "doc", "", "type T struct{}", 1},
		{"group doc does not cover types", "doc", "", "// Types.\ntype (\n\t// A is.\n\tA int\n\tB int\n)", 1},
		{"constants under a group doc", "doc", "", "// Limits.\nconst (\n\tA = 1\n\tB = 2\n)", 0},
		{"constants with line comments", "doc", "", "const (\n\tA = 1 // one\n\tB = 2\n)", 1},
		{"command has no interface", "doc", "cmd/idem/a.go", "func F() {}", 0},

		{"mutable variable", "state", "", "var a, b = 1, 2", 2},
		{"sentinels", "state", "", "import \"errors\"\nvar (\n\tErrA = errors.New(\"a\")\n\terrB = errors.New(\"b\")\n)", 0},
		{"only looks like a sentinel", "state", "", "var errors, Errors, errorCount int", 3},
		{"assertion", "state", "", "var _ error = (*T)(nil)", 0},
		{"embed", "state", "", "import _ \"embed\"\n//go:embed a.lua\nvar script string", 0},
		{"justified", "state", "", "// lint:const tables are built once and only read\nvar table = [2]int{1, 2}", 0},
		{"justified on its line", "state", "", "var (\n\ta = 1 // lint:const read only\n\tb = 2\n)", 1},
		{"justified without a reason", "state", "", "// lint:const\nvar table = [2]int{1, 2}", 1},
		{"local variable", "state", "", "func f() { var a int; _ = a }", 0},

		{"marker in a comment", "marker", "", "// TO" + "DO: later\nfunc f() {}", 1},
		{"marker in a test's string", "marker", "a_test.go", "func f() { skip(\"FIX" + "ME\") }", 1},
		{"marker in a command", "marker", "cmd/idem/a.go", "func f() {} // XX" + "X", 1},
		{"longer words", "marker", "", "// XX" + "XX and TO" + "DOS\nfunc f() {}", 0},
	}
	used := make(map[string]bool)
	for _, tt := range tests {
		used[tt.rule] = used[tt.rule] || tt.want > 0
		t.Run(tt.rule+"/"+tt.name, func(t *testing.T) {
			t.Parallel()
			name := cmp.Or(tt.path, "bolt/bolt.go")
			f, err := parseGo(token.NewFileSet(), name, "package p\n\n"+tt.src+"\n")
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(houseRules, func(r houseRule) bool { return r.name == tt.rule })
			if i < 0 {
				t.Fatalf("no rule is called %q", tt.rule)
			}
			got := houseRules[i].apply(f)
			if len(got) != tt.want {
				t.Errorf("%d findings, want %d in\n%s\n%s", len(got), tt.want, tt.src, strings.Join(got, "\n"))
			}
			for _, problem := range got {
				if !strings.Contains(problem, houseRules[i].why) {
					t.Errorf("a finding does not give the rule's reason: %s", problem)
				}
			}
		})
	}
	for _, rule := range houseRules {
		if !used[rule.name] {
			t.Errorf("rule %s has no snippet here that it refuses", rule.name)
		}
	}
}

func TestLintPackageDocCanFail(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	var files []goFile
	for name, src := range map[string]string{
		"said/a.go":        "package said",
		"said/doc.go":      "// Package said says.\npackage said",
		"silent/a.go":      "package silent",
		"silent/a_test.go": "// Package silent only speaks in its tests.\npackage silent",
		"cmd/x/main.go":    "package main",
	} {
		f, err := parseGo(fset, name, src)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	if got := withoutPackageDoc(files); !slices.Equal(got, []string{"silent"}) {
		t.Errorf("packages without a doc: %q, want only silent", got)
	}
}

func TestLintGoModCanFail(t *testing.T) {
	t.Parallel()
	sound := "module m\n\ngo 1.26\n\nrequire (\n\texample.org/tool v1.0.0 // tool: github.com/stretchr/testify\n)\n"
	if got := checkGoMod(sound); len(got) > 0 {
		t.Errorf("a sound go.mod is refused: %q", got)
	}
	broken := sound + "tool example.org/tool\nrequire github.com/stretchr/testify v1.9.0 // indirect\n"
	if got := checkGoMod(broken); len(got) != 2 {
		t.Errorf("findings %q, want the tool and testify", got)
	}
}
