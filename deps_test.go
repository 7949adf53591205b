package idem_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const modulePath = "github.com/goidem/idem"

// importRule says what one package of this module, or every package below it when pkg ends in
// "/...", may link. The first rule that matches a package is its only rule.
type importRule struct {
	pkg string // relative to the module; "." is the root

	// may lists the packages of this module that pkg may reach, directly or through others.
	// "internal" stands for every internal package, "*" for anything.
	may []string

	// stdOnly refuses every package that is neither of this module nor of the standard library.
	stdOnly bool

	// links lists the keys of heavyDeps that pkg may reach all the same.
	links []string

	why string
}

// heavyDeps are what no package may link unless its rule says so: each prefix with the reason.
var heavyDeps = []struct{ prefix, why string }{
	{"github.com/jackc/pgx", "who does not use PostgreSQL must not compile, ship or audit its driver"},
	{"github.com/lib/pq", "pgx is the PostgreSQL driver; a second one would register itself beside it"},
	{"github.com/cockroachdb", "only a CockroachDB user needs its retry protocol"},
	{"github.com/redis", "who does not use Redis must not compile, ship or audit its client"},
	{"go.etcd.io/bbolt", "who uses a server does not need an embedded database"},
	{"github.com/prometheus", "metrics go through the Observer; who does not scrape must not link the client"},
	{"go.yaml.in/yaml", "who states policies in Go must not link a YAML parser"},
	{"testing", "it would bring its flags and its code into production binaries"},
}

const anything = "*"

// everyClient is what a program may link that works on all backends: all heavyDeps but testing.
var everyClient = []string{
	"github.com/jackc/pgx", "github.com/cockroachdb", "github.com/redis", "go.etcd.io/bbolt", "github.com/prometheus",
	"go.yaml.in/yaml",
}

// importRules is the layout of the module. The order matters only where a "/..." rule would also
// match a package that has a rule of its own: the particular one comes first.
var importRules = []importRule{
	{pkg: "backend", stdOnly: true,
		why: "everything depends on the contract, so it may cost nobody a dependency"},
	{pkg: "backend/memory", may: []string{"backend"}, stdOnly: true,
		why: "it is the reference that drivers are compared with, so it must not share code with them"},
	{pkg: "backend/backendtest", may: []string{"backend"}, links: []string{"testing"},
		why: "authors of other backends run the suite; it must judge by the contract alone"},
	{pkg: "expiry", may: []string{"backend"},
		why: "the retention policy is pure, and the root imports it"},
	{pkg: "expiry/policyfile", may: []string{"backend", "expiry"}, links: []string{"go.yaml.in/yaml"},
		why: "services and the command read one format with one loader, whatever their backend"},
	{pkg: ".", may: []string{"backend", "expiry"},
		why: "who embeds idem links only the backend that they picked, and drivers stay interchangeable"},

	{pkg: "bolt", may: []string{"backend", "internal"}, links: []string{"go.etcd.io/bbolt"},
		why: "a driver knows the contract, never the core; a program on bolt links no SQL and no Redis client"},
	{pkg: "redis", may: []string{"backend", "internal"}, links: []string{"github.com/redis"},
		why: "a driver knows the contract, never the core or another driver"},
	{pkg: "postgres", may: []string{"backend", "internal"}, links: []string{"github.com/jackc/pgx"},
		why: "a driver knows the contract, never the core; what it shares with cockroach is in internal/pgstore"},
	{pkg: "cockroach", may: []string{"backend", "internal"}, links: []string{"github.com/jackc/pgx", "github.com/cockroachdb"},
		why: "a driver knows the contract, never the core; what it shares with postgres is in internal/pgstore"},
	{pkg: "internal/pgstore", may: []string{"backend", "internal/combine"}, links: []string{"github.com/jackc/pgx"},
		why: "it is the half of two drivers, so it is held to the same rule"},

	{pkg: "metrics", may: []string{".", "backend", "expiry"}, links: []string{"github.com/prometheus"},
		why: "it is an Observer and works on every backend"},
	{pkg: "httpidem", may: []string{".", "backend", "expiry"},
		why: "the middleware works on every backend, so it may know none"},
	{pkg: "inbox", may: []string{".", "backend", "expiry"},
		why: "it is written against Transactional[Tx], so that one inbox serves every driver"},
	{pkg: "outbox", may: []string{".", "backend", "expiry"},
		why: "its storage interface is in backend, so that drivers need not import it nor it them"},
	{pkg: "webhook", may: []string{".", "backend", "expiry"},
		why: "receipts work on every backend, so it may know none"},

	{pkg: "bench", may: []string{anything}, links: everyClient,
		why: "it compares all backends, and idem bench makes it a part of the command"},
	{pkg: "bench/...", may: []string{anything}, links: everyClient,
		why: "it compares all backends, and idem bench makes it a part of the command"},
	{pkg: "cmd/idem", may: []string{anything}, links: everyClient,
		why: "the command works on every backend, but is a production binary too"},
	{pkg: "cmd/...", may: []string{anything}, links: everyClient,
		why: "commands work on every backend, but are production binaries too"},
	{pkg: "examples/...", may: []string{anything}, links: []string{anything},
		why: "an example shows a whole program"},
	{pkg: "internal/testdb", may: []string{"backend", "internal"}, links: []string{anything},
		why: "it starts servers for tests, and only tests import it"},
	{pkg: "internal/throwaway",
		why: "the benchmark is a part of the command and starts servers, so testing must not come with them, nor anything of this module"},
	{pkg: "internal/crdbshim", links: []string{"github.com/jackc/pgx", "testing"},
		why: "it stands in for a server, so it may not share code with the drivers that it tests, and only tests import it"},
	{pkg: "internal/...", may: []string{"backend", "internal"},
		why: "drivers import internal packages, so through none of them may a driver reach the core, another driver or testing"},
}

// planned lists the packages that have a rule and do not exist yet.
var planned = []string{
	"metrics", "httpidem", "inbox", "outbox", "webhook",
}

// listedPackage is what these tests read from go list -json.
type listedPackage struct {
	ImportPath string
	Name       string
	Imports    []string
	DepOnly    bool // not of this module
}

func TestImportsGoOneWay(t *testing.T) {
	t.Parallel()
	for _, p := range checkImports(listPackages(t), importRules, planned) {
		t.Error(p)
	}
}

// TestImportsOfBoltUserStayLight states the promise of DESIGN.md section 2 in the words of the person
// it is made to, apart from the table above, so that an edit of the table cannot quietly drop it.
func TestImportsOfBoltUserStayLight(t *testing.T) {
	t.Parallel()
	out := goList(t, "-deps", ".", "./bolt")
	for _, dep := range strings.Fields(out) {
		for _, heavy := range []string{"github.com/jackc/pgx", "github.com/redis", "github.com/prometheus", "testing"} {
			if within(dep, heavy) {
				t.Errorf("a program that embeds only bolt links %s; go mod why -m names the path to it", dep)
			}
		}
	}
}

// checkImports returns one message for each broken rule. pkgs holds the packages of the module and
// all their dependencies.
func checkImports(pkgs []listedPackage, rules []importRule, planned []string) []string {
	var problems []string
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }

	graph := make(map[string]listedPackage, len(pkgs))
	exists := make(map[string]bool)
	for _, p := range pkgs {
		graph[p.ImportPath] = p
		if !p.DepOnly {
			exists[relative(p.ImportPath)] = true
		}
	}

	for _, r := range rules {
		if r.why == "" {
			report("the rule for %s has no reason: say why in its why field", r.pkg)
		}
		if strings.HasSuffix(r.pkg, "/...") {
			continue
		}
		switch isPlanned := slices.Contains(planned, r.pkg); {
		case isPlanned && exists[r.pkg]:
			report("package %s exists: move it out of planned", r.pkg)
		case !isPlanned && !exists[r.pkg]:
			report("package %s has a rule and does not exist: delete the rule, or list it in planned", r.pkg)
		}
	}
	for _, name := range planned {
		if !slices.ContainsFunc(rules, func(r importRule) bool { return r.pkg == name }) {
			report("package %s is planned and has no rule: give it one", name)
		}
	}

	for _, p := range pkgs {
		if p.DepOnly {
			continue
		}
		name := relative(p.ImportPath)
		rule, ok := ruleFor(name, rules)
		if !ok {
			report("package %s has no import rule: give it one in importRules, with its reason", name)
			continue
		}
		if p.Name == "main" && within(name, "internal") {
			rule.may, rule.links = []string{anything}, []string{anything}
		}
		for _, b := range brokenDeps(p, rule, graph) {
			report("package %s must not link %s: %s\n\tthe chain is %s", name, b.dep, b.why, strings.Join(b.chain, " -> "))
		}
	}
	return problems
}

type brokenDep struct {
	dep, why string
	chain    []string
}

// brokenDeps walks what p links, breadth first, and does not go on behind a package that is refused:
// the first bad link is the one to cut, what it drags in says nothing new.
func brokenDeps(p listedPackage, rule importRule, graph map[string]listedPackage) []brokenDep {
	var broken []brokenDep
	from := map[string]string{p.ImportPath: ""}
	for queue := []string{p.ImportPath}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, dep := range graph[at].Imports {
			if _, seen := from[dep]; seen {
				continue
			}
			from[dep] = at
			why := refusal(dep, rule)
			if why == "" {
				queue = append(queue, dep)
				continue
			}
			var chain []string
			for link := dep; link != ""; link = from[link] {
				chain = append(chain, link)
			}
			slices.Reverse(chain)
			broken = append(broken, brokenDep{dep, why, chain})
		}
	}
	return broken
}

// refusal returns why a package under this rule may not link dep, or "" when it may.
func refusal(dep string, rule importRule) string {
	if within(dep, modulePath) {
		name := relative(dep)
		for _, m := range rule.may {
			if m == anything || m == name || m == "internal" && within(name, m) {
				return ""
			}
		}
		return rule.why
	}
	for _, h := range heavyDeps {
		if within(dep, h.prefix) && !slices.Contains(rule.links, h.prefix) && !slices.Contains(rule.links, anything) {
			return h.why
		}
	}
	if rule.stdOnly && !inStandardLibrary(dep) {
		return rule.why
	}
	return ""
}

func ruleFor(name string, rules []importRule) (importRule, bool) {
	for _, r := range rules {
		if below, ok := strings.CutSuffix(r.pkg, "/..."); r.pkg == name || ok && within(name, below) {
			return r, true
		}
	}
	return importRule{}, false
}

// within reports whether name is dir or lies below it.
func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, dir+"/")
}

func relative(importPath string) string {
	if importPath == modulePath {
		return "."
	}
	return strings.TrimPrefix(importPath, modulePath+"/")
}

// inStandardLibrary goes by the go command's own convention: only a path whose first element has a
// dot can be downloaded.
func inStandardLibrary(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

// listPackages returns the packages of this module, without their tests, and all that they import.
func listPackages(t *testing.T) []listedPackage {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(goList(t, "-deps", "-json=ImportPath,Name,Imports,DepOnly", "./...")))
	var pkgs []listedPackage
	for {
		var p listedPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		if err != nil {
			t.Fatalf("read the output of go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

func goList(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("go list %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String()
}

// TestImportsCheckCanFail breaks each kind of rule in a made-up package graph, because a check that
// cannot fail would let the real one rot.
func TestImportsCheckCanFail(t *testing.T) {
	t.Parallel()
	rules := []importRule{
		{pkg: ".", may: []string{"backend"}, why: "reason of the root"},
		{pkg: "backend", stdOnly: true, why: "reason of backend"},
		{pkg: "backend/backendtest", may: []string{"backend"}, links: []string{"testing"}, why: "reason of the suite"},
		{pkg: "bolt", may: []string{"backend", "internal"}, links: []string{"go.etcd.io/bbolt"}, why: "reason of bolt"},
		{pkg: "redis", may: []string{"backend"}, links: []string{"github.com/redis"}, why: "reason of redis"},
		{pkg: "cmd/...", may: []string{anything}, links: []string{anything}, why: "reason of commands"},
		{pkg: "internal/...", may: []string{"backend", "internal"}, why: "reason of internal"},
	}
	sound := map[string][]string{
		".":                    {"context", "./backend"},
		"backend":              {"context"},
		"backend/backendtest":  {"testing", "./backend"},
		"bolt":                 {"./backend", "./internal/x", "go.etcd.io/bbolt"},
		"internal/x":           {"./backend", "sync"},
		"internal/numbers":     {"testing", "./.", "./bolt"},
		"cmd/idem":             {"./.", "./bolt"},
		"go.etcd.io/bbolt":     {"golang.org/x/sys/unix"},
		"example.org/innocent": {"github.com/jackc/pgx/v5"},
	}

	tests := []struct {
		name    string
		change  map[string][]string // nil imports delete the package
		planned []string
		rules   []importRule // nil for those above
		want    []string     // parts of the only message, or nil
	}{
		{name: "sound"},
		{name: "core imports a driver", change: map[string][]string{".": {"./bolt"}},
			want: []string{"package . must not link github.com/goidem/idem/bolt", "reason of the root"}},
		{name: "core imports testing", change: map[string][]string{".": {"testing/iotest"}},
			want: []string{"package . must not link testing/iotest", "production binaries"}},
		{name: "contract imports a library", change: map[string][]string{"backend": {"example.org/innocent/log"}},
			want: []string{"package backend must not link example.org/innocent/log", "reason of backend"}},
		{name: "driver imports the core", change: map[string][]string{"bolt": {"./."}},
			want: []string{"package bolt must not link github.com/goidem/idem:", "reason of bolt"}},
		{name: "driver imports the core behind an internal package", change: map[string][]string{"internal/numbers": nil, "cmd/idem": nil, "internal/x": {"./."}},
			want: []string{"github.com/goidem/idem/bolt -> github.com/goidem/idem/internal/x -> github.com/goidem/idem"}},
		{name: "driver links another client behind a library", change: map[string][]string{"bolt": {"example.org/innocent"}},
			want: []string{"package bolt must not link github.com/jackc/pgx/v5", "example.org/innocent -> github.com/jackc/pgx/v5"}},
		{name: "driver imports testing", change: map[string][]string{"bolt": {"testing"}},
			want: []string{"package bolt must not link testing"}},
		{name: "no rule", change: map[string][]string{"stray": {"fmt"}},
			want: []string{"package stray has no import rule"}},
		{name: "planned package appears", change: map[string][]string{"redis": {"fmt"}},
			want: []string{"package redis exists: move it out of planned"}},
		{name: "package vanishes", planned: []string{},
			want: []string{"package redis has a rule and does not exist"}},
		{name: "planned without a rule", planned: []string{"redis", "kafka"},
			want: []string{"package kafka is planned and has no rule"}},
		{name: "rule without a reason", rules: append(slices.Clone(rules), importRule{pkg: "examples/..."}),
			want: []string{"the rule for examples/... has no reason"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			imports := make(map[string][]string)
			for _, m := range []map[string][]string{sound, tt.change} {
				for name, deps := range m {
					imports[name] = deps
					if deps == nil {
						delete(imports, name)
					}
				}
			}
			var pkgs []listedPackage
			for name, deps := range imports {
				p := listedPackage{ImportPath: name, Name: path.Base(name), DepOnly: strings.Contains(name, ".") && name != "."}
				if !p.DepOnly {
					p.ImportPath = path.Join(modulePath, name)
				}
				if name == "cmd/idem" || name == "internal/numbers" {
					p.Name = "main"
				}
				for _, dep := range deps {
					if rel, ok := strings.CutPrefix(dep, "./"); ok {
						dep = path.Join(modulePath, rel)
					}
					p.Imports = append(p.Imports, dep)
				}
				pkgs = append(pkgs, p)
			}
			absent := tt.planned
			if absent == nil {
				absent = []string{"redis"}
			}
			table := tt.rules
			if table == nil {
				table = rules
			}

			got := checkImports(pkgs, table, absent)
			if tt.want == nil {
				if len(got) > 0 {
					t.Errorf("a sound module is refused:\n%s", strings.Join(got, "\n"))
				}
				return
			}
			all := strings.Join(got, "\n")
			for _, want := range tt.want {
				if !strings.Contains(all, want) {
					t.Errorf("the problems do not say %q:\n%s", want, all)
				}
			}
		})
	}
}
