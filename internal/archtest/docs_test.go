package archtest

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
)

// pages lists the documents of the repository.
func pages(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, f := range tracked(t) {
		if strings.HasSuffix(f, ".md") {
			out = append(out, f)
		}
	}
	return out
}

var (
	fence  = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	inline = regexp.MustCompile("`[^`\n]*`")
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	head   = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
)

// anchors are the fragments that a page's headings make.
func anchors(text string) []string {
	var out []string
	for _, m := range head.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		slug := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, strings.TrimSpace(m[1]))
		out = append(out, slug)
	}
	return out
}

func TestLinksResolve(t *testing.T) {
	files := tracked(t)
	for _, page := range pages(t) {
		text := inline.ReplaceAllString(fence.ReplaceAllString(read(t, page), ""), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, fragment, _ := strings.Cut(target, "#")
			file := page
			if path != "" {
				file = filepath.Join(filepath.Dir(page), path)
			}
			info, err := os.Stat(filepath.Join(root, file))
			if err != nil {
				t.Errorf("%s links to %s, which is not there", page, target)
				continue
			}
			if !info.IsDir() && !slices.Contains(files, file) {
				t.Errorf("%s links to %s, which is not in the repository", page, target)
			}
			if fragment != "" && !slices.Contains(anchors(read(t, file)), fragment) {
				t.Errorf("%s links to %s, where no heading makes that fragment", page, target)
			}
		}
	}
}

// wirePackage type-checks internal/wire, so that the documents can be compared
// with its constants and their values.
var wirePackage = sync.OnceValues(func() (*types.Package, error) {
	fset := token.NewFileSet()
	names, err := filepath.Glob(root + "/internal/wire/*.go")
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	// What wire imports is taken from the build cache.
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}", "./internal/wire")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list -export: %w", err)
	}
	exports := map[string]string{}
	for line := range strings.SplitSeq(string(out), "\n") {
		path, file, _ := strings.Cut(line, "=")
		exports[path] = file
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", open)}
	return config.Check("holdfast/internal/wire", fset, files, nil)
})

// wireConstants are the exported constants of internal/wire by the name of
// their type.
func wireConstants(t *testing.T) map[string][]*types.Const {
	t.Helper()
	pkg, err := wirePackage()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]*types.Const{}
	for _, name := range pkg.Scope().Names() {
		c, ok := pkg.Scope().Lookup(name).(*types.Const)
		if !ok || !c.Exported() {
			continue
		}
		kind := c.Type().String()
		kind = kind[strings.LastIndexAny(kind, "./")+1:]
		out[kind] = append(out[kind], c)
	}
	return out
}

// row finds the line of a table whose cells hold all of the given texts.
func row(page string, cells ...string) bool {
	for line := range strings.SplitSeq(page, "\n") {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		if !slices.ContainsFunc(cells, func(c string) bool { return !strings.Contains(line, c) }) {
			return true
		}
	}
	return false
}

func TestProtocolPageMatchesWire(t *testing.T) {
	page := read(t, "docs/protocol.md")
	constants := wireConstants(t)
	if len(constants["CloseCode"]) < 20 || len(constants["Refusal"]) < 10 || len(constants["Op"]) < 8 {
		t.Fatalf("internal/wire has fewer constants than the protocol: %v", constants)
	}
	for _, c := range constants["CloseCode"] {
		if !row(page, "| "+c.Val().String()+" |", "`"+c.Name()+"`") {
			t.Errorf("docs/protocol.md has no row for close code %s, %s", c.Val(), c.Name())
		}
	}
	for _, kind := range []string{"Refusal", "Op"} {
		for _, c := range constants[kind] {
			if !row(page, "`"+constant.StringVal(c.Val())+"`") {
				t.Errorf("docs/protocol.md has no row for %s %q", kind, constant.StringVal(c.Val()))
			}
		}
	}
	for _, c := range constants["MachineState"] {
		if !row(page, "| `"+constant.StringVal(c.Val())+"` |") {
			t.Errorf("docs/protocol.md does not explain the state %s", c.Val())
		}
	}
	for kind, all := range constants {
		for _, c := range all {
			name := c.Name()
			switch {
			case strings.HasPrefix(name, "Max") || strings.HasSuffix(name, "Timeout") || strings.HasSuffix(name, "Hold"):
				value := c.Val().ExactString() + " bytes"
				if kind == "Duration" {
					n, _ := constant.Int64Val(c.Val())
					value = time.Duration(n).String()
				}
				if !row(page, "`"+name+"`", "| "+value+" |") {
					t.Errorf("docs/protocol.md has no row for the limit %s = %s", name, value)
				}
			case strings.HasPrefix(name, "Header"), strings.HasPrefix(name, "Feature"), strings.HasPrefix(name, "Path"), strings.HasPrefix(name, "Subprotocol"), name == "BearerPrefix":
				if text := constant.StringVal(c.Val()); !strings.Contains(page, text) {
					t.Errorf("docs/protocol.md does not mention %s, %q", name, text)
				}
			}
		}
	}
}

// TestSkewTable wants each close code, op and feature met by
// a peer that predates it, and the tests that rows name to exist.
func TestSkewTable(t *testing.T) {
	page := read(t, "docs/protocol.md")
	_, table, found := strings.Cut(page, "## Skew: old and new together")
	if !found {
		t.Fatal("docs/protocol.md has no table of skew")
	}
	constants := wireConstants(t)
	for _, c := range constants["Op"] {
		if !row(table, "op `"+constant.StringVal(c.Val())+"`") {
			t.Errorf("the table of skew has no row for op %s", c.Val())
		}
	}
	for _, c := range constants["CloseCode"] {
		// The first are never sent or say nothing that could be misunderstood.
		if code := c.Val().String(); c.Name() != "CloseNoStatus" && c.Name() != "CloseAbnormal" && !row(table, code) {
			t.Errorf("the table of skew has no row for close code %s", code)
		}
	}
	for _, c := range constants["untyped string"] {
		if strings.HasPrefix(c.Name(), "Feature") && !row(table, "feature `"+constant.StringVal(c.Val())+"`") {
			t.Errorf("the table of skew has no row for feature %s", c.Val())
		}
	}
	tests := testNames(t)
	named := 0
	for _, m := range regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(table, -1) {
		named++
		if !tests[m[1]] {
			t.Errorf("the table of skew names %s, and there is no such test", m[1])
		}
	}
	if named == 0 {
		t.Error("the table of skew names no test")
	}
}

// TestNamedTestsExist holds the other pages to the same: a claim that names its
// test has one.
func TestNamedTestsExist(t *testing.T) {
	tests := testNames(t)
	for _, page := range pages(t) {
		for _, m := range regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(read(t, page), -1) {
			if m[1] != "TestMain" && !tests[m[1]] {
				t.Errorf("%s names %s, and there is no such test", page, m[1])
			}
		}
	}
}

func testNames(t *testing.T) map[string]bool {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(t \*testing\.T\)`)
	out := map[string]bool{}
	for _, f := range tracked(t) {
		if strings.HasSuffix(f, "_test.go") {
			for _, m := range declared.FindAllStringSubmatch(read(t, f), -1) {
				out[m[1]] = true
			}
		}
	}
	return out
}

// builtBinary builds the command once.
var builtBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "archtest-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-o", path, "./cmd/holdfast")
	build.Dir = root
	binaryDir = dir
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// binaryDir is what builtBinary has made, for TestMain to remove.
var binaryDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if binaryDir != "" {
		os.RemoveAll(binaryDir)
	}
	os.Exit(code)
}

// help is what the binary says about one of its commands.
func help(t *testing.T, args ...string) string {
	t.Helper()
	path, err := builtBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append(args, "--help")...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatalf("holdfast %s --help: %v\n%s", strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out)
}

var (
	helpCommand = regexp.MustCompile(`(?m)^  ([a-z][a-z-]+(?: [a-z][a-z-]+)?)(?: |$)`)
	helpFlag    = regexp.MustCompile(`--(?:\[no-\])?([a-z][a-z-]*)`)
)

// defaults are the hidden subcommands that run when a command is given none:
// their flags are the command's own.
var defaults = map[string]string{"agent": "run", "devices": "list", "relay": "run"}

// commandTree lists every command with its flags, from the binary's own help.
func commandTree(t *testing.T) map[string][]string {
	t.Helper()
	tree := map[string][]string{}
	var walk func(prefix []string)
	walk = func(prefix []string) {
		text := help(t, prefix...)
		if hidden, ok := defaults[strings.Join(prefix, " ")]; ok && strings.Contains(text, " <command>") {
			text += help(t, append(slices.Clone(prefix), hidden)...)
		}
		// Flags stand in lines of their own, by convention of the help.
		for line := range strings.SplitSeq(text, "\n") {
			trimmed := strings.TrimSpace(line)
			if !strings.HasPrefix(trimmed, "-") {
				continue
			}
			// Not the explanation behind it, which may mention other flags.
			flag, _, _ := strings.Cut(trimmed, "  ")
			for _, m := range helpFlag.FindAllStringSubmatch(flag, -1) {
				name := strings.Join(prefix, " ")
				if !slices.Contains(tree[name], m[1]) {
					tree[name] = append(tree[name], m[1])
				}
			}
		}
		for _, m := range helpCommand.FindAllStringSubmatch(text, -1) {
			words := strings.Fields(m[1])
			if len(prefix) > 0 && words[0] == prefix[0] {
				words = words[len(prefix):]
			}
			if len(words) == 0 {
				continue
			}
			next := append(slices.Clone(prefix), words...)
			if _, seen := tree[strings.Join(next, " ")]; !seen {
				tree[strings.Join(next, " ")] = nil
				walk(next)
			}
		}
	}
	walk(nil)
	return tree
}

// TestCommandsAreDocumented compares docs/commands.md with the binary: a
// section for each command, a row in it for each flag, and none beyond that.
func TestCommandsAreDocumented(t *testing.T) {
	page := read(t, "docs/commands.md")
	tree := commandTree(t)
	if len(tree) < 12 {
		t.Fatalf("the binary's help lists %d commands: %v", len(tree), tree)
	}
	sections := map[string]string{}
	for part := range strings.SplitSeq("\n"+page, "\n## ") {
		title, body, _ := strings.Cut(part, "\n")
		sections[strings.TrimPrefix(title, "holdfast ")] = body
	}
	global := tree[""]
	for command, flags := range tree {
		name := command
		if command == "" {
			name = "Every command"
		}
		body, ok := sections[name]
		if !ok {
			t.Errorf("docs/commands.md has no section \"## holdfast %s\"", command)
			continue
		}
		// What a command takes over from the one above it is documented there.
		above, _, _ := strings.Cut(command, " ")
		for _, f := range flags {
			if command != above && slices.Contains(tree[above], f) {
				continue
			}
			if f != "help" && (command == "" || !slices.Contains(global, f)) && !row(body, "`--"+f) {
				t.Errorf("docs/commands.md: holdfast %s: no row for --%s", command, f)
			}
		}
		for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)").FindAllStringSubmatch(body, -1) {
			if !slices.Contains(flags, m[1]) {
				t.Errorf("docs/commands.md: holdfast %s has no flag --%s", command, m[1])
			}
		}
	}
	for title := range sections {
		if _, ok := tree[title]; !ok && title != "Every command" && strings.Contains(page, "\n## holdfast "+title+"\n") {
			t.Errorf("docs/commands.md describes holdfast %s, which the binary does not have", title)
		}
	}
}

// commandLine finds calls of the binary in the shell examples of a page.
var commandLine = regexp.MustCompile("(?m)(?:^|[`\\s(/=])holdfast ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)((?: +[^\n#`]*)?)")

// TestExamplesUseCommandsThatExist checks each `holdfast …` and `make …` in the
// documents: the command is there, and so are the flags given to it.
func TestExamplesUseCommandsThatExist(t *testing.T) {
	tree := commandTree(t)
	targets := read(t, "Makefile")
	for _, page := range pages(t) {
		text := read(t, page)
		var code []string
		code = append(code, fence.FindAllString(text, -1)...)
		code = append(code, inline.FindAllString(fence.ReplaceAllString(text, ""), -1)...)
		for _, part := range code {
			for _, m := range regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z-]*)").FindAllStringSubmatch(part, -1) {
				if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(targets) {
					t.Errorf("%s: make %s: the Makefile has no such target", page, m[1])
				}
			}
			for _, m := range commandLine.FindAllStringSubmatch(part, -1) {
				words := strings.Fields(m[1])
				command := strings.Join(words, " ")
				if _, ok := tree[command]; !ok {
					command = words[0]
				}
				flags, ok := tree[command]
				if !ok {
					t.Errorf("%s: %q: no such command", page, strings.TrimSpace(m[0]))
					continue
				}
				for _, f := range helpFlag.FindAllStringSubmatch(m[2], -1) {
					if !slices.Contains(flags, f[1]) && !slices.Contains(tree[""], f[1]) {
						t.Errorf("%s: holdfast %s has no flag --%s", page, command, f[1])
					}
				}
			}
		}
	}
}

// TestMakefileListsItsTargets keeps `make help` whole.
func TestMakefileListsItsTargets(t *testing.T) {
	text := read(t, "Makefile")
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):(.*)$`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(m[2], "## ") {
			t.Errorf("Makefile: target %s says nothing about itself", m[1])
		}
	}
	out := command(t, nil, "make", "--no-print-directory", "help")
	for _, want := range []string{"run", "build", "test", "test-long", "bench", "fuzz", "clean"} {
		if !bytes.Contains(out, []byte("make "+want+" ")) {
			t.Errorf("make help does not list %s:\n%s", want, out)
		}
	}
}
