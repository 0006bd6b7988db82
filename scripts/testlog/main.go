// Command testlog reads `go test -json` from its standard input, prints one
// line a package, the tests that took longest and everything that a failing test said, and appends each
// test by name to a results file: "pass PACKAGE TEST", "fail …", "skip …".
//
// It never hides a failure: it exits with 1 when a test or a package failed,
// when a package did not build, and when no test ran at all. What a caller will
// get wrong: subtests are counted with their parent, and a package that fails
// outside of a test (a leak found by TestMain, a time-out) is a failure too.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// event is a line of test2json, see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// pkg is what is known of one package.
type pkg struct {
	passed, failed, skipped int
	// output by top-level test; "" holds what the package said itself.
	output map[string][]string
	bad    map[string]bool // top-level tests that failed
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json ... | testlog RESULTS")
		os.Exit(2)
	}
	results, err := os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
		os.Exit(2)
	}
	ok := read(bufio.NewReader(os.Stdin), os.Stdout, results)
	if err := results.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
		ok = false
	}
	if !ok {
		os.Exit(1)
	}
}

// Where the time of a run goes is said of tests from so many seconds on, and of
// so many of them: those that are worth making shorter.
const longSeconds, longTests = 10, 12

// writer is the part of os.File that read needs.
type writer interface{ WriteString(string) (int, error) }

// read handles the whole stream and reports whether all passed and something ran.
func read(in *bufio.Reader, out, results writer) bool {
	packages := map[string]*pkg{}
	ok, ran := true, 0
	var long []event // tests that took longest
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				out.WriteString("   " + strings.TrimRight(line, "\n") + "\n")
			} else {
				if handle(packages, e, out, results, &ran) {
					ok = false
				}
				if (e.Action == "pass" || e.Action == "fail") && e.Test != "" && !strings.Contains(e.Test, "/") && e.Elapsed >= longSeconds {
					long = append(long, e)
				}
			}
		}
		if err != nil {
			break
		}
	}
	// What is left never reported its end: go test itself was stopped.
	for name, p := range packages {
		out.WriteString(fmt.Sprintf("   FAIL %s: no result\n", name))
		results.WriteString("fail " + name + " (no result)\n")
		p.print(out, "")
		ok = false
	}
	slices.SortFunc(long, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, e := range long[:min(len(long), longTests)] {
		out.WriteString(fmt.Sprintf("   long %-34s %s %.0f s\n", e.Package, e.Test, e.Elapsed))
	}
	if ran == 0 {
		out.WriteString("   FAIL: no test ran\n")
		ok = false
	}
	return ok
}

// handle takes one event and reports whether it is a failure.
func handle(packages map[string]*pkg, e event, out, results writer, ran *int) (failed bool) {
	if e.Package == "" { // build-output and build-fail
		if e.Output != "" {
			out.WriteString("   " + e.Output)
		}
		return e.Action == "build-fail"
	}
	p := packages[e.Package]
	if p == nil {
		p = &pkg{output: map[string][]string{}, bad: map[string]bool{}}
		packages[e.Package] = p
	}
	top, _, isSub := strings.Cut(e.Test, "/")
	if e.Action == "output" {
		p.output[top] = append(p.output[top], e.Output)
		return false
	}
	if e.Test != "" {
		if isSub {
			return false
		}
		switch e.Action {
		case "pass":
			p.passed++
			*ran++
		case "fail":
			p.failed++
			*ran++
			p.bad[top] = true
			p.print(out, top)
		case "skip":
			p.skipped++
		default:
			return false
		}
		results.WriteString(e.Action + " " + e.Package + " " + e.Test + "\n")
		delete(p.output, top)
		return e.Action == "fail"
	}
	switch e.Action {
	case "pass", "skip":
		if p.passed+p.skipped > 0 {
			out.WriteString(fmt.Sprintf("   ok   %-34s %4d tests %7.1f s%s\n", e.Package, p.passed, e.Elapsed, p.skips()))
		}
		delete(packages, e.Package)
	case "fail":
		out.WriteString(fmt.Sprintf("   FAIL %-34s %4d of %d tests failed %7.1f s\n", e.Package, p.failed, p.passed+p.failed, e.Elapsed))
		if p.failed == 0 {
			results.WriteString("fail " + e.Package + " (outside of a test)\n")
		}
		// Tests that were cut off by a crash or a time-out have no result of
		// their own; their output says why.
		for test := range p.output {
			p.print(out, test)
		}
		delete(packages, e.Package)
		return true
	}
	return false
}

func (p *pkg) skips() string {
	if p.skipped == 0 {
		return ""
	}
	return fmt.Sprintf("  (%d skipped)", p.skipped)
}

func (p *pkg) print(out writer, test string) {
	for _, line := range p.output[test] {
		if strings.HasPrefix(line, "=== ") {
			continue
		}
		out.WriteString("      " + line)
	}
}
