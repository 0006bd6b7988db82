package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// testOnly lists packages that only tests import. They may import testing, and
// the binary never links them.
var testOnly = []string{
	"internal/archtest",
	"internal/faultproxy",
	"internal/memnet",
	"internal/engine/enginetest",
}

// tools are programs of this repository beside the binary: they are built and
// run by scripts or by the tests of web's packages, whose other ends they are;
// never shipped, and they read their own arguments.
var tools = []string{"bench", "scripts", "web"}

// rule is one line of the dependency table.
type rule struct {
	// from are the packages that the rule is about, "*" for all that are not
	// test-only or tools. except are let off.
	from, except []string
	// mayNot are import paths that must not be reached; a trailing /... covers
	// what lies below. std stands for "anything but the standard library".
	mayNot []string
	// unless are exceptions to mayNot.
	unless []string
	// linked looks at all dependencies instead of the direct imports.
	linked bool
	reason string
}

// std in a rule's mayNot stands for everything outside the standard library.
const std = "outside the standard library"

var rules = []rule{
	{
		from: []string{"internal/relay"}, linked: true,
		mayNot: []string{"holdfast/internal/agent", "holdfast/internal/client"},
		reason: "the three roles meet in wire: what one needs of another is protocol, and belongs there",
	},
	{
		from: []string{"internal/agent"}, linked: true,
		mayNot: []string{"holdfast/internal/relay", "holdfast/internal/client"},
		reason: "the three roles meet in wire: what one needs of another is protocol, and belongs there",
	},
	{
		from: []string{"internal/client"}, linked: true,
		mayNot: []string{"holdfast/internal/relay", "holdfast/internal/agent"},
		reason: "the three roles meet in wire: what one needs of another is protocol, and belongs there",
	},
	{
		from: []string{"internal/relay"}, linked: true,
		mayNot: []string{"golang.org/x/crypto/ssh", "golang.org/x/crypto/ssh/..."},
		reason: "the relay cannot read what it cannot parse",
	},
	{
		from:   []string{"internal/wire", "internal/frame", "internal/liveness", "internal/resume", "internal/pairing"},
		mayNot: []string{std}, unless: []string{"holdfast/internal/wire"}, linked: true,
		reason: "the cores are values and pure functions that a second implementation can be held to",
	},
	{
		from:   []string{"internal/wire", "internal/frame", "internal/liveness", "internal/resume"},
		mayNot: []string{"net", "net/http/httptest", "os", "os/exec"},
		reason: "the cores open nothing: bytes and times in, bytes and verdicts out",
	},
	{
		from: []string{"*"}, except: []string{"internal/relay", "live"},
		mayNot: []string{"github.com/gobwas/ws", "github.com/gobwas/ws/..."},
		reason: "it upgrades sockets on the accepting side and does nothing else here",
	},
	{
		from: []string{"*"}, except: []string{"internal/wsconn"},
		mayNot: []string{"github.com/coder/websocket", "github.com/coder/websocket/..."},
		reason: "its rules (which error ends a connection, what Close waits for) are dealt with in one place",
	},
	{
		from: []string{"*"}, except: []string{"internal/sshserver", "internal/sshlink"},
		mayNot: []string{"golang.org/x/crypto/ssh", "golang.org/x/crypto/ssh/..."},
		reason: "host key pinning and authentication are decided in two packages and nowhere else",
	},
	{
		from: []string{"live"}, linked: true,
		mayNot: []string{"holdfast/..."}, unless: []string{"holdfast/live", "holdfast/live/...", "holdfast/internal/liveness", "holdfast/internal/frame"},
		reason: "the public package is usable without the rest of Holdfast",
	},
	{
		from:   []string{"*"},
		mayNot: []string{"testing", "testing/...", "holdfast/internal/memnet", "holdfast/internal/faultproxy", "holdfast/internal/archtest", "holdfast/internal/engine/enginetest", "pgregory.net/rapid", "go.uber.org/goleak", "github.com/rogpeppe/go-internal/..."},
		reason: "test code in the binary is weight and attack surface",
	},
}

func (r rule) covers(short string) bool {
	// A package's rules hold for what lies below it too.
	in := func(p string) bool { return short == p || strings.HasPrefix(short, p+"/") }
	if slices.ContainsFunc(r.except, in) {
		return false
	}
	if slices.Contains(r.from, "*") {
		return !slices.Contains(testOnly, short) && !isTool(short)
	}
	return slices.ContainsFunc(r.from, in)
}

func isTool(short string) bool {
	for _, dir := range tools {
		if short == dir || strings.HasPrefix(short, dir+"/") {
			return true
		}
	}
	return false
}

func matches(pattern, imported string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return strings.HasPrefix(imported, prefix+"/")
	}
	return pattern == imported
}

func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".") && first != module
}

// violations returns the imports that r forbids.
func (r rule) violations(imports []string) []string {
	var bad []string
	for _, imported := range imports {
		if slices.ContainsFunc(r.unless, func(p string) bool { return matches(p, imported) }) {
			continue
		}
		for _, pattern := range r.mayNot {
			if pattern == std && !isStandard(imported) || matches(pattern, imported) {
				bad = append(bad, imported)
				break
			}
		}
	}
	return bad
}

func TestDependencyRules(t *testing.T) {
	for _, system := range systems {
		for _, p := range own(t, system) {
			for _, r := range rules {
				if !r.covers(p.short()) {
					continue
				}
				imports := p.Imports
				if r.linked {
					imports = p.Deps
				}
				for _, bad := range r.violations(imports) {
					t.Errorf("%s (%s) reaches %s: %s", p.ImportPath, system, bad, r.reason)
				}
			}
		}
	}
}

// TestRulesHaveTeeth runs the table over imports that it must refuse, so that a
// typing mistake in it does not pass for a clean repository.
func TestRulesHaveTeeth(t *testing.T) {
	refused := map[string][]string{
		"internal/relay":     {"holdfast/internal/agent", "holdfast/internal/client", "golang.org/x/crypto/ssh", "github.com/coder/websocket", "testing"},
		"internal/agent":     {"holdfast/internal/relay", "golang.org/x/crypto/ssh", "github.com/gobwas/ws", "golang.org/x/crypto/ssh/knownhosts"},
		"internal/client":    {"holdfast/internal/agent", "github.com/coder/websocket"},
		"internal/wire":      {"holdfast/internal/engine", "golang.org/x/sys/unix", "net", "testing/synctest"},
		"internal/liveness":  {"github.com/coder/websocket", "os"},
		"internal/pairing":   {"golang.org/x/crypto/hkdf"},
		"internal/sshserver": {"holdfast/internal/memnet"},
		"live":               {"holdfast/internal/relay"},
	}
	for from, imports := range refused {
		for _, imported := range imports {
			if !slices.ContainsFunc(rules, func(r rule) bool {
				return r.covers(from) && len(r.violations([]string{imported})) > 0
			}) {
				t.Errorf("no rule refuses %s in %s", imported, from)
			}
		}
	}
	allowed := map[string][]string{
		"internal/relay":     {"github.com/gobwas/ws", "holdfast/internal/wire", "net/http"},
		"internal/pairing":   {"holdfast/internal/wire", "crypto/hkdf"},
		"internal/sshserver": {"golang.org/x/crypto/ssh", "github.com/pkg/sftp"},
		"internal/wsconn":    {"github.com/coder/websocket"},
		"live":               {"holdfast/internal/frame", "github.com/gobwas/ws"},
		"bench":              {"github.com/coder/websocket"},
	}
	for from, imports := range allowed {
		for _, imported := range imports {
			for _, r := range rules {
				if r.covers(from) && len(r.violations([]string{imported})) > 0 {
					t.Errorf("%s is refused in %s: %s", imported, from, r.reason)
				}
			}
		}
	}
}

// process lists what belongs to the process as a whole and is read in one place.
var process = map[string][]string{
	"os":      {"Args", "Getenv", "LookupEnv", "Environ", "ExpandEnv", "Stdin", "Stdout", "Stderr", "Exit"},
	"syscall": {"Getenv", "Environ", "Exit"},
	"flag":    {"Parse", "Args", "CommandLine"},
	"log":     {"Fatal", "Fatalf", "Fatalln"},
}

func TestOnlyTheCommandLineTouchesTheProcess(t *testing.T) {
	const reason = "arguments, environment, standard streams and the exit code belong to internal/cli, so that everything else can be tested in one process"
	for _, p := range own(t, "linux") {
		short := p.short()
		if short == "internal/cli" || strings.HasPrefix(short, "internal/cli/") || short == "cmd/holdfast" || isTool(short) || slices.Contains(testOnly, short) {
			continue
		}
		for _, name := range p.sources() {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Error(err)
				continue
			}
			names := map[string]string{} // local name: import path
			for _, spec := range f.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				local := path.Base(imported)
				if spec.Name != nil {
					local = spec.Name.Name
				}
				names[local] = imported
			}
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(process[names[x.Name]], sel.Sel.Name) {
					t.Errorf("%s: %s.%s: %s", fset.Position(sel.Pos()), x.Name, sel.Sel.Name, reason)
				}
				return true
			})
		}
	}
}

func TestBinaryLinksNoTestCode(t *testing.T) {
	for _, system := range systems {
		for _, p := range list(t, system, "-deps", "./cmd/holdfast") {
			if p.ImportPath == "testing" || p.Module != nil && p.Module.Main && slices.Contains(testOnly, p.short()) {
				t.Errorf("the binary for %s links %s", system, p.ImportPath)
			}
		}
	}
}
